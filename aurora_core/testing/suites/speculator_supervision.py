"""Which positions are learned, found by changing traces at both ends of the response.

With prompt length P and T tokens, the target's pass over the prompt gives token P; tokens P + 1 to
T - 1 can be drafted. A draft of token t + 2 starts at position t and reads the row of t, or rows up
to it: starting positions are P - 1 to T - 3.
"""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from aurora_core.interfaces import Speculator
from aurora_core.records import Rows, TargetSpec, Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.suites.material import plain_trace
from aurora_core.testing.suites.speculator_fixtures import build
from aurora_core.testing.suites.speculator_learning import LearningPromises

PROMPT_LEN, NUM_TOKENS = 7, 15


class SupervisionPromises(LearningPromises):
    """No position of the response is left out, no other one is learned."""

    @pytest.fixture
    def short(self, trainable: Speculator, target: TargetSpec) -> Trace:
        """7 tokens of prompt and 8 of response: tokens 8 to 14 can be drafted."""
        return plain_trace(
            target,
            trainable.needs,
            prompt_len=PROMPT_LEN,
            num_response=NUM_TOKENS - PROMPT_LEN,
        )

    @pytest.fixture
    def fresh(self, trainable: Speculator, weights: TargetWeights, short: Trace) -> nn.Module:
        """A new module whose draft vocabulary holds what `short` needs."""
        return build(trainable, weights, [short])

    def test_as_many_positions_are_supervised_as_the_response_has(
        self, trainable: Speculator, fresh: nn.Module, short: Trace
    ) -> None:
        """One per token that can be drafted, or one more with the token that the prompt gives."""
        for num_response in (2, 3, 8):
            trace = dataclasses.replace(short, prompt_len=NUM_TOKENS - num_response)
            trace = _with_known_logsumexp(trace, short)
            output = trainable.loss(fresh, trainable.collate([trace]))
            assert output.num_tokens in (num_response - 1, num_response)
        longer = trainable.loss(fresh, trainable.collate([short])).weight_sum
        shorter = trainable.loss(fresh, trainable.collate([trace_of_two(short)])).weight_sum
        assert longer > shorter > 0

    def test_the_first_token_that_can_be_drafted_is_learned(
        self, trainable: Speculator, fresh: nn.Module, short: Trace
    ) -> None:
        """A response of two tokens has one place to draft: the row before the response."""
        trace = trace_of_two(short)
        loss = _loss(trainable, fresh, trace)
        assert loss != 0
        if trainable.needs.features:
            changed = _with_noise(trace, trace.prompt_len - 1)
            assert _loss(trainable, fresh, changed) != loss

    def test_the_last_token_is_learned(
        self, trainable: Speculator, fresh: nn.Module, short: Trace
    ) -> None:
        """From the token itself, or from the target's row that gave it."""
        changed = _with_noise(short, NUM_TOKENS - 2)
        changed.token_ids[-1] = _another_token(short)
        assert _loss(trainable, fresh, changed) != _loss(trainable, fresh, short)

    def test_every_row_that_begins_a_draft_matters(
        self, trainable: Speculator, fresh: nn.Module, short: Trace
    ) -> None:
        if not trainable.needs.features:
            pytest.skip("the speculator reads no features")
        loss = _loss(trainable, fresh, short)
        matter = [
            position
            for position in range(NUM_TOKENS - 1)
            if _loss(trainable, fresh, _with_noise(short, position)) != loss
        ]
        assert [*range(PROMPT_LEN - 1, NUM_TOKENS - 2)] == [
            position for position in matter if PROMPT_LEN - 1 <= position < NUM_TOKENS - 2
        ]

    def test_rows_and_tokens_beyond_the_response_change_nothing(
        self, trainable: Speculator, fresh: nn.Module, short: Trace
    ) -> None:
        """A row of the last token, which some engines record, belongs to no draft."""
        longer = dataclasses.replace(
            short,
            rows=Rows(
                position=torch.cat((short.rows.position, torch.tensor([NUM_TOKENS - 1]))),
                node=torch.cat((short.rows.node, torch.tensor([-1]))),
            ),
            features={
                name: torch.cat((rows, torch.full_like(rows[-1:], 3.0)))
                for name, rows in short.features.items()
            },
        )
        assert _loss(trainable, fresh, longer) == pytest.approx(
            _loss(trainable, fresh, short), rel=1e-5
        )

    def test_rows_may_come_in_any_order(
        self, trainable: Speculator, fresh: nn.Module, short: Trace
    ) -> None:
        order = torch.randperm(NUM_TOKENS - 1, generator=torch.Generator().manual_seed(0))
        shuffled = dataclasses.replace(
            short,
            rows=Rows(position=short.rows.position[order], node=short.rows.node[order]),
            features={name: rows[order] for name, rows in short.features.items()},
        )
        assert _loss(trainable, fresh, shuffled) == pytest.approx(
            _loss(trainable, fresh, short), rel=1e-5
        )

    def test_a_row_that_was_not_recorded_takes_its_draft_away_and_no_other(
        self, trainable: Speculator, fresh: nn.Module, short: Trace
    ) -> None:
        """Nothing is inferred from lengths: rows after a hole keep their positions."""
        if not trainable.needs.features:
            pytest.skip("the speculator reads no features")
        kept = short.rows.position != 10
        holed = dataclasses.replace(
            short,
            rows=Rows(position=short.rows.position[kept], node=short.rows.node[kept]),
            features={name: rows[kept] for name, rows in short.features.items()},
        )
        whole = trainable.loss(fresh, trainable.collate([short]))
        output = trainable.loss(fresh, trainable.collate([holed]))
        assert torch.isfinite(output.loss_sum)
        assert 0 < output.weight_sum < whole.weight_sum
        assert whole.num_tokens - 3 <= output.num_tokens < whole.num_tokens


def trace_of_two(trace: Trace) -> Trace:
    """Return a trace of which only the last two tokens are the response."""
    changed = dataclasses.replace(trace, prompt_len=len(trace.token_ids) - 2)
    return _with_known_logsumexp(changed, trace)


def _with_known_logsumexp(changed: Trace, original: Trace) -> Trace:
    """Forget the logits' sum at prompt positions, as an engine would with the longer prompt."""
    if "target_logsumexp" not in original.features:
        return changed
    sums = original.features["target_logsumexp"].clone()
    sums[: changed.prompt_len - 1] = float("nan")
    return dataclasses.replace(changed, features={**original.features, "target_logsumexp": sums})


def _loss(speculator: Speculator, module: nn.Module, trace: Trace) -> float:
    return float(speculator.loss(module, speculator.collate([trace])).loss_sum.detach())


def _with_noise(trace: Trace, position: int) -> Trace:
    """Return a copy with other features in the row of one position."""
    changed = copy.deepcopy(trace)
    noise = torch.Generator().manual_seed(position)
    for rows in changed.features.values():
        rows[position] += torch.randn(rows[position].shape, generator=noise)
    return changed


def _another_token(trace: Trace) -> int:
    """Return a token of the response that is not its last one."""
    last = int(trace.token_ids[-1])
    return next(int(t) for t in trace.token_ids[trace.prompt_len :] if int(t) != last)
