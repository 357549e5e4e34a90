"""Acceptance figures: one definition, and its identities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_core.acceptance import (
    acceptance_length,
    acceptance_rate,
    per_position,
    sum_per_position,
)
from aurora_core.testing.traces import make_trace

counts = st.lists(st.lists(st.integers(0, 20), max_size=5), min_size=1, max_size=4)


def test_hand_computed_example():
    # Three steps of three drafts accept 3, 1 and 0 of them.
    accepted_per_position = (2, 1, 1)
    assert acceptance_length(4, 3) == pytest.approx(1 + 4 / 3)
    assert acceptance_rate(4, 9) == pytest.approx(4 / 9)
    assert per_position(accepted_per_position, 3) == pytest.approx((2 / 3, 1 / 3, 1 / 3))


def test_nothing_served_has_neutral_figures():
    assert acceptance_length(0, 0) == 1.0
    assert acceptance_rate(0, 0) == 0.0
    assert per_position((0, 0), 0) == (0.0, 0.0)
    assert sum_per_position([]) == ()


@given(counts, st.integers(1, 100))
def test_length_is_one_plus_the_sum_over_positions(accepted, num_steps):
    total = sum_per_position(accepted)
    assert acceptance_length(sum(total), num_steps) == pytest.approx(
        1 + sum(per_position(total, num_steps))
    )


@given(counts, counts)
def test_two_workers_add_up_to_the_aggregate(one, other):
    separate = sum_per_position([sum_per_position(one), sum_per_position(other)])
    assert separate == sum_per_position([*one, *other])
    assert sum(separate) == sum(sum(position) for position in [*one, *other])


@given(st.integers(0, 500), st.floats(0, 1))
def test_counts_of_a_trace_agree_with_the_tokens_it_committed(seed, accept):
    trace = make_trace(seed, num_steps=4, num_speculative_tokens=3, accept=accept)
    accepted = trace.steps.num_accepted
    reached = tuple(int((accepted > position).sum()) for position in range(3))
    length = acceptance_length(int(accepted.sum()), len(accepted))
    assert length == pytest.approx(1 + sum(per_position(reached, len(accepted))))
    assert length * len(accepted) == trace.token_ids.numel() - trace.prompt_len
