"""One arm on one stream: serve, send every prompt, write down what came back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aurora_core.controller.run_directory import read_lines
from aurora_core.errors import BackendError
from aurora_core.experiments.results import ArmResult, RequestFigures, read_events
from aurora_core.experiments.served_run import serve
from aurora_core.experiments.server_gone import PATIENCE, ServerGone, must_answer
from aurora_core.experiments.streams import (
    REFERENCE,
    StreamName,
    StreamSettings,
    with_references,
)
from aurora_core.traffic.driver import ReplayDriver
from aurora_core.traffic.endpoint import Endpoint

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.traffic.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How prompts are sent."""

    concurrency: int
    max_tokens: int
    reference_every: int
    """Requests of the stream for each reference; 0 sends none."""
    records: bool
    """Whether requests leave traces."""


async def run_arm(
    config: RunConfig,
    prompts: Sequence[Prompt],
    sending: Sending,
    *,
    arm: str,
    stream: StreamName,
    seed: int,
    on_result: Callable[[], None] = lambda: None,
) -> ArmResult:
    """Serve with a configuration until every prompt is answered, and return what came of it.

    Args:
        config: from `as_server`; its run directory is laid out.
        prompts: the stream.
        sending: how.
        arm: for the result, as the following.
        stream: likewise.
        seed: likewise.
        on_result: called after each answer.

    Raises:
        BackendError: the run does not come up; or it does not last, or its latest requests all
            failed, and then nothing that came back is a result.
    """
    sent = with_references(prompts, sending.reference_every)
    places = _places(sent)
    settings = StreamSettings(
        concurrency=sending.concurrency,
        max_tokens=sending.max_tokens,
        record=None if sending.records else False,
    )
    requests: list[RequestFigures] = []
    references: list[RequestFigures] = []
    try:
        async with serve(config) as url, Endpoint(url) as endpoint:
            driver = ReplayDriver(endpoint, sent, settings)
            started = time.time()
            async with contextlib.aclosing(driver.results()) as results:
                async for result in results:
                    prompt = sent[result.index]
                    figures = RequestFigures.of(
                        result,
                        index=places[result.index],
                        domain=prompt.domain,
                        ended_s=time.time() - started,
                    )
                    (references if prompt.domain == REFERENCE else requests).append(figures)
                    must_answer([one.error for one in requests[-PATIENCE:]])
                    on_result()
            wall_s = time.time() - started
            # A stream may be shorter than the patience.
            must_answer([one.error for one in requests], patience=min(PATIENCE, len(requests)))
    except ServerGone as error:
        raise BackendError(
            f"{error}; arm {arm!r} of the {stream} stream, seed {seed}, has no result, and the "
            "same command begins it anew"
        ) from error
    return ArmResult(
        arm=arm,
        stream=stream,
        seed=seed,
        requests=tuple(sorted(requests, key=lambda one: one.index)),
        references=tuple(sorted(references, key=lambda one: one.index)),
        events=read_events(
            read_lines(config.run_dir / "verdicts.jsonl"),
            [one.ended_s for one in requests],
            started=started,
        ),
        wall_s=wall_s,
        started=started,
    )


def _places(sent: Sequence[Prompt]) -> list[int]:
    """Return for everything that is sent its place in the stream without references."""
    places, place = [], -1
    for prompt in sent:
        if prompt.domain != REFERENCE:
            place += 1
        places.append(place)
    return places
