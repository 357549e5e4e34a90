"""What the values of `stale_draft_cache` cost: swaps under load, with each of them in turn.

    PYTHON plugins/backend_vllm/benchmarks/stale_rows.py --target TARGET --versions RUN/versions

Requests come as others end, and every so many steps the next version goes live, as in the run that
made them. Each arm begins with the first version and an empty cache. The wait at a swap is that of
the slowest request that ran then, until its next token; `between` is an ordinary decoding step.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepped_engine import Step, SteppedEngine, argument_parser

from aurora_core.records import RequestStats

VALUES = ("salt", "reprefill", "keep")

SYSTEM_PROMPT = " ".join(
    f"Rule {number}: answer with one statement, name every column, and use no vendor's dialect."
    for number in range(1, 17)
)
"""What requests share with `--shared-prefix`: a little over 300 tokens."""


def main() -> None:
    """Measure and print a table."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--steps-per-version", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--values", nargs="+", choices=VALUES, default=VALUES)
    parser.add_argument("--shared-prefix", nargs="+", choices=["no", "yes"], default=["no", "yes"])
    arguments = parser.parse_args()
    print(f"{arguments.dtype}, {arguments.num_speculative_tokens} draft tokens")
    print(
        "| shared prefix | value | tokens/s | acceptance length | positions read | swaps | "
        "wait at a swap, median, longest, ms | between, ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        engine = SteppedEngine(arguments, Path(folder), max_running_requests=arguments.concurrency)
        rows = RowCounter(engine.worker.model_runner)
        for shared in arguments.shared_prefix:
            before = SYSTEM_PROMPT if shared == "yes" else ""
            prompts = engine.prompts(arguments.requests, before=before)
            values = list(arguments.values)
            arms: dict[str, list[Arm]] = {value: [] for value in values}
            for number in range(arguments.rounds):
                for value in values if number % 2 == 0 else values[::-1]:
                    load = LoadWithSwaps(engine, rows, value, arguments)
                    arms[value].append(load.serve(prompts))
            for value, rounds in arms.items():
                print(f"| {shared} | {value} | {describe(rounds)} |", flush=True)
        engine.call("shutdown")


@dataclass(slots=True, kw_only=True)
class Arm:
    """One pass over all prompts."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_rows: int = 0
    """Positions that the target read."""
    statistics: list[RequestStats] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Milliseconds from the beginning of a swap until all requests that ran then had a token."""
    between: list[float] = field(default_factory=list)
    """Milliseconds of decoding steps without a swap."""


class RowCounter:
    """Counts the positions that the target reads."""

    def __init__(self, runner: Any) -> None:
        """
        Args:
            runner: vLLM's model runner, observed by Aurora's recorder.
        """
        self.num_rows = 0
        self._execute_model = runner.execute_model
        runner.execute_model = self.execute_model

    def execute_model(self, scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        """Run the target."""
        self.num_rows += scheduler_output.total_num_scheduled_tokens
        return self._execute_model(scheduler_output, *arguments, **options)


class LoadWithSwaps:
    """Keeps the engine busy with one value of the option, and swaps on the way."""

    def __init__(
        self, engine: SteppedEngine, rows: RowCounter, value: str, arguments: Namespace
    ) -> None:
        """
        Args:
            engine: idle.
            rows: of that engine.
            value: of the option.
            arguments: of the command line.
        """
        self._engine, self._rows, self._value, self._arguments = engine, rows, value, arguments
        self._to_come = list(engine.versions)
        self._live = self._to_come.pop(0)
        self._running: list[str] = []
        self._swap_started = 0.0
        self._unanswered: dict[str, int] = {}
        """Request that ran at the last swap -> tokens it had."""

    def serve(self, prompts: Sequence[Sequence[int]]) -> Arm:
        """Answer all prompts."""
        engine, arguments, arm = self._engine, self._arguments, Arm()
        engine.swap(self._live)
        engine.engine.reset_prefix_cache()
        after = max((one.sequence for one in engine.statistics()), default=-1)
        self._rows.num_rows = 0
        started = time.perf_counter()
        waiting, number = list(prompts), 0
        while waiting or self._running:
            while waiting and len(self._running) < arguments.concurrency:
                self._add(waiting.pop(0))
            if number and number % arguments.steps_per_version == 0 and self._to_come:
                self._swap()
            elif number % arguments.steps_per_version == 1 and self._to_come:
                engine.stage(self._to_come[0])
            self._note(arm, engine.step())
            self._running = [name for name in self._running if not engine.answers[name].ended]
            number += 1
        engine.engine.step()  # tells the worker about the last ones that ended
        arm.seconds = time.perf_counter() - started
        arm.num_rows = self._rows.num_rows
        arm.statistics = engine.statistics(after)
        return arm

    def _add(self, prompt: Sequence[int]) -> None:
        salt = f"aurora-{self._live.version}" if self._value == "salt" else None
        self._running.append(
            self._engine.add(prompt, max_tokens=self._arguments.new_tokens, cache_salt=salt)
        )

    def _swap(self) -> None:
        answers = self._engine.answers
        self._unanswered = {
            name: len(answers[name].token_ids) for name in self._running if answers[name].token_ids
        }
        self._live = self._to_come.pop(0)
        self._swap_started = time.perf_counter()
        self._engine.go_live(self._live)
        if self._value == "reprefill":
            self._engine.engine.reset_prefix_cache(reset_running_requests=True)

    def _note(self, arm: Arm, step: Step) -> None:
        arm.num_tokens += step.num_tokens
        if not self._unanswered:
            if step.is_decoding:
                arm.between.append(1000 * step.seconds)
            return
        answers = self._engine.answers
        self._unanswered = {
            name: length
            for name, length in self._unanswered.items()
            if len(answers[name].token_ids) == length
        }
        if not self._unanswered:
            arm.waits.append(1000 * (time.perf_counter() - self._swap_started))


def describe(rounds: list[Arm]) -> str:
    """Return the columns of one value."""
    requests = [one for arm in rounds for one in arm.statistics]
    accepted = sum(sum(one.accepted_per_position) for one in requests)
    steps = sum(one.num_speculative_steps for one in requests)
    waits = [wait for arm in rounds for wait in arm.waits]
    speed = statistics.median(arm.num_tokens / arm.seconds for arm in rounds)
    return (
        f"{speed:.1f} | {1 + accepted / steps:.2f} | "
        f"{sum(arm.num_rows for arm in rounds) // len(rounds)} | {len(waits)} | "
        f"{statistics.median(waits):.0f}, {max(waits):.0f} | "
        f"{statistics.median(wait for arm in rounds for wait in arm.between):.0f}"
    )


if __name__ == "__main__":
    main()
