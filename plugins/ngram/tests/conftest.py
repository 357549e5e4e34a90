"""A target that is only described, and a speculator for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.records import TargetSpec, Trace
from aurora_core.testing.traces import make_trace
from aurora_ngram.config import NgramOptions
from aurora_ngram.drafter import NgramDrafter
from aurora_ngram.speculator import NgramSpeculator

VOCAB_SIZE = 64


@pytest.fixture
def target() -> TargetSpec:
    return TargetSpec(
        name="described",
        path="/nowhere",
        architecture="LlamaForCausalLM",
        fingerprint="target",
        tokenizer_fingerprint="tokenizer",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        num_layers=2,
        max_position_embeddings=4096,
    )


@pytest.fixture
def make_speculator(target: TargetSpec) -> Callable[..., NgramSpeculator]:
    def make(**options: object) -> NgramSpeculator:
        return NgramSpeculator(NgramOptions.model_validate(options), target)

    return make


@pytest.fixture
def make_drafter(make_speculator: Callable[..., NgramSpeculator]) -> Callable[..., NgramDrafter]:
    def make(**options: object) -> NgramDrafter:
        drafter = make_speculator(**options).drafter(
            torch.nn.Module(), dtype=torch.float32, device=torch.device("cpu")
        )
        assert isinstance(drafter, NgramDrafter)
        return drafter

    return make


def request(
    token_ids: Sequence[int],
    *,
    start: int = 0,
    depth: int = 5,
    max_nodes: int | None = None,
    request_id: str = "request",
) -> DraftRequest:
    """Return a request that brings `token_ids` from position `start` on."""
    return DraftRequest(
        request_id=request_id,
        start=start,
        token_ids=torch.tensor(token_ids),
        features={},
        num_speculative_tokens=depth,
        max_nodes=depth if max_nodes is None else max_nodes,
    )


def answer(token_ids: Sequence[int], *, prompt_len: int = 0) -> Trace:
    """Return a finished request with these tokens."""
    return replace(make_trace(0), token_ids=torch.tensor(token_ids), prompt_len=prompt_len)


def paths(proposal: Proposal) -> list[list[int]]:
    """Return the tokens from the root to each node."""
    found: list[list[int]] = []
    for token, parent in zip(proposal.token_ids, proposal.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found
