"""`aurora compare` and `aurora export`: versions side by side, and taken elsewhere."""

from __future__ import annotations

import dataclasses
import json
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from aurora_core.cli.judging import RunDirectory, load_plugins
from aurora_core.cli.versions import DEFAULT_RUN_DIRECTORY

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.interfaces import Speculator
    from aurora_core.plugins import Plugins


def compare(
    versions: Annotated[
        list[int], typer.Argument(min=1, metavar="VERSION...", help="Numbers, two or more.")
    ],
    run_dir: RunDirectory = DEFAULT_RUN_DIRECTORY,
    traces: Annotated[int, typer.Option(min=1, help="Newest held-out traces to replay.")] = 64,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Of the bounds, over resampled traces.")
    ] = 0.9,
    otps: Annotated[
        bool,
        typer.Option("--otps", help="Measure output tokens per second as well, on this machine."),
    ] = False,
    num_prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts for --otps.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt.")] = 96,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a run's held-out traces through its versions: acceptance by position, with bounds."""
    from aurora_core.comparison import as_text, compare_versions
    from aurora_core.errors import ConfigError
    from aurora_core.explain import read_config

    numbers = list(dict.fromkeys(versions))
    config = read_config(run_dir).model_copy(update={"run_dir": run_dir})
    plugins = load_plugins(config.plugins)
    if len(numbers) < 2:
        raise ConfigError("give two versions or more to compare, as in `aurora compare 3 7`")
    found = compare_versions(
        config, plugins, numbers, num_traces=traces, confidence=confidence, seed=config.seed
    )
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        print(as_text(found))
    if otps:
        from aurora_core.bench import bench_command
        from aurora_core.controller.serve_only import serve_only

        for number in numbers:
            print(f"\nversion {number}")
            bench_command(
                serve=partial(serve_only, config, plugins, version=number),
                batch_sizes=(1,),
                num_prompts=num_prompts,
                max_tokens=max_tokens,
                domains=list(config.traffic.domains) if config.traffic else None,
                seed=config.seed,
            )


def export(
    version: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Its number.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New, or empty.")],
    run_dir: RunDirectory = DEFAULT_RUN_DIRECTORY,
    wanted: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="Of the speculator; an engine's without it."),
    ] = None,
) -> None:
    """Write a version to where another engine loads it from, checked against its checksum."""
    from aurora_core.explain import read_config
    from aurora_core.exporting import export_version
    from aurora_core.versions import VersionStore

    config = read_config(run_dir)
    plugins = load_plugins(config.plugins)
    speculator = cast("type[Speculator]", plugins.resolve("speculators", config.speculator.name))
    store = VersionStore(run_dir / "versions")
    chosen = export_version(
        store,
        version,
        folder,
        formats=speculator.formats,
        wanted=wanted,
        converters={
            layout: partial(_convert, config, plugins, layout)
            for layout in speculator.export_formats
        },
    )
    print(f"version {version} lies in {folder}, in the format {chosen}")
    command = speculator.serving_command(
        folder,
        layout=chosen,
        target=_place_of(config.target),
        num_speculative_tokens=config.num_speculative_tokens,
    )
    if command:
        print(f"an engine without Aurora serves it by:\n  {shlex.join(command)}")


def _place_of(target: str) -> str:
    """Return a run's target as an engine without Aurora finds it."""
    from aurora_core.target.pull import QUICKSTART, pull_target

    return str(pull_target(target, offline=True)) if target == QUICKSTART else target


def _convert(
    config: RunConfig, plugins: Plugins, layout: str, checkpoint: Path, folder: Path
) -> None:
    """Let the speculator of a run write a checkpoint in another layout."""
    from aurora_core.components import build_component
    from aurora_core.target.pull import pull_target
    from aurora_core.target.spec import read_target_spec

    target = read_target_spec(pull_target(config.target), name=config.target)
    speculator = build_component(plugins, "speculators", config.speculator, target=target)
    speculator.export(
        checkpoint,
        folder,
        layout=layout,
        num_speculative_tokens=config.num_speculative_tokens,
    )
