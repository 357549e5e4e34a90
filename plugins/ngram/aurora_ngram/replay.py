"""Replays n-gram drafting over finished requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.records import Trace
from aurora_ngram.config import NgramOptions
from aurora_ngram.drafter import NgramDrafter


def collate(traces: Sequence[Trace]) -> dict[str, Tensor]:
    """Return `token_ids` int64 [B, T], padded with 0, `num_tokens` and `prompt_len` int64 [B]."""
    num_tokens = [trace.token_ids.numel() for trace in traces]
    token_ids = torch.zeros(len(traces), max(num_tokens, default=0), dtype=torch.int64)
    for row, trace in zip(token_ids, traces, strict=True):
        row[: trace.token_ids.numel()] = trace.token_ids
    return {
        "token_ids": token_ids,
        "num_tokens": torch.tensor(num_tokens, dtype=torch.int64),
        "prompt_len": torch.tensor([trace.prompt_len for trace in traces], dtype=torch.int64),
    }


def acceptance(
    options: NgramOptions,
    batch: Mapping[str, Tensor],
    num_speculative_tokens: int,
    *,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    """Draft the likeliest chain from every response position whose whole draft can be judged.

    Every trace is drafted from its own text alone, with `min_confidence` as when serving: what
    traffic adds depends on the order of requests, which a batch does not have.

    Returns:
        As `Speculator.acceptance`.
    """
    options = options.model_copy(update={"num_branches": 1, "share_traffic": False})
    num_traces = len(batch["token_ids"])
    accepted = torch.zeros(num_traces, num_speculative_tokens, dtype=torch.int64)
    anchors = torch.zeros(num_traces, dtype=torch.int64)
    lengths = zip(batch["num_tokens"].tolist(), batch["prompt_len"].tolist(), strict=True)
    for index, (num_tokens, prompt_len) in enumerate(lengths):
        drafter = NgramDrafter(options, vocab_size=vocab_size)
        token_ids = batch["token_ids"][index].cpu()
        start = 0
        for root in range(prompt_len, num_tokens - num_speculative_tokens):
            request = DraftRequest(
                request_id="replay",
                start=start,
                token_ids=token_ids[start : root + 1],
                features={},
                num_speculative_tokens=num_speculative_tokens,
                max_nodes=num_speculative_tokens,
            )
            [proposal] = drafter.propose([request])
            accepted[index, : _num_right(proposal, token_ids[root + 1 :])] += 1
            anchors[index] += 1
            start = root
    return accepted, anchors


def _num_right(proposal: Proposal, following: Tensor) -> int:
    expected = following[: len(proposal.token_ids)].tolist()
    for count, (drafted, token) in enumerate(zip(proposal.token_ids, expected, strict=True)):
        if drafted != token:
            return count
    return len(expected)
