"""How a run ended, and the report of what it did."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aurora_core.controller.build import plugin_labels, tracking_uri
from aurora_core.controller.evidence import acceptance_length_of
from aurora_core.controller.lineage_facts import lineage_facts
from aurora_core.controller.run_directory import replace_file, without_secrets
from aurora_core.errors import AuroraError, ConfigError
from aurora_core.records import RequestStats
from aurora_core.report.document import LosslessCounts, RequestCounts, RunFacts, make_report
from aurora_core.report.html import render_html
from aurora_core.report.packages import package_versions

if TYPE_CHECKING:
    from aurora_core.controller.run import Run

CRASHED = 1
INTERRUPTED = 130


class EngineDied(Exception):
    """The engine stopped answering in the middle of a run."""


@dataclass
class Outcome:
    """What became of a run."""

    served: bool = False
    """The engine has answered."""
    interrupted: bool = False
    is_ending: bool = False
    """Whether nothing about the drafters may change any more."""
    measuring: bool = False
    """The final measurement has begun: requests are no traffic any more."""
    learner_gave_up: bool = False
    unanswered: str | None = None
    """A sentence, if all of the run's own requests failed."""
    error: Exception | None = None
    unwritten: list[str] = field(default_factory=list)
    """A sentence for every folder that the report could not be written to."""

    @property
    def ended(self) -> str:
        """finished, interrupted, engine_died or failed."""
        if self.error is not None:
            return "engine_died" if isinstance(self.error, EngineDied) else "failed"
        return "interrupted" if self.interrupted else "finished"

    @property
    def has_report(self) -> bool:
        """Whether there is something to report: an error that keeps a run from starting, is not."""
        return self.served and self.ended != "failed"

    @property
    def hook_error(self) -> BaseException | None:
        """What observers are told; None is a clean end."""
        return KeyboardInterrupt() if self.ended == "interrupted" else self.error

    def exit_code(self) -> int:
        """Return the status of `aurora run`.

        Raises:
            Exception: what ended the run, unless the report says it all.
        """
        if self.ended == "failed":
            assert self.error is not None
            raise self.error
        if self.unwritten:
            return CRASHED
        if self.ended == "interrupted":
            return INTERRUPTED
        failed = self.ended == "engine_died" or self.learner_gave_up or self.unanswered is not None
        return CRASHED if failed else 0


def culprit(error: Exception) -> Exception:
    """Return the error to tell about, out of the groups that task groups wrap around errors.

    A mistake in the code comes first; then what the user can mend; an engine that is gone makes
    others fail as well.
    """
    if not isinstance(error, ExceptionGroup):
        return error
    inner = [culprit(one) for one in error.exceptions]
    told = (AuroraError, EngineDied)
    bugs = [one for one in inner if not isinstance(one, told)]
    mistakes = [one for one in inner if isinstance(one, AuroraError)]
    return [*bugs, *mistakes, *inner][0]


def make_report_folder(path: Path) -> None:
    """Find out before the run whether reports can be written there.

    Raises:
        ConfigError: they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / ".partial").touch()
        (path / ".partial").unlink()
    except OSError as error:
        raise ConfigError(
            f"reports cannot be written to {str(path)!r}: {error.strerror}"
        ) from error


async def conclude(run: Run, report_dir: Path | None) -> None:
    """Write the report, tell observers and the user how the run ended, and close the tracking."""
    outcome = run.outcome
    learners = [one.learner for one in run.lineages if one.learner is not None]
    outcome.learner_gave_up = any(learner.has_given_up for learner in learners)
    report = write_reports(run, report_dir) if outcome.has_report else None
    run.parts.plugins.notify("aurora_run_finished", report=report, error=outcome.hook_error)
    if report is not None:
        run.console.summary(report)
    if isinstance(outcome.error, EngineDied):
        run.console.fail(f"the engine is gone: {outcome.error}")
    elif outcome.has_report and run.traffic is not None and run.traffic.all_failed:
        outcome.unanswered = (
            f"none of the run's own {run.traffic.num_failed} requests was answered, the last one "
            f"failed with: {run.traffic.last_error}; look at the settings of `traffic` and "
            f"`backend`, and into {str(run.directory.logs)!r}"
        )
        run.console.fail(outcome.unanswered)
    for sentence in outcome.unwritten:
        run.console.fail(sentence)
    for one in run.lineages:
        if one.tracking is not None:
            await anyio.to_thread.run_sync(one.tracking.close)


def write_reports(run: Run, report_dir: Path | None) -> dict[str, Any]:
    """Write report.json and report.html, into `report_dir` as well, and return the former.

    A folder that cannot be written keeps no report at all: one of an earlier run would pass for
    this one's. `run.outcome` remembers the sentence.
    """
    report = make_report(gather_facts(run))
    folders = [run.directory.path, *([report_dir.absolute()] if report_dir else [])]
    for folder in dict.fromkeys(folders):
        try:
            text = json.dumps(report, indent=1, allow_nan=False) + "\n"
            replace_file(folder / "report.json", text)
            replace_file(folder / "report.html", render_html(report, run.default.history))
        except OSError as error:
            run.outcome.unwritten.append(
                f"the report cannot be written to {str(folder)!r}: {error.strerror}; the figures "
                "of this run are in the summary alone"
            )
            for name in ("report.json", "report.html"):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
    return report


def gather_facts(run: Run) -> RunFacts:
    """Collect what the report is made of from the parts of a run."""
    config, outcome, default = run.parts.config, run.outcome, run.default
    engine, learner = run.requests_log.record, default.learner.record if default.learner else None
    settings = without_secrets(config.model_dump(mode="json"))
    live = default.swapping.live
    plugins = plugin_labels(run.parts.plugins)
    traces_kept, traces_shed = default.traces.since_start(
        kept=engine.traces_kept, shed=engine.traces_shed
    )
    return RunFacts(
        ended=outcome.ended,
        error=None if outcome.error is None else str(outcome.error),
        target=run.parts.target,
        speculator=config.speculator.name,
        history=default.history,
        requests=_requests(run),
        num_engine_finished=engine.num_finished,
        num_engine_aborted=engine.num_aborted,
        lossless=_lossless(run),
        num_failed_swaps=default.swapping.num_failed_swaps,
        num_engine_changes=default.swapping.num_engine_changes,
        gaps_ms_at_swaps=tuple(default.swapping.gaps.at_swaps),
        gaps_ms_elsewhere=tuple(default.swapping.gaps.elsewhere),
        measurements=run.measurement.reports,
        acceptance_by_domain=_acceptance_by_domain(list(default.history.last_requests)),
        traces_kept=traces_kept,
        traces_shed=traces_shed,
        num_dropped_records=run.requests_file.num_dropped
        + sum(one.verdicts_file.num_dropped for one in run.lineages),
        engine_peak_mib=engine.peak_memory_mib,
        learner_state=learner.state if learner else "none",
        learner_steps=max(learner.step if learner else 0, default.found.num_steps),
        tokens_trained_before=default.found.num_tokens_trained,
        learner_restarts=learner.num_restarts if learner else 0,
        learner_peak_mib=learner.peak_memory_mib if learner else 0.0,
        live_version=live.version if live else None,
        wall_s=time.time() - run.started,
        seed=config.seed,
        run_dir=str(config.run_dir),
        tracking_uri=tracking_uri(config),
        plugins=plugins,
        packages=package_versions(tuple(label.split()[0] for label in plugins.values())),
        settings=settings,
        lineages=lineage_facts(run) if len(run.lineages) > 1 else (),
        settings_digest=hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
    )


def _requests(run: Run) -> RequestCounts:
    """Count the run's own traffic as its senders saw it, or else what the engine answered."""
    traffic, histories = run.traffic, [one.history for one in run.lineages]
    if traffic is None:
        return RequestCounts(
            total=sum(one.num_requests for one in histories),
            failed=sum(one.num_failed_requests for one in histories),
            unfinished=sum(one.num_aborted_requests for one in histories),
        )
    return RequestCounts(
        total=traffic.num_sent,
        failed=traffic.num_failed,
        unfinished=traffic.num_sent - traffic.num_requests,
    )


def _lossless(run: Run) -> LosslessCounts:
    """Add up the comparisons during the traffic and those of the final measurement."""
    traffic = run.traffic
    measured = [run.measurement.reports, *run.measurement.by_lineage.values()]
    found = [one.lossless for reports in measured for one in reports]
    if traffic is not None and traffic.lossless is not None:
        found.insert(0, traffic.lossless)
    return LosslessCounts(
        checked=sum(one.checked for one in found),
        mismatches=sum(one.mismatches for one in found),
        near_ties=sum(one.near_ties for one in found),
        by_version=dict(sorted(traffic.num_compared_by_version.items())) if traffic else {},
        differences=tuple(difference for one in found for difference in one.differences),
    )


def _acceptance_by_domain(requests: list[RequestStats]) -> dict[str, float]:
    """Return the acceptance length of recent live requests by route, which traffic sets to the
    domain of the prompt."""
    routes = sorted({request.route for request in requests if request.route})
    return {
        route: acceptance_length_of(one for one in requests if one.route == route)
        for route in routes
    }
