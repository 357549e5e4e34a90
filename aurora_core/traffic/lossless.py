"""Is greedy output the same with and without speculation, token by token?

An answer is compared with the same request sent again with `aurora.drafter = "none"`. They may
part for one innocent reason: arithmetic that rounds differently for one token than for several at a
time flips the order of two tokens that are equally likely within rounding. So at the first
difference the request is sent once more without speculation, with log-probabilities. If those of
the two tokens in question lie within the tolerance, it is a near-tie, otherwise a mismatch. Both
are counted, and kept as evidence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER
from aurora_core.traffic.completion import Completion, RequestFailed, TokenLogprobs
from aurora_core.traffic.endpoint import Drafter, Endpoint, RequestSettings
from aurora_core.traffic.prompts.prompt import Prompt

NEAR_TIE_GAP = 0.125
"""Tolerance between two log-probabilities: one rounding step of a bfloat16 logit in 16 .. 32."""

_NUM_ALTERNATIVES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Evidence: where two answers to one prompt part."""

    index: int
    """Position of the prompt in its source."""
    domain: str
    prompt: str
    position: int
    """Of the first different output token."""
    expected_token: int | None
    """Without speculation; None if that answer had ended."""
    actual_token: int | None
    """With speculation; None if that answer had ended."""
    gap: float | None
    """Between the log-probabilities of the two tokens, without speculation; of the two best
    tokens from servers that do not name tokens by id. None if either is not among the best, or
    one answer had ended."""
    is_near_tie: bool
    min_draft_version: int
    max_draft_version: int
    """Draft versions behind the answer with speculation."""
    expected_token_ids: tuple[int, ...]
    actual_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessReport:
    """Counts over some prompts, and every difference that was found."""

    checked: int
    mismatches: int
    """Different, and not by a near-tie."""
    near_ties: int
    not_checked: int
    """Prompts for which one of the two requests failed."""
    differences: tuple[Difference, ...]


class LosslessCheck:
    """Compares answers and keeps count. Safe for concurrent use on one event loop."""

    def __init__(
        self, endpoint: Endpoint, *, max_tokens: int, near_tie_gap: float = NEAR_TIE_GAP
    ) -> None:
        """Prepare a check.

        Args:
            endpoint: entered; must be an engine of Aurora.
            max_tokens: limit of the answers that are compared.
            near_tie_gap: greatest gap of a near-tie; 0 forgives nothing.
        """
        self.endpoint, self.near_tie_gap = endpoint, near_tie_gap
        self._without = RequestSettings(max_tokens=max_tokens, drafter="none", record=False)
        self._checked = self._not_checked = 0
        self._differences: list[Difference] = []

    @property
    def report(self) -> LosslessReport:
        """What was found so far."""
        near_ties = sum(difference.is_near_tie for difference in self._differences)
        return LosslessReport(
            checked=self._checked,
            mismatches=len(self._differences) - near_ties,
            near_ties=near_ties,
            not_checked=self._not_checked,
            differences=tuple(self._differences),
        )

    async def check(
        self,
        prompt: Prompt,
        token_ids: Sequence[int],
        *,
        index: int = 0,
        min_draft_version: int = NO_DRAFTER,
        max_draft_version: int = NO_DRAFTER,
    ) -> Difference | None:
        """Compare an answer that was given greedily, with any drafter, in `max_tokens` or less.

        Args:
            prompt: what was asked.
            token_ids: the answer.
            index: for the evidence, as the versions.
            min_draft_version: oldest draft version behind the answer.
            max_draft_version: newest one.

        Returns:
            The difference, already counted; None for equal answers, and when the request without
            speculation failed.

        Raises:
            BackendError: the server cannot answer without speculation, or does not tell tokens.
        """
        try:
            without = await self.endpoint.complete(prompt, self._without)
            return await self.compare(
                prompt,
                tuple(token_ids),
                without,
                index=index,
                min_draft_version=min_draft_version,
                max_draft_version=max_draft_version,
            )
        except RequestFailed:
            self._not_checked += 1
            return None

    async def compare(
        self,
        prompt: Prompt,
        token_ids: tuple[int, ...],
        without: Completion,
        *,
        index: int,
        min_draft_version: int,
        max_draft_version: int,
    ) -> Difference | None:
        """Compare as `check` does, with an answer without speculation that is there already.

        Raises:
            BackendError: as `check`.
            RequestFailed: the answers differ, and the request for log-probabilities failed.
        """
        expected = require_plain(without, self.endpoint.url)
        difference = None
        if expected != token_ids:
            position, expected_token, actual_token, gap = await self._judge(
                prompt, expected, token_ids
            )
            difference = Difference(
                index=index,
                domain=prompt.domain,
                prompt=prompt.text,
                position=position,
                expected_token=expected_token,
                actual_token=actual_token,
                gap=gap,
                is_near_tie=gap is not None and gap <= self.near_tie_gap,
                min_draft_version=min_draft_version,
                max_draft_version=max_draft_version,
                expected_token_ids=expected,
                actual_token_ids=token_ids,
            )
            self._differences.append(difference)
        self._checked += 1
        return difference

    async def _judge(
        self, prompt: Prompt, expected: tuple[int, ...], actual: tuple[int, ...]
    ) -> tuple[int, int | None, int | None, float | None]:
        settings = replace(self._without, num_logprobs=_NUM_ALTERNATIVES)
        repeated = await self.endpoint.complete(prompt, settings)
        # An engine that rounds by batch may not even repeat itself: then the repetition, whose
        # log-probabilities are known, is what the answer has to be compared with.
        again = require_plain(repeated, self.endpoint.url)
        if again != actual:
            expected = again
        position = first_difference(expected, actual)
        pair = tuple(
            tokens[position] if position < len(tokens) else None for tokens in (expected, actual)
        )
        entry = repeated.logprobs[position] if position < len(repeated.logprobs) else None
        gap = None if entry is None else _gap(entry, pair[0], pair[1])
        return position, pair[0], pair[1], gap


async def check_lossless(
    endpoint: Endpoint,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    drafter: Drafter = "live",
    concurrency: int = 1,
    near_tie_gap: float = NEAR_TIE_GAP,
) -> LosslessReport:
    """Answer every prompt greedily with and without speculation, and compare.

    Args:
        endpoint: entered; must be an engine of Aurora.
        prompts: each is checked once.
        max_tokens: output tokens per answer.
        drafter: drafter of the first answer.
        concurrency: prompts in flight at once.
        near_tie_gap: greatest gap of a near-tie.

    Raises:
        BackendError: the server cannot answer without speculation, or does not tell tokens.
    """
    check = LosslessCheck(endpoint, max_tokens=max_tokens, near_tie_gap=near_tie_gap)
    room = asyncio.Semaphore(concurrency)
    settings = RequestSettings(max_tokens=max_tokens, drafter=drafter, record=False)
    num_failed = 0

    async def answer(index: int, prompt: Prompt) -> None:
        nonlocal num_failed
        async with room:
            try:
                completion = await endpoint.complete(prompt, settings)
            except RequestFailed:
                num_failed += 1
                return
            stats = completion.speculation
            await check.check(
                prompt,
                require_token_ids(completion, endpoint.url),
                index=index,
                min_draft_version=stats.min_draft_version if stats else NO_DRAFTER,
                max_draft_version=stats.max_draft_version if stats else NO_DRAFTER,
            )

    answers = [asyncio.create_task(answer(index, one)) for index, one in enumerate(prompts)]
    try:
        await asyncio.gather(*answers)
    finally:
        for unfinished in answers:
            unfinished.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
    return replace(check.report, not_checked=check.report.not_checked + num_failed)


def first_difference(expected: Sequence[int], actual: Sequence[int]) -> int:
    """Return the first position at which two unequal sequences differ."""
    pairs = zip_longest(expected, actual)
    return next(position for position, (one, other) in enumerate(pairs) if one != other)


def require_token_ids(completion: Completion, url: str) -> tuple[int, ...]:
    """Return the output tokens.

    Raises:
        BackendError: the server does not report them.
    """
    if completion.token_ids is None:
        if completion.num_output_tokens == 0:
            return ()
        raise BackendError(
            f"the server at {url} does not report token ids (`return_token_ids`); outputs can only "
            "be compared on an engine of Aurora"
        )
    return completion.token_ids


def require_plain(completion: Completion, url: str) -> tuple[int, ...]:
    """Return the output tokens of a request that asked for no speculation.

    Raises:
        BackendError: the server speculated all the same, or does not say.
    """
    if completion.speculation is None or completion.speculation.num_drafted:
        raise BackendError(
            f"the server at {url} does not answer without speculation on request (`aurora: "
            '{"drafter": "none"}`); comparisons need an engine of Aurora'
        )
    return require_token_ids(completion, url)


def _gap(entry: TokenLogprobs, expected: int | None, actual: int | None) -> float | None:
    if expected is None or actual is None:
        return None
    known = dict(((entry.token_id, entry.logprob), *entry.top))
    if None in known:
        best = sorted((logprob for _, logprob in entry.top), reverse=True)
        return best[0] - best[1] if len(best) > 1 else None
    if expected not in known or actual not in known:
        return None
    return abs(known[expected] - known[actual])
