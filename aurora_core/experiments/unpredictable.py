"""Random text: what does speculation cost where it can bring nothing?

    server A   a drafter is live, the guard may switch speculation off      prompt 1, prompt 2 ...
    server B   no drafter, ever                                             prompt 1, prompt 2 ...

Each prompt is asked of both, one right after the other and in turns the one or the other first, so
that both see the machine in the same state; the server that is not asked does nothing. Prompts are
random letters, and answers are sampled at a high temperature from a seed, so both servers must give
the same tokens.

Two processes of one program are not equally fast: where their memory lies makes some percent. So
some prompts are asked of both once more with no drafts asked for, at once, for machines drift as
well: what differs between the two answers then is the servers themselves, and what differs between
the two answers of server A is what a drafter costs that is switched off.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aurora_core.confidence import Interval, resample
from aurora_core.controller.run_directory import read_lines
from aurora_core.errors import BackendError
from aurora_core.experiments.arms import ARMS, configure, lay_out
from aurora_core.experiments.figures import bounds
from aurora_core.experiments.served_run import as_server, serve
from aurora_core.traffic.completion import Completion, RequestFailed
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts import Prompt, open_prompts
from aurora_core.versions import read_run_state, write_run_state

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins

_NUM_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prompt on both servers."""

    drafted: bool
    """Whether any step had drafts on the server that has a drafter."""
    seconds: float
    """Decoding on the server with a drafter."""
    plain_seconds: float
    """On the one without."""
    same: bool
    """Whether both gave the same tokens."""
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """What came of it."""

    num_pairs: int
    num_drafted: int
    num_different: int
    num_tokens: int
    loss: Interval
    """Time lost against no speculation, as a share, over all pairs."""
    loss_while_drafting: Interval | None
    """Over the pairs that had drafts."""
    loss_after: Interval | None
    """Over the pairs without: noise, and whatever a switched-off drafter costs."""
    loss_between_servers: Interval | None
    """Over pairs in which neither had drafts because none were asked for; None without any."""
    num_controls: int
    """Of these pairs."""
    loss_switched_off: Interval | None
    """Of the server with a drafter against itself: answers that had no drafts, whether or not
    because speculation is switched off, against the same asked for without; None without any."""
    num_switched_off: int
    """Of these answers."""
    events: tuple[tuple[str, str], ...]
    """(action, reason) of every verdict that changed what is live."""


async def measure_loss(
    config: RunConfig,
    plugins: Plugins,
    *,
    source: Path,
    folder: Path,
    num_requests: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    guarded: bool = True,
    num_controls: int = 0,
    domains: Sequence[str] = ("random",),
    on_pair: Callable[[int], None] = lambda number: None,
) -> LossReport:
    """Ask both servers and return the loss.

    Args:
        config: of both engines.
        plugins: loaded plugins.
        source: directory of the run whose live version server A begins with.
        folder: of both run directories; what is there is written over.
        num_requests: prompts.
        max_tokens: output tokens per answer.
        temperature: of the sampling; 0 is greedy.
        seed: of prompts and sampling.
        guarded: whether the guard of the configuration is in force on server A.
        num_controls: prompts asked once more, without drafts on either server: evenly from the
            second quarter on, so that they tell the guard nothing before it decides.
        domains: of the prompts.
        on_pair: called with the number of each pair that is done.

    Raises:
        ConfigError: that run left no drafter live.
        BackendError: a server fails.
    """
    prompts = list(open_prompts(domains=domains, seed=seed, num_prompts=num_requests).prompts())
    with_drafter, without = folder / "with-drafter", folder / "without"
    # Nothing is recorded, so nothing is learned: the learner's share of the machine is no part of
    # this question.
    lay_out(ARMS["static"], with_drafter, pretrained=source)
    _let_the_guard_decide(with_drafter)
    lay_out(ARMS["none"], without, pretrained=None)
    plain = configure(ARMS["none"], config)
    ours = config if guarded else configure(ARMS["static"], config)
    pairs: list[Pair] = []
    controls: list[Pair] = []
    switched_off: list[Pair] = []
    again = _spread(num_controls, num_requests)
    async with contextlib.AsyncExitStack() as stack:
        endpoints = [
            await stack.enter_async_context(_served(one, plugins, run_dir, seed))
            for one, run_dir in ((ours, with_drafter), (plain, without))
        ]
        for number, prompt in enumerate(prompts):
            settings = RequestSettings(
                max_tokens=max_tokens, temperature=temperature, seed=seed + number, record=False
            )
            pairs.append(await _ask_both(endpoints, prompt, settings, first=number % 2))
            if number in again:
                plain_settings = replace(settings, drafter="none")
                first = len(controls) % 2
                controls.append(await _ask_both(endpoints, prompt, plain_settings, first=first))
                if not pairs[-1].drafted:
                    seconds = controls[-1].seconds
                    switched_off.append(replace(pairs[-1], plain_seconds=seconds))
            on_pair(number + 1)
    lines = read_lines(with_drafter / "verdicts.jsonl")
    return summarise(pairs, _events(lines), controls, switched_off)


def summarise(
    pairs: Sequence[Pair],
    events: Sequence[tuple[str, str]] = (),
    controls: Sequence[Pair] = (),
    switched_off: Sequence[Pair] = (),
) -> LossReport:
    """Return the loss over some pairs, with intervals resampled over pairs.

    Args:
        pairs: answers of both servers.
        events: (action, reason) of verdicts.
        controls: answers of both that were asked for without drafts.
        switched_off: answers without drafts, `plain_seconds` being those of the same server asked
            for none.

    Raises:
        BackendError: there is no pair.
    """
    loss = _loss(pairs)
    if loss is None:
        raise BackendError("no prompt was answered by both servers; their logs say why")
    return LossReport(
        num_pairs=len(pairs),
        num_drafted=sum(pair.drafted for pair in pairs),
        num_different=sum(not pair.same for pair in pairs),
        num_tokens=sum(pair.num_tokens for pair in pairs),
        loss=loss,
        loss_while_drafting=_loss([pair for pair in pairs if pair.drafted]),
        loss_after=_loss([pair for pair in pairs if not pair.drafted]),
        loss_between_servers=_loss(controls),
        num_controls=len(controls),
        loss_switched_off=_loss(switched_off),
        num_switched_off=len(switched_off),
        events=tuple(events),
    )


def as_markdown(report: LossReport) -> str:
    """Return the report as a table, and what was decided in between."""
    rows = (
        ("all", report.num_pairs, report.loss),
        ("with drafts", report.num_drafted, report.loss_while_drafting),
        ("without drafts", report.num_pairs - report.num_drafted, report.loss_after),
        ("asked for none", report.num_controls, report.loss_between_servers),
        (
            "without drafts, against asked for none",
            report.num_switched_off,
            report.loss_switched_off,
        ),
    )
    lines = ["| requests | number | time lost against no speculation |", "| --- | --- | --- |"]
    for name, count, loss in rows:
        text = "-" if loss is None else "{:+.1%} [{:+.1%}, {:+.1%}]".format(*loss)
        lines.append(f"| {name} | {count} | {text} |")
    lines += ["", f"{report.num_different} of {report.num_pairs} answers different."]
    lines += [f"* {action}: {reason}" for action, reason in report.events]
    return "\n".join(lines)


def _spread(count: int, num_requests: int) -> frozenset[int]:
    """Return numbers of requests, evenly from the second quarter on; all of them if there are fewer
    than asked for."""
    first = num_requests // 4
    room = num_requests - first
    count = min(count, room)
    return frozenset(first + place * room // count for place in range(count))


def _let_the_guard_decide(run_dir: Path) -> None:
    """A static drafter is pinned; this one may be switched off."""
    path = run_dir / "state.json"
    write_run_state(path, replace(read_run_state(path), pinned=False))


@contextlib.asynccontextmanager
async def _served(
    config: RunConfig, plugins: Plugins, run_dir: Path, seed: int
) -> AsyncIterator[Endpoint]:
    server = as_server(config, plugins, run_dir=run_dir, seed=seed)
    async with serve(server) as url, Endpoint(url) as endpoint:
        yield endpoint


async def _ask_both(
    endpoints: Sequence[Endpoint], prompt: Prompt, settings: RequestSettings, *, first: int
) -> Pair:
    answers: dict[int, Completion] = {}
    for which in (first, 1 - first):
        try:
            answers[which] = await endpoints[which].complete(prompt, settings)
        except RequestFailed as failure:
            raise BackendError(f"a server failed on a prompt: {failure}") from failure
    ours, plain = answers[0], answers[1]
    stats = ours.speculation
    return Pair(
        drafted=stats is not None and stats.num_speculative_steps > 0,
        seconds=ours.decode_s or 0.0,
        plain_seconds=plain.decode_s or 0.0,
        same=ours.token_ids == plain.token_ids,
        num_tokens=ours.num_output_tokens,
    )


def _loss(pairs: Sequence[Pair]) -> Interval | None:
    ours = np.array([pair.seconds for pair in pairs])
    plain = np.array([pair.plain_seconds for pair in pairs])
    if not len(pairs) or not plain.sum():
        return None
    occurs = resample(len(pairs), num_resamples=_NUM_RESAMPLES, seed=0)
    return bounds(float(ours.sum() / plain.sum()) - 1, (occurs @ ours) / (occurs @ plain) - 1)


def _events(lines: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    told = ("promote", "roll_back", "disable_speculation", "canary")
    verdicts = [line["verdict"] for line in lines if line["kind"] == "verdict"]
    return [(one["action"], one["reason"]) for one in verdicts if one["action"] in told]
