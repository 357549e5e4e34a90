"""Which target tokens a drafter with a smaller vocabulary can propose.

Shape legend:
    D  draft vocabulary    V  target vocabulary    H  hidden size
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aurora_core.records import Trace

PROMPT_SHARE = 0.3
"""What a prompt's token counts beside one of a response: prompts name what responses will name."""

ROWS_AT_ONCE = 256
"""Rows whose distributions over the whole target vocabulary are held at a time."""


def choose_target_ids(
    traces: Sequence[Trace], target_head: Tensor, *, size: int, vocab_size: int
) -> Tensor:
    """Return the target ids of a draft vocabulary, sorted, int64 [min(size, vocab_size)].

    A few traces hold few different tokens, but at each of their positions the target knew what else
    could have come. Tokens are ranked by how often they occur plus how often they were expected;
    then come the lowest ids, which in merge-based tokenizers are the most common.

    Args:
        traces: those of the target's traffic seen so far; may be empty.
        target_head: the target's output head, [V, H].
        size: ids to choose.
        vocab_size: V.
    """
    if size >= vocab_size:
        return torch.arange(vocab_size)
    score = torch.zeros(vocab_size, dtype=torch.float64)
    for trace in traces:
        prompt, response = trace.token_ids[: trace.prompt_len], trace.token_ids[trace.prompt_len :]
        score += torch.bincount(response, minlength=vocab_size)
        score += PROMPT_SHARE * torch.bincount(prompt, minlength=vocab_size)
    if any("last_hidden_state" in trace.features for trace in traces):
        _add_expected(score, traces, target_head.float())
    order = torch.argsort(score, descending=True, stable=True)
    return order[:size].sort().values


def _add_expected(score: Tensor, traces: Sequence[Trace], head: Tensor) -> None:
    for trace in traces:
        hidden = trace.features.get("last_hidden_state")
        if hidden is None:
            continue
        # A row at the prompt's last position expects the first token of the response.
        share = torch.where(trace.rows.position >= trace.prompt_len - 1, 1.0, PROMPT_SHARE)
        share = share.masked_fill(trace.rows.position < 0, 0.0)
        for first in range(0, len(hidden), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            expected = share[rows] @ (hidden[rows].float() @ head.T).softmax(-1)
            # A damaged row has no say; whoever trains on its trace will refuse it.
            score += expected.nan_to_num(nan=0.0)
