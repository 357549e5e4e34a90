"""What became of poisoned versions, and how long the ones that got through served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aurora_core.experiments.poisoned_weights import POISONS

ARMS = ("gate", "canary", "always")
LEARNERS = ("honest", "lying")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonPlan:
    """How many of what."""

    concurrency: int = 2
    max_tokens: int = 48
    num_prompts: int = 16
    """Different prompts; they are asked again and again."""
    warm_up: int = 16
    """Requests that the champion serves before anything is published."""
    unguarded: int = 8
    """Requests that a poisoned version serves under `always` before the policy is switched on."""
    watch: int = 24
    """Requests after a publication, or after the policy is switched on, at least."""
    most: int = 200
    """Requests after which a version that is not settled is left as it is."""
    canary_share: float = 0.3
    holdout_traces: int = 32
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which cases to run."""

    arms: tuple[str, ...] = ARMS
    learners: tuple[str, ...] = LEARNERS
    """Under `gate` and `canary`; `always` looks at no score."""
    poisons: tuple[str, ...] = POISONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request, as its client saw it."""

    finished: float
    """Unix seconds."""
    version: int | None = None
    """Newest draft version in use; None if the answer did not say."""
    same: bool = True
    """Whether the tokens are those without speculation."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonCase:
    """One poisoned version."""

    arm: str
    learner: str
    poison: str
    version: int
    acceptance_length: float
    """Of its weights, on held-out traces."""
    claimed_acceptance_length: float
    """What it was published with."""
    decisions: tuple[tuple[str, str], ...]
    """(action, reason) of each verdict on it."""
    ever_live: bool
    num_until_back: int | None
    """Answers from when it went live, under `always` from when the policy was switched on, until
    another took its place; None if that did not come, or it never was live."""
    evidence_requests: int | None
    """Requests of its own that the verdict which took it off rests on."""
    replaced_by: int | None
    """What took its place: a version, -1 for no speculation."""
    num_served: int
    """Answers that it drafted for, on trial and live."""
    champion: int | None
    """Live at the end; None for no drafter."""
    expected_champion: int
    """Live before."""
    num_requests: int
    num_failed: int
    num_different: int

    @property
    def is_champion(self) -> bool:
        """Whether the poisoned version stayed live."""
        return self.champion == self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonReport:
    """What came of it."""

    plan: PoisonPlan
    champion_acceptance_length: float
    """On the same held-out traces."""
    cases: tuple[PoisonCase, ...]


def fate(
    version: int,
    lines: Sequence[Mapping[str, Any]],
    answers: Sequence[Answer],
    *,
    policy_on: float = 0.0,
) -> dict[str, Any]:
    """Return what became of a version, as fields of `PoisonCase`.

    Args:
        version: its number.
        lines: of `verdicts.jsonl`, oldest first.
        answers: of all clients while it was there.
        policy_on: Unix seconds before which nothing could take it off.
    """
    verdicts = [
        line for line in lines if line["kind"] in ("verdict", "swap_failed")
        and line["version"] == version
    ]  # fmt: skip
    swaps = [line for line in lines if "receipt" in line]
    at = next((i for i, line in enumerate(swaps) if line["receipt"]["version"] == version), None)
    after = swaps[at + 1] if at is not None and at + 1 < len(swaps) else None
    num_until_back = evidence_requests = None
    if at is not None and after is not None:
        since = max(float(swaps[at]["time"]), policy_on)
        num_until_back = sum(since < one.finished <= after["time"] for one in answers)
        ended_by = [line for line in verdicts if line["time"] <= after["time"]][-1:]
        for line in ended_by:
            evidence = line["evidence"]["since_swap"]
            evidence_requests = evidence["num_requests"] if evidence else None
    return {
        "decisions": tuple(
            (one["verdict"]["action"], one["verdict"]["reason"]) for one in verdicts
        ),
        "ever_live": at is not None,
        "num_until_back": num_until_back,
        "evidence_requests": evidence_requests,
        "replaced_by": after["receipt"]["version"] if after else None,
        "num_served": sum(one.version == version for one in answers),
        "num_requests": len(answers),
        "num_failed": sum(bool(one.error) for one in answers),
        "num_different": sum(not one.same for one in answers),
    }


def as_markdown(report: PoisonReport) -> str:
    """Return the report as a table, a summary and what was decided in words."""
    lines = [
        "| arm | learner | poison | held out, claimed | decided | ever live | requests until taken "
        "off | evidence | served | champion at the end | outputs different | failed |",
        f"|{' --- |' * 12}",
    ]
    lines += [_row(case) for case in report.cases]
    lines += ["", *_summary(report), ""]
    for case in report.cases:
        what = f"{case.arm}, {case.learner}, {case.poison}"
        lines += [f"* {what}: {action}: {reason}." for action, reason in case.decisions]
    return "\n".join(lines)


def _row(case: PoisonCase) -> str:
    until = "never" if case.ever_live and case.num_until_back is None else case.num_until_back
    champion = "no drafter" if case.champion is None else f"version {case.champion}"
    cells = (
        case.arm,
        case.learner,
        f"{case.poison} (version {case.version})",
        f"{case.acceptance_length:.2f}, {case.claimed_acceptance_length:.2f}",
        ", ".join(action for action, _ in case.decisions) or "nothing",
        "yes" if case.ever_live else "no",
        "-" if until is None else str(until),
        "-" if case.evidence_requests is None else str(case.evidence_requests),
        str(case.num_served),
        f"**the poison** ({champion})" if case.is_champion else champion,
        f"{case.num_different} of {case.num_requests}",
        str(case.num_failed),
    )
    return f"| {' | '.join(cells)} |"


def _summary(report: PoisonReport) -> list[str]:
    cases = report.cases
    taken_off = [one.num_until_back for one in cases if one.num_until_back is not None]
    evidence = [one.evidence_requests for one in cases if one.evidence_requests is not None]
    live = [one for one in cases if one.ever_live]
    return [
        f"Poisoned versions: {len(cases)}; champion at the end: "
        f"{sum(one.is_champion for one in cases)}; ever live: {len(live)}, taken off again: "
        f"{len(taken_off)}, after {max(taken_off, default=0)} requests at most, on the evidence of "
        f"{max(evidence, default=0)} at most.",
        f"The champion before is champion again, or still: "
        f"{sum(one.champion == one.expected_champion for one in cases)} of {len(cases)}. It has "
        f"acceptance length {report.champion_acceptance_length:.2f} on the held-out traces.",
        f"{sum(one.num_requests for one in cases)} requests, "
        f"{sum(one.num_failed for one in cases)} failed, "
        f"{sum(one.num_different for one in cases)} outputs different from those without "
        "speculation.",
    ]
