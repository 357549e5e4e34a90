"""`aurora bench` and `aurora replay`: sending prompts to a server and measuring the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aurora_core.cli.run import ConfigPath, Overrides, PluginNames, load
from aurora_core.errors import ConfigError

if TYPE_CHECKING:
    from aurora_core.bench.command import Serve
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins

DEFAULT_URL = "http://127.0.0.1:8000"


class Order(StrEnum):
    """How the generator's domains follow each other."""

    mixed = "mixed"
    ordered = "ordered"


class Split(StrEnum):
    """Sides of the held-out split."""

    train = "train"
    holdout = "holdout"


Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help="JSONL file; without it, the generator."),
]
Domains = Annotated[
    list[str] | None,
    typer.Option("--domain", metavar="NAME", help="Domain of the generator; repeat it for more."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Model to ask for; the first one served if not."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write results as JSON.")]


def replay(
    url: Annotated[
        str, typer.Option(metavar="URL", help="Base URL of an OpenAI-compatible server.")
    ] = DEFAULT_URL,
    prompts: Prompts = None,
    domain: Domains = None,
    order: Annotated[Order, typer.Option(help="Of the generator's domains.")] = Order.mixed,
    split: Annotated[
        Split | None, typer.Option(help="Side of the held-out split; whole files without it.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="How many; the whole file, or 100 generated ones, without it."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight at once.")] = 4,
    rate: Annotated[
        float | None, typer.Option(help="Mean requests per second; unlimited without it.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per request.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus sampling.")] = 1.0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For one answer.")] = 300.0,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, arrivals and sampling.")] = 0,
    model: Model = None,
    record: Annotated[
        bool | None,
        typer.Option("--record/--no-record", help="Whether Aurora's engine may write traces."),
    ] = None,
    out: Out = None,
    keep_text: Annotated[
        bool, typer.Option("--keep-text", help="Write the answers into the results as well.")
    ] = False,
) -> None:
    """Send prompts to a server and sum up speed and acceptance; Ctrl-C ends it early."""
    from aurora_core.traffic.replay import replay_command

    replay_command(
        url,
        prompts=prompts,
        domains=domain,
        order=order.value,
        split=split.value if split is not None else None,
        requests=requests,
        concurrency=concurrency,
        rate=rate,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        timeout_s=timeout,
        seed=seed,
        model=model,
        record=record,
        out=out,
        keep_text=keep_text,
    )


def bench(
    config: ConfigPath = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Measure this running engine and start none."),
    ] = None,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Requests at once; repeat it. 1, 8, 16 and 32 without it."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Pairs of runs, at least.")] = 3,
    num_prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts.")] = 32,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt.")] = 128,
    prompts: Prompts = None,
    domain: Domains = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    version: Annotated[
        int | None,
        typer.Option("--draft-version", min=1, help="Drafter to measure; the live one if not."),
    ] = None,
    model: Model = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For one answer.")] = 600.0,
    out: Out = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME: {KEY.PATH: VALUE}",
            help="Measure CONFIG with these settings as well, interleaved; repeat it for more.",
        ),
    ] = None,
    plugin: PluginNames = None,
    override: Overrides = None,
) -> None:
    """Measure the drafter that a run has left against no speculation, interleaved."""
    from aurora_core.bench import bench_command

    sizes = tuple(batch_size or (1, 8, 16, 32))
    serve: Serve | None = None
    variants: dict[str, Serve] | None = None
    if url is None:
        from aurora_core.controller.serve_only import serve_only

        settings, plugins = load(config, plugin or (), override or ())
        if domain is None and prompts is None and settings.traffic is not None:
            domain = list(settings.traffic.domains)

        def server(chosen: RunConfig) -> Serve:
            roomy = with_room(chosen, plugins, max(sizes))
            return partial(serve_only, roomy, plugins, version=version)

        serve = server(settings)
        if variant:
            variants = {settings.speculator.name: serve}
            for name, overrides in read_variants(variant, taken=settings.speculator.name).items():
                changed, _ = load(config, plugin or (), [*(override or ()), *overrides])
                variants[name] = server(changed)
            serve = None
    elif variant:
        raise ConfigError(
            "--variant needs engines that the benchmark starts itself, so leave --url out"
        )
    bench_command(
        url,
        serve=serve,
        variants=variants,
        batch_sizes=sizes,
        repeats=repeats,
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        prompts=prompts,
        domains=domain,
        seed=seed,
        drafter="live" if version is None or url is None else version,
        model=model,
        timeout_s=timeout,
        out=out,
    )


def read_variants(texts: Sequence[str], *, taken: str) -> dict[str, list[str]]:
    """Return name -> overrides in the form of `--set`, from the values of `--variant`.

    Args:
        texts: YAML mappings of one name to its settings, each by its path.
        taken: name of the configuration without any of them.

    Raises:
        ConfigError: another form, or a name that stands for two.
    """
    from aurora_core import config_source

    variants: dict[str, list[str]] = {}
    for text in texts:
        named = config_source.parse(text, f"--variant {text!r}")
        [(name, settings)] = named.items() if len(named) == 1 else [("", None)]
        if not isinstance(settings, dict) or not settings:
            raise ConfigError(
                f"--variant {text!r} is not one name with its settings, for example "
                "'tree: {speculator.tree_width: 2}'"
            )
        if name == taken or name in variants:
            raise ConfigError(f"--variant {text!r}: the name {name!r} is taken; choose another")
        variants[str(name)] = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return variants


def with_room(settings: RunConfig, plugins: Plugins, batch_size: int) -> RunConfig:
    """Let the engine decode that many requests together, unless the user limits it."""
    option = "max_running_requests"
    backend = settings.backend
    known = plugins.resolve("backends", backend.name).Config.model_fields
    if option not in known or option in backend.options:
        return settings
    if batch_size <= known[option].get_default():
        return settings
    roomy = backend.model_copy(update={option: batch_size})
    return settings.model_copy(update={"backend": roomy})
