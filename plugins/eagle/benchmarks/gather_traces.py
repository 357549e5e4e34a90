"""Serve the built-in prompts with one drafter and keep every trace, rejected rows included.

    python plugins/eagle/benchmarks/gather_traces.py --target DIR --versions RUN/versions \\
        --version N --out SPOOL [--requests 400] [--set tree_width=3]...

The engine is the embedded one, over HTTP as in a run, and the drafter never changes, so all traces
are of one drafting policy. A second call with the same folder adds to it. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

import yaml

from aurora_core.components import build_component
from aurora_core.config import ComponentSection
from aurora_core.errors import AuroraError
from aurora_core.interfaces import ServePlan
from aurora_core.plugins import Plugins
from aurora_core.target.spec import read_target_spec
from aurora_core.traffic.driver import ReplayDriver, ReplaySettings
from aurora_core.traffic.endpoint import Endpoint
from aurora_core.traffic.prompts import generate
from aurora_core.versions import VersionStore

PLUGINS = ("eagle", "torch")


def main() -> None:
    """Gather and report; a mistake of the user ends with status 2 and one sentence."""
    try:
        print(json.dumps(asyncio.run(gather(_arguments()))))
    except AuroraError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error


async def gather(settings: argparse.Namespace) -> dict[str, object]:
    """Serve all prompts and return what was kept.

    Raises:
        AuroraError: the target, the version, an option or the engine cannot be used.
    """
    target = read_target_spec(settings.target)
    plugins = Plugins()
    plugins.load(PLUGINS)
    chosen = {
        key: yaml.safe_load(value) for key, _, value in (o.partition("=") for o in settings.set)
    }
    # Rejected rows are what this is for, whatever the objective that will read them.
    section = ComponentSection(name="eagle3", **({"objective": "branches"} | chosen))
    speculator = build_component(plugins, "speculators", section, target=target)
    sink_section = ComponentSection(
        name="spool", path=str(settings.out), max_age_s=1e9, max_bytes=8 << 30
    )
    sink = build_component(plugins, "trace_sinks", sink_section)
    sink.prepare()
    backend = build_component(
        plugins, "backends", ComponentSection(name="torch", num_threads=settings.num_threads)
    )
    before = sink.stats().num_traces
    started, failed = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(prefix="aurora-gather-") as scratch:
        plan = ServePlan(
            target=target,
            speculator="eagle3",
            speculator_options=speculator.options.model_dump(mode="json"),
            plugins=PLUGINS,
            needs=speculator.needs,
            num_speculative_tokens=settings.depth,
            versions_dir=str(settings.versions),
            initial_version=VersionStore(settings.versions).verify(settings.version),
            sink="spool",
            sink_options=sink.options.model_dump(mode="json"),
            run_dir=scratch,
            seed=settings.seed,
        )
        try:
            await backend.start(plan)
            async with Endpoint(backend.url) as endpoint:
                driver = ReplayDriver(
                    endpoint,
                    generate(settings.domains, seed=settings.seed, num_prompts=settings.requests),
                    ReplaySettings(
                        concurrency=settings.concurrency,
                        max_tokens=settings.max_tokens,
                        temperature=settings.temperature,
                        seed=settings.seed,
                        drafter="live",
                        record=True,
                    ),
                )
                async with contextlib.aclosing(driver.results()) as results:
                    async for result in results:
                        failed += not result.ok
        finally:
            await backend.stop()
    return {
        "traces": sink.stats().num_traces - before,
        "failed": failed,
        "seconds": round(time.perf_counter() - started, 1),
        "spool": str(settings.out),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", type=Path, required=True, help="target directory")
    parser.add_argument("--versions", type=Path, required=True, help="versions folder of a run")
    parser.add_argument("--version", type=int, required=True, help="drafter to serve with")
    parser.add_argument("--out", type=Path, required=True, help="spool folder")
    parser.add_argument("--set", action="append", default=[], help="option of the speculator")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--depth", type=int, default=5, help="draft tokens, at most")
    parser.add_argument("--domains", nargs="+", default=["sql"])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
