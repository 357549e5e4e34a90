"""Which rows of a trace take part, and which traces are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from aurora_core.errors import TraceError
from aurora_core.records import Rows, Trace
from aurora_medusa.collate import Batch
from aurora_medusa.speculator import MedusaSpeculator
from aurora_medusa.training import supervising_rows

PROMPT_LEN, NUM_TOKENS = 7, 15


@pytest.fixture
def trace(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(1, prompt_len=PROMPT_LEN, num_response=NUM_TOKENS - PROMPT_LEN)


def without_rows(trace: Trace, *missing: int) -> Trace:
    kept = ~torch.isin(trace.rows.position, torch.tensor(missing))
    return dataclasses.replace(
        trace,
        rows=Rows(position=trace.rows.position[kept], node=trace.rows.node[kept]),
        features={name: tensor[kept] for name, tensor in trace.features.items()},
    )


def supervised_pairs(speculator: MedusaSpeculator, trace: Trace) -> list[list[tuple[int, int]]]:
    """Return, per head, (position of the anchor, position whose target row supervises it)."""
    batch = Batch.from_dict(speculator.collate([trace]))
    anchors = batch.row_position[batch.anchor_row].tolist()
    return [
        [
            (anchor, int(batch.row_position[row]))
            for anchor, row in zip(anchors, rows, strict=True)
            if row >= 0
        ]
        for rows in supervising_rows(batch, 3).tolist()
    ]


def test_supervised_rows_are_those_found_by_hand(
    speculator: MedusaSpeculator, trace: Trace
) -> None:
    # 15 tokens, 7 of them prompt: token 7 comes from the prompt's pass, 8 to 14 can be drafted.
    # Head 0 at 6 predicts token 8, whose distribution is that of the target row of 7.
    assert supervised_pairs(speculator, trace) == [
        [(6, 7), (7, 8), (8, 9), (9, 10), (10, 11), (11, 12), (12, 13)],
        [(6, 8), (7, 9), (8, 10), (9, 11), (10, 12), (11, 13)],
        [(6, 9), (7, 10), (8, 11), (9, 12), (10, 13)],
    ]


def test_a_missing_row_neither_starts_a_draft_nor_teaches_one(
    speculator: MedusaSpeculator, trace: Trace
) -> None:
    assert supervised_pairs(speculator, without_rows(trace, 0, 1, 9, 13)) == [
        [(6, 7), (7, 8), (10, 11), (11, 12)],
        [(6, 8), (8, 10), (10, 12)],
        [(7, 10), (8, 11)],
    ]


@pytest.mark.parametrize("name", ["last_hidden_state", "target_logsumexp"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_where_they_would_be_read(
    speculator: MedusaSpeculator, trace: Trace, name: str, value: float
) -> None:
    damaged = {key: tensor.clone() for key, tensor in trace.features.items()}
    damaged[name][PROMPT_LEN - 2] = value
    speculator.collate([dataclasses.replace(trace, features=damaged)])
    damaged[name][PROMPT_LEN] = value
    with pytest.raises(TraceError, match=rf"values in '{name}' that are not finite; drop"):
        speculator.collate([dataclasses.replace(trace, features=damaged)])


def test_traces_that_cannot_be_learned_from_are_refused(
    speculator: MedusaSpeculator, trace: Trace
) -> None:
    hidden = trace.features["last_hidden_state"]
    with pytest.raises(TraceError, match=r"lacks the feature 'target_logsumexp'.*record it"):
        speculator.collate([dataclasses.replace(trace, features={"last_hidden_state": hidden})])
    narrow = dict(trace.features) | {"last_hidden_state": hidden[:, :16]}
    with pytest.raises(TraceError, match=r"of shape \[14, 16\], expected \[14, 32\]; drop"):
        speculator.collate([dataclasses.replace(trace, features=narrow)])
    with pytest.raises(TraceError, match=r"made by another target than 'tiny'; drop the trace"):
        speculator.collate([dataclasses.replace(trace, target_fingerprint="other")])
    twice = dataclasses.replace(trace.rows, position=trace.rows.position.clamp(max=12))
    with pytest.raises(TraceError, match=r"two rows at one position; drop the trace"):
        speculator.collate([dataclasses.replace(trace, rows=twice)])


def test_long_traces_keep_their_end(
    make_speculator: Callable[..., MedusaSpeculator], make_trace: Callable[..., Trace]
) -> None:
    batch = make_speculator(max_trace_tokens=16).collate([make_trace(1, num_response=40)])
    assert batch["row_position"].tolist() == list(range(31, 46))
