"""A tiny random target, and traces of it made with Hugging Face's own forward pass."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from aurora_core.records import NO_DRAFTER, Nodes, Rows, Sampling, Steps, TargetSpec, Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator

TraceMaker = Callable[..., Trace]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def target(target_path: Path) -> TargetSpec:
    return read_target_spec(target_path, name="tiny")


@pytest.fixture(scope="session")
def weights(target: TargetSpec) -> TargetWeights:
    return TargetWeights(target)


@pytest.fixture(scope="session")
def target_model(target_path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def make_speculator(target: TargetSpec) -> Callable[..., Eagle3Speculator]:
    def make(**options: object) -> Eagle3Speculator:
        defaults = {
            "draft_vocab_size": 96,
            "training_steps": 3,
            "depth_weights": "power",
            "min_confidence": 0.0,
            "min_node_confidence": 0.0,
            "export_dtype": "float32",
        }
        return Eagle3Speculator(Eagle3Options.model_validate(defaults | options), target)

    return make


@pytest.fixture(scope="session")
def speculator(make_speculator: Callable[..., Eagle3Speculator]) -> Eagle3Speculator:
    return make_speculator()


@pytest.fixture(scope="session")
def make_trace(
    target_model: PreTrainedModel, target: TargetSpec, speculator: Eagle3Speculator
) -> TraceMaker:
    """Return a function that lets the target answer a random prompt greedily."""

    @torch.no_grad()
    def make(
        seed: int = 0,
        *,
        prompt_len: int = 7,
        num_response: int = 20,
        sampling: Sampling | None = None,
    ) -> Trace:
        generator = torch.Generator().manual_seed(seed)
        token_ids = torch.randint(3, target.vocab_size, (1, prompt_len), generator=generator)
        for _ in range(num_response):
            best = target_model(token_ids).logits[:, -1:].argmax(-1)
            token_ids = torch.cat((token_ids, best), 1)
        output = target_model.model(token_ids[:, :-1], output_hidden_states=True)
        layers = speculator.needs.aux_layers
        aux = torch.cat([output.hidden_states[layer][0] for layer in layers], -1)
        last_hidden = output.last_hidden_state[0]
        return Trace(
            trace_id=uuid.uuid4().hex,
            request_key=f"prompt {seed}",
            created=0.0,
            target_fingerprint=target.fingerprint,
            tokenizer_fingerprint=target.tokenizer_fingerprint,
            sampling=sampling or Sampling(),
            finish_reason="length",
            token_ids=token_ids[0],
            prompt_len=prompt_len,
            steps=_plain_steps(token_ids[0], prompt_len),
            nodes=_no_nodes(),
            rows=Rows(
                position=torch.arange(len(last_hidden)),
                node=torch.full((len(last_hidden),), -1),
            ),
            features={
                "aux_hidden_states": aux,
                "last_hidden_state": last_hidden,
                "target_logsumexp": target_model.lm_head(last_hidden).logsumexp(-1),
            },
            aux_layers=layers,
        )

    return make


def _plain_steps(token_ids: torch.Tensor, prompt_len: int) -> Steps:
    root = torch.arange(prompt_len, max(prompt_len, len(token_ids) - 1))
    return Steps(
        root=root,
        version=torch.full_like(root, NO_DRAFTER),
        bonus_token=token_ids[root + 1],
        num_accepted=torch.zeros_like(root),
        draft_ms=torch.zeros(len(root)),
        verify_ms=torch.zeros(len(root)),
    )


def _no_nodes() -> Nodes:
    empty = torch.zeros(0, dtype=torch.int64)
    return Nodes(
        step=empty,
        token=empty,
        parent=empty,
        depth=empty,
        accepted=torch.zeros(0, dtype=torch.bool),
        log_prob=torch.zeros(0),
    )
