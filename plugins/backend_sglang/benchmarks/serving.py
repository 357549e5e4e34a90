"""A version's speed on SGLang beside plain SGLang, what recording costs, and whether all agree.

    python plugins/backend_sglang/benchmarks/serving.py RUN.yaml --set run_dir=DIR --version 3

Three servers are up: one that records, one that does not, and one without speculation or any of
Aurora. Every round sends the same prompts to every arm in turn, each time beginning with another
arm, and the others stand idle meanwhile. Figures are medians over rounds; every answer of every arm
must have the same tokens. Prefix caches are off: a prompt that comes again is read again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from servers import NO_DRAFTS, Answer, aurora_server, plain_server, read_run
from transformers import AutoTokenizer

from aurora_core.traffic.prompts import open_prompts

Arm = Callable[[Sequence[Sequence[int]]], Awaitable[list[Answer]]]


async def measure(settings: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and return the figures."""
    parts, directory = read_run(settings.config, settings.set)
    version = directory.store.verify(settings.version)
    prompts = read_prompts(parts.target.path, parts.config, settings)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        changes = {"prefix_cache": False}
        servers = (
            aurora_server(parts, directory, folder / "a", version=version, **changes),
            aurora_server(parts, directory, folder / "b", version=version, record=False, **changes),
            plain_server(parts, directory, folder / "c", **changes),
        )
        async with asyncio.TaskGroup() as starting:
            started = [starting.create_task(stack.enter_async_context(one)) for one in servers]
        recorded, unrecorded, plain = (task.result() for task in started)
        num_tokens = settings.max_tokens
        arms: dict[str, Arm] = {
            "recorded": lambda batch: recorded.generate_all(batch, num_tokens),
            "unrecorded": lambda batch: unrecorded.generate_all(batch, num_tokens),
            "without drafts": lambda batch: recorded.generate_all(batch, num_tokens, NO_DRAFTS),
            "plain SGLang": lambda batch: plain.generate_all(batch, num_tokens),
        }
        for arm in arms.values():
            await arm(prompts[:1])
        rounds = []
        for number in range(0, len(prompts), settings.batch_size):
            batch = prompts[number : number + settings.batch_size]
            names = list(arms)
            first = (number // settings.batch_size) % len(names)
            rounds.append({name: await arms[name](batch) for name in names[first:] + names[:first]})
        assert recorded.backend is not None
        report = await recorded.backend.report()
        return {
            "num_rounds": len(rounds),
            "batch_size": settings.batch_size,
            "max_tokens": num_tokens,
            "version": version.version,
            "same_tokens": sum(same_tokens(one) for one in rounds),
            "traces_kept": report.sink.kept,
            "faults": report.num_faults,
            "tokens_per_s": {name: median_speed(rounds, name) for name in arms},
            "recorded / unrecorded": ratios(rounds, "recorded", "unrecorded"),
            "speculative / plain SGLang": ratios(rounds, "unrecorded", "plain SGLang"),
            "speculative / without drafts": ratios(rounds, "recorded", "without drafts"),
            "without drafts / plain SGLang": ratios(rounds, "without drafts", "plain SGLang"),
            "acceptance_length": acceptance(rounds, "recorded"),
            "memory_mib": {
                "recorded": recorded.memory_mib,
                "unrecorded": unrecorded.memory_mib,
                "plain SGLang": plain.memory_mib,
            },
        }


def read_prompts(target: str, config: Any, settings: argparse.Namespace) -> list[list[int]]:
    """Return held-out prompts of the run's traffic, as token ids."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    domains = config.traffic.domains if config.traffic else None
    source = open_prompts(None, domains=domains, seed=config.seed, split="holdout")
    prompts = []
    for prompt, _ in zip(source.prompts(), range(settings.num_prompts), strict=False):
        text = tokenizer.apply_chat_template(
            prompt.as_messages(), tokenize=False, add_generation_prompt=True
        )
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return prompts


def same_tokens(one: dict[str, list[Answer]]) -> bool:
    """Return whether all arms of a round answered alike."""
    return len({tuple(answer.token_ids for answer in answers) for answers in one.values()}) == 1


def speed(answers: Sequence[Answer]) -> float:
    """Return the mean over requests of tokens per second, the prompt's time included."""
    return statistics.fmean(len(answer.token_ids) / answer.wall_s for answer in answers)


def median_speed(rounds: Sequence[dict[str, list[Answer]]], name: str) -> float:
    """Return the median over rounds of an arm's speed."""
    return statistics.median(speed(one[name]) for one in rounds)


def ratios(rounds: Sequence[dict[str, list[Answer]]], name: str, other: str) -> list[float]:
    """Return the least, the median and the greatest ratio of two arms' speeds over the rounds."""
    found = [speed(one[name]) / speed(one[other]) for one in rounds]
    return [min(found), statistics.median(found), max(found)]


def acceptance(rounds: Sequence[dict[str, list[Answer]]], name: str) -> float:
    """Return the acceptance length of an arm over all steps."""
    answers = [answer for one in rounds for answer in one[name]]
    num_steps = sum(answer.num_steps for answer in answers)
    return 1 + sum(answer.num_accepted for answer in answers) / num_steps


def main() -> None:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=48)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
