"""What recording traces costs: the same steps of the same requests with it and without.

    PYTHON plugins/backend_vllm/benchmarks/recording.py --target TARGET --versions RUN/versions

`stock` takes Aurora's observers off vLLM's runner; `recorded` leaves a trace of every request, with
its file. Rounds alternate. Both arms draft and decode alike, so that step by step they do the same
work: the figures are sums over the steps of one round, each step the median over all rounds, and
for the second overhead the fastest of them, which other work of the machine disturbs less.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from stepped_engine import Step, SteppedEngine, argument_parser

OBSERVED = (
    "execute_model",
    "sample_tokens",
    "propose_draft_token_ids",
    "take_draft_token_ids",
)
"""Methods of the runner that the recorder stands before."""


def main() -> None:
    """Measure and print a table."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=48)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = SteppedEngine(
            arguments, Path(folder), max_running_requests=max(arguments.batch_sizes)
        )
        print(
            f"{arguments.dtype}, {arguments.num_speculative_tokens} draft tokens, "
            f"{arguments.rounds} rounds"
        )
        print(
            "| requests | steps | stock, ms | recorded, ms | overhead | overhead of the fastest | "
            "recorder's own count |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for batch_size in arguments.batch_sizes:
            for row in measure(engine, batch_size, arguments.rounds, arguments.new_tokens):
                print(row, flush=True)
        engine.call("shutdown")


class Observers:
    """Puts the recorder's methods before the runner's own, or takes them away."""

    def __init__(self, runner: Any) -> None:
        """
        Args:
            runner: vLLM's model runner, observed.
        """
        self._runner = runner
        self._methods = {name: runner.__dict__[name] for name in OBSERVED}

    def set(self, *, present: bool) -> None:
        """Change it, while no request runs."""
        for name, method in self._methods.items():
            if present:
                self._runner.__dict__[name] = method
            else:
                self._runner.__dict__.pop(name, None)


def measure(engine: SteppedEngine, batch_size: int, rounds: int, new_tokens: int) -> list[str]:
    """Return rows of the table at one number of requests; the first round is left out."""
    observers = Observers(engine.worker.model_runner)
    recorder = engine.worker._aurora_recorder
    prompts = engine.prompts(batch_size)
    arms: dict[bool, list[list[Step]]] = {False: [], True: []}
    shares: list[float] = []
    for number in range(rounds + 1):
        for recorded in (False, True) if number % 2 else (True, False):
            observers.set(present=recorded)
            before = recorder.recording_s, recorder.step_s
            for prompt in prompts:
                # Prompts are read anew in every round: recording their rows is part of the cost.
                engine.add(prompt, max_tokens=new_tokens, cache_salt=f"{number} {recorded}")
            steps = engine.run()
            if number:
                arms[recorded].append(steps)
            if number and recorded:
                spent = recorder.recording_s - before[0]
                shares.append(spent / (recorder.step_s - before[1]))
    observers.set(present=True)
    stock = each_step(arms[False], statistics.median)
    with_traces = each_step(arms[True], statistics.median)
    fastest = each_step(arms[False], min), each_step(arms[True], min)
    if len(stock) != len(with_traces):
        raise RuntimeError(f"the arms took {len(stock)} and {len(with_traces)} steps: not the same")
    kinds = [step.is_decoding for step in arms[False][0]]
    rows = []
    for name, chosen in (
        ("all", [True] * len(kinds)),
        ("decoding", kinds),
        ("with prompts or ends", [not kind for kind in kinds]),
    ):
        without, recorded_ms = total(stock, chosen), total(with_traces, chosen)
        least = total(fastest[1], chosen) / total(fastest[0], chosen) - 1
        own = f"{statistics.median(shares):.2%}" if name == "all" else ""
        rows.append(
            f"| {batch_size} | {name}: {sum(chosen)} | {without:.1f} | {recorded_ms:.1f} | "
            f"{recorded_ms / without - 1:+.2%} | {least:+.2%} | {own} |"
        )
    return rows


def total(steps: Sequence[float], chosen: Sequence[bool]) -> float:
    """Return the sum over the chosen steps."""
    return sum(one for one, keep in zip(steps, chosen, strict=True) if keep)


def each_step(
    rounds: Sequence[Sequence[Step]], choose: Callable[[Iterable[float]], float]
) -> list[float]:
    """Return one figure over all rounds for each step, in milliseconds.

    Raises:
        RuntimeError: rounds are of different lengths, so their steps are not the same work.
    """
    if len({len(steps) for steps in rounds}) > 1:
        raise RuntimeError("the rounds took different numbers of steps")
    return [1000 * choose([step.seconds for step in same]) for same in zip(*rounds, strict=True)]


if __name__ == "__main__":
    main()
