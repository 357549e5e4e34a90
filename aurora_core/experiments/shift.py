"""The domain-shift experiment: what each arm makes of traffic that changes.

    pretrain on the first domain --> OUT/seed-S/pretrained/          once per seed
                                          |
    stream, seed, arm: lay out --> `aurora run` --> send --> OUT/seed-S/STREAM/ARM.json
                                                                   |
    everything that is there ------------------------> summary.json, table.md, report.html

What is there is not run again. An arm that was interrupted begins anew.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core import wire
from aurora_core.bench.machine import describe_machine
from aurora_core.controller.run_directory import replace_file
from aurora_core.errors import ConfigError
from aurora_core.experiments.arm_run import Sending, run_arm
from aurora_core.experiments.arms import ARMS, Arm, champion_of, clear_away, configure, lay_out
from aurora_core.experiments.page import render_page
from aurora_core.experiments.results import ArmResult, read_result, write_result
from aurora_core.experiments.served_run import as_server
from aurora_core.experiments.streams import STREAMS, StreamName, first_prompts, stream_prompts
from aurora_core.experiments.summary import StreamSummary, summarise_stream
from aurora_core.experiments.table import as_markdown

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins

PRETRAINED = "pretrained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the experiment is. Equal for everything in one output folder."""

    domains: tuple[str, ...]
    """In the order in which an ordered stream goes through them; pretrained on the first."""
    requests_per_domain: int
    max_tokens: int
    concurrency: int
    pretrain_requests: int
    window: int
    reference_every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which parts are to be run now; others are left for later."""

    arms: tuple[str, ...]
    streams: tuple[StreamName, ...]
    seeds: tuple[int, ...]


class ShiftExperiment:
    """One output folder."""

    def __init__(
        self,
        out: Path,
        config: RunConfig,
        plugins: Plugins,
        scale: Scale,
        *,
        pretrained: Path | None = None,
        note: Callable[[str], None] = print,
    ) -> None:
        """Open the folder.

        Args:
            out: of all results.
            config: of every arm, up to what makes the arms differ.
            plugins: loaded plugins.
            scale: sizes.
            pretrained: directory of a run that was trained on the first domain; every seed begins
                with it. Without one, each seed pretrains its own.
            note: told in a sentence what is done.

        Raises:
            ConfigError: the folder holds results with other settings, or cannot be written, or
                there is no such domain, or the run named left no drafter.
        """
        self.out, self.config, self.plugins, self.scale = out, config, plugins, scale
        self._given, self._note = pretrained, note
        stream_prompts("ordered", scale.domains, requests_per_domain=1, seed=0)
        if pretrained is not None:
            champion_of(pretrained)
        self._check_settings()

    def run(self, wanted: Wanted) -> list[StreamSummary]:
        """Run what is wanted and not there yet, then sum up everything that is.

        Raises:
            ConfigError: there is no such arm.
            AuroraError: an arm cannot be run.
        """
        unknown = [name for name in wanted.arms if name not in ARMS]
        if unknown:
            raise ConfigError(f"there is no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
        for seed in wanted.seeds:
            for stream in wanted.streams:
                for name, arm in ARMS.items():
                    if name in wanted.arms and read_result(self._path(name, stream, seed)) is None:
                        self._run_arm(arm, stream, seed)
                        self.sum_up(draw=False)
        return self.sum_up()

    def sum_up(self, *, draw: bool = True) -> list[StreamSummary]:
        """Write summary.json and table.md from the results that are there.

        Args:
            draw: whether report.html is drawn too, which takes some seconds.

        Raises:
            ConfigError: a result cannot be read, or the folder not be written.
        """
        summaries = []
        for stream in STREAMS:
            results = self._results(stream)
            if any(results.values()):
                summaries.append(summarise_stream(stream, results, window=self.scale.window))
        settings = self._settings()
        document = {
            "settings": settings,
            "machine": describe_machine(),
            "streams": [wire.to_dict(one) for one in summaries],
        }
        with _writable(self.out):
            replace_file(self.out / "summary.json", json.dumps(document, indent=1) + "\n")
            replace_file(self.out / "table.md", as_markdown(summaries))
            if draw:
                replace_file(self.out / "report.html", render_page(summaries, settings))
        return summaries

    def _run_arm(self, arm: Arm, stream: StreamName, seed: int) -> None:
        pretrained = None if arm.begins_with == "nothing" else self._pretrained(seed)
        path = self._path(arm.name, stream, seed)
        run_dir = path.with_suffix("")
        lay_out(arm, run_dir, pretrained=pretrained)
        prompts = stream_prompts(
            stream,
            self.scale.domains,
            requests_per_domain=self.scale.requests_per_domain,
            seed=seed,
        )
        self._note(f"{stream}, seed {seed}, {arm.label}: {len(prompts)} requests")
        result = asyncio.run(
            run_arm(
                as_server(configure(arm, self.config), self.plugins, run_dir=run_dir, seed=seed),
                prompts,
                self._sending(arm),
                arm=arm.name,
                stream=stream,
                seed=seed,
            )
        )
        write_result(path, result)
        clear_away(run_dir)
        self._note(f"{stream}, seed {seed}, {arm.label}: done in {result.wall_s:.0f} s")

    def _pretrained(self, seed: int) -> Path:
        """Return the run that arms begin with; train it first unless that was done."""
        if self._given is not None:
            return self._given
        folder = self.out / f"seed-{seed}"
        run_dir, done = folder / PRETRAINED, folder / f"{PRETRAINED}.json"
        if read_result(done) is not None:
            champion_of(run_dir)
            return run_dir
        arm = ARMS["scratch"]
        lay_out(arm, run_dir, pretrained=None)
        prompts = first_prompts(
            self.scale.domains[0],
            num_prompts=self.scale.pretrain_requests,
            requests_per_domain=self.scale.requests_per_domain,
            seed=seed,
        )
        self._note(f"seed {seed}: pretraining on {len(prompts)} requests of {prompts[0].domain}")
        result = asyncio.run(
            run_arm(
                as_server(self.config, self.plugins, run_dir=run_dir, seed=seed),
                prompts,
                self._sending(arm),
                arm=PRETRAINED,
                stream="ordered",
                seed=seed,
            )
        )
        champion_of(run_dir)
        write_result(done, result)
        return run_dir

    def _sending(self, arm: Arm) -> Sending:
        scale = self.scale
        return Sending(
            concurrency=scale.concurrency,
            max_tokens=scale.max_tokens,
            reference_every=scale.reference_every,
            records=arm.learns,
        )

    def _results(self, stream: StreamName) -> dict[str, list[ArmResult]]:
        found: dict[str, list[ArmResult]] = {name: [] for name in ARMS}
        for name in ARMS:
            for seed in sorted(_seeds(self.out)):
                result = read_result(self._path(name, stream, seed))
                if result is not None:
                    found[name].append(result)
        return found

    def _path(self, arm: str, stream: StreamName, seed: int) -> Path:
        return self.out / f"seed-{seed}" / stream / f"{arm}.json"

    def _settings(self) -> dict[str, object]:
        config = self.config.model_dump(mode="json", exclude={"run_dir", "seed", "traffic"})
        return {
            "scale": wire.to_dict(self.scale),
            "pretrained": None if self._given is None else str(self._given),
            "config": config,
        }

    def _check_settings(self) -> None:
        path, settings = self.out / "settings.json", self._settings()
        with _writable(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                replace_file(path, json.dumps(settings, indent=1) + "\n")
                return
            try:
                found = json.loads(path.read_text("utf-8"))
            except ValueError as error:
                raise ConfigError(
                    f"{str(path)!r} cannot be read; use another folder for --out"
                ) from error
        if found != json.loads(json.dumps(settings)):
            differing = [key for key in settings if found.get(key) != settings[key]]
            scale = asdict(self.scale)
            differing += [
                f"scale.{key}"
                for key in scale
                if "scale" in differing and found["scale"].get(key) != _plain(scale[key])
            ]
            raise ConfigError(
                f"{str(self.out)!r} holds results with other settings ({', '.join(differing)}); "
                "give the same again, or another folder for --out"
            )


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _seeds(out: Path) -> Iterator[int]:
    for folder in out.glob("seed-*"):
        number = folder.name.removeprefix("seed-")
        if number.isdecimal():
            yield int(number)


class _writable:
    """Make a disk that fails the user's to mend."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise ConfigError(
                f"the results cannot be written to {str(self._folder)!r}: {error.strerror}"
            ) from error
