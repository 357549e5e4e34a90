"""`aurora experiment`: whole runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aurora_core.cli.run import ConfigPath, Overrides, PluginNames, load
from aurora_core.cli.versions import DEFAULT_RUN_DIRECTORY

if TYPE_CHECKING:
    from aurora_core.experiments.streams import StreamName

application = typer.Typer(help="Run whole experiments.", no_args_is_help=True)

OutFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder of the results; resumed if there.")
]


@application.callback()
def _experiment() -> None:
    """Keep every experiment a command of its own."""


@application.command()
def shift(
    config: ConfigPath = None,
    out: OutFolder = Path("results/shift"),
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="none, ngram, static, always, gate, scratch; all without it."
        ),
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="ordered, mixed; both without it.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Repeat it; 0, 1 and 2 without it.")
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="In the order of the ordered stream; all without it."),
    ] = None,
    requests_per_domain: Annotated[int, typer.Option(min=2, help="In every stream.")] = 300,
    max_tokens: Annotated[int, typer.Option(min=2, help="Output tokens per request.")] = 96,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight at once.")] = 2,
    pretrain_requests: Annotated[
        int, typer.Option(min=1, help="Of the first domain, before the streams.")
    ] = 400,
    pretrained: Annotated[
        Path | None,
        typer.Option(metavar="RUN_DIR", help="Begin with this run's drafter and train none."),
    ] = None,
    window: Annotated[int, typer.Option(min=2, help="Requests of a window of the curves.")] = 50,
    reference_every: Annotated[
        int, typer.Option(min=0, help="Requests for each one without speculation; 0: none.")
    ] = 25,
    plugin: PluginNames = None,
    override: Overrides = None,
) -> None:
    """Send the same changing traffic to six arms: what is adapting worth, and what does it cost?"""
    from aurora_core.errors import ConfigError
    from aurora_core.experiments.arms import ARMS
    from aurora_core.experiments.shift import Scale, ShiftExperiment, Wanted
    from aurora_core.experiments.streams import STREAMS
    from aurora_core.experiments.table import as_markdown
    from aurora_core.traffic.prompts import DOMAINS

    settings, plugins = load(config, plugin or (), override or ())
    streams: dict[str, StreamName] = {name: name for name in STREAMS}
    unknown = [name for name in stream or () if name not in streams]
    if unknown:
        raise ConfigError(f"there is no stream {unknown[0]!r}; there are {', '.join(streams)}")
    experiment = ShiftExperiment(
        out,
        settings,
        plugins,
        Scale(
            # Beginning with what the quickstart is trained on.
            domains=tuple(domain or sorted(DOMAINS, key=lambda name: name != "sql")),
            requests_per_domain=requests_per_domain,
            max_tokens=max_tokens,
            concurrency=concurrency,
            pretrain_requests=pretrain_requests,
            window=window,
            reference_every=reference_every,
        ),
        pretrained=pretrained,
    )
    wanted = Wanted(
        arms=tuple(arm or ARMS),
        streams=tuple(streams[name] for name in stream or STREAMS),
        seeds=tuple(seed or (0, 1, 2)),
    )
    print(as_markdown(experiment.run(wanted)))


SourceRun = Annotated[
    Path, typer.Option("--source", metavar="RUN_DIR", help="Run whose versions are served.")
]


@application.command()
def storm(
    config: ConfigPath = None,
    source: SourceRun = DEFAULT_RUN_DIRECTORY,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="New folder, for results and the run.")
    ] = Path("results/storm"),
    storms: Annotated[int, typer.Option(min=1, help="Phases with swaps.")] = 5,
    phase: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Of each phase.")] = 60.0,
    swap_every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Between two swaps.")
    ] = 5.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight at once.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Output tokens per request.")] = 96,
    num_prompts: Annotated[int, typer.Option(min=1, help="Different prompts.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    plugin: PluginNames = None,
    override: Overrides = None,
) -> None:
    """Swap every few seconds while requests decode, in turns with quiet: what do clients notice?"""
    import asyncio

    from aurora_core import wire
    from aurora_core.experiments.storm import storm as run_storm
    from aurora_core.experiments.storm_report import StormPlan, as_markdown
    from aurora_core.traffic.results import write_json

    settings, plugins = load(config, plugin or (), override or ())
    plan = StormPlan(
        phase_s=phase,
        num_storms=storms,
        swap_every_s=swap_every,
        concurrency=concurrency,
        max_tokens=max_tokens,
        num_prompts=num_prompts,
        seed=seed,
    )
    report = asyncio.run(run_storm(settings, plugins, plan, source=source, run_dir=out / "run"))
    write_json(out / "storm.json", wire.to_dict(report))
    print(as_markdown(report))


@application.command("random")
def random_text(
    config: ConfigPath = None,
    source: SourceRun = DEFAULT_RUN_DIRECTORY,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of results and both runs.")
    ] = Path("results/random"),
    requests: Annotated[int, typer.Option(min=1, help="Prompts, each asked of both.")] = 200,
    max_tokens: Annotated[int, typer.Option(min=2, help="Output tokens per request.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="The higher, the more random the answers.")
    ] = 2.0,
    domain: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of the prompts; random without it.")
    ] = None,
    guard: Annotated[
        bool, typer.Option("--guard/--no-guard", help="Whether speculation may be switched off.")
    ] = True,
    controls: Annotated[
        int, typer.Option(min=0, help="Prompts asked again, without drafts on either.")
    ] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and sampling.")] = 0,
    plugin: PluginNames = None,
    override: Overrides = None,
) -> None:
    """Ask a server with a drafter and one without for random text: what does speculation cost?"""
    import asyncio

    from aurora_core import wire
    from aurora_core.experiments.unpredictable import as_markdown, measure_loss
    from aurora_core.traffic.results import write_json

    settings, plugins = load(config, plugin or (), override or ())
    report = asyncio.run(
        measure_loss(
            settings,
            plugins,
            source=source,
            folder=out,
            num_requests=requests,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            guarded=guard,
            num_controls=controls,
            domains=tuple(domain or ("random",)),
        )
    )
    write_json(out / ("guarded.json" if guard else "unguarded.json"), wire.to_dict(report))
    print(as_markdown(report))


@application.command()
def poison(
    config: ConfigPath = None,
    source: SourceRun = DEFAULT_RUN_DIRECTORY,
    out: OutFolder = Path("results/poison"),
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="gate, canary, always; all without it."),
    ] = None,
    learner: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="honest, lying; both without it.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="noise, noise on top, shuffled, turned round, zeros; all without it.",
        ),
    ] = None,
    watch: Annotated[
        int, typer.Option(min=1, help="Requests after each publication, at least.")
    ] = 24,
    most: Annotated[
        int, typer.Option(min=1, help="Requests after which a case is left as it is.")
    ] = 200,
    warm_up: Annotated[
        int, typer.Option(min=1, help="Requests before the first publication.")
    ] = 16,
    canary_share: Annotated[
        float, typer.Option(min=0.01, max=0.5, help="Of the requests, on trial.")
    ] = 0.3,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight at once.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=2, help="Output tokens per request.")] = 48,
    num_prompts: Annotated[int, typer.Option(min=1, help="Different prompts.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and noise.")] = 0,
    plugin: PluginNames = None,
    override: Overrides = None,
) -> None:
    """Publish spoiled versions of a run's champion on purpose: does any stay live, and how long?"""
    import asyncio

    from aurora_core.experiments.poison import PoisonExperiment
    from aurora_core.experiments.poison_report import (
        ARMS,
        LEARNERS,
        PoisonPlan,
        Wanted,
        as_markdown,
    )
    from aurora_core.experiments.poisoned_weights import POISONS

    settings, plugins = load(config, plugin or (), override or ())
    wanted = Wanted(
        arms=_known("arm", arm, ARMS),
        learners=_known("learner", learner, LEARNERS),
        poisons=_known("kind", kind, POISONS),
    )
    plan = PoisonPlan(
        concurrency=concurrency,
        max_tokens=max_tokens,
        num_prompts=num_prompts,
        warm_up=warm_up,
        watch=watch,
        most=most,
        canary_share=canary_share,
        seed=seed,
    )
    experiment = PoisonExperiment(settings, plugins, plan, source=source, folder=out)
    text = as_markdown(asyncio.run(experiment.run(wanted)))
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def _known(what: str, names: list[str] | None, all_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in their own order, all of them if none is given.

    Raises:
        ConfigError: there is no such name.
    """
    from aurora_core.errors import ConfigError

    for name in names or ():
        if name not in all_names:
            raise ConfigError(f"there is no {what} {name!r}; there are {', '.join(all_names)}")
    return tuple(name for name in all_names if names is None or name in names)
