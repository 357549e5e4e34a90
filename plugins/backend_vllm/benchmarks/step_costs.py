"""What a step of vLLM costs with and without drafting: how much must be accepted to gain anything.

    PYTHON plugins/backend_vllm/benchmarks/step_costs.py --target TARGET --versions RUN/versions

The two arms alternate on the same prompts. The break-even acceptance length is the ratio of their
median steps: a drafter that is accepted less makes serving slower.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepped_engine import SteppedEngine, argument_parser


@dataclass(slots=True, kw_only=True)
class Costs:
    """Medians at one number of requests, in milliseconds."""

    batch_size: int
    plain: float
    speculative: float
    drafting: float
    tokens_per_step: float
    """Of each request in the speculative arm."""

    @property
    def break_even(self) -> float:
        """Acceptance length from which speculation gains."""
        return self.speculative / self.plain


def main() -> None:
    """Measure and print a table."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 3, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=32)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = SteppedEngine(
            arguments, Path(folder), max_running_requests=max(arguments.batch_sizes)
        )
        meter = DraftMeter(engine.worker.model_runner)
        print(
            f"{arguments.dtype}, {arguments.num_speculative_tokens} draft tokens, "
            f"{'compiled' if arguments.compiled else 'eager'}"
        )
        print(
            "| requests | plain step, ms | speculative step, ms | of which drafting | verifying "
            "and the rest | break-even acceptance length | tokens per step |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for batch_size in arguments.batch_sizes:
            costs = measure(engine, meter, batch_size, arguments.rounds, arguments.new_tokens)
            print(
                f"| {costs.batch_size} | {costs.plain:.1f} | {costs.speculative:.1f} | "
                f"{costs.drafting:.1f} | {costs.speculative - costs.drafting:.1f} | "
                f"{costs.break_even:.2f} | {costs.tokens_per_step:.2f} |",
                flush=True,
            )
        engine.call("shutdown")


class DraftMeter:
    """Times the drafter inside a step."""

    def __init__(self, runner: Any) -> None:
        """
        Args:
            runner: vLLM's model runner, observed by Aurora's recorder.
        """
        self.seconds = 0.0
        self._propose = runner.propose_draft_token_ids
        runner.propose_draft_token_ids = self.propose

    def propose(self, *arguments: Any, **options: Any) -> Any:
        """Draft."""
        started = time.perf_counter()
        proposed = self._propose(*arguments, **options)
        self.seconds = time.perf_counter() - started
        return proposed


def measure(
    engine: SteppedEngine, meter: DraftMeter, batch_size: int, rounds: int, new_tokens: int
) -> Costs:
    """Return the medians at one number of requests; the first round warms up and is left out."""
    prompts = engine.prompts(batch_size)
    times: dict[bool, list[float]] = {False: [], True: []}
    drafting: list[float] = []
    tokens: list[float] = []
    for number in range(rounds + 1):
        for drafts in (False, True) if number % 2 else (True, False):
            for prompt in prompts:
                engine.add(prompt, max_tokens=new_tokens, drafts=drafts, record=False)
            spent: list[float] = []
            steps = engine.run(lambda _, spent=spent: spent.append(meter.seconds))  # type: ignore[misc] # mypy cannot infer the default
            counted = [
                (step, seconds)
                for step, seconds in zip(steps, spent, strict=True)
                if step.is_decoding and step.num_running == batch_size
            ]
            # The first decoding step after a prompt verifies nothing yet.
            for step, seconds in counted[1:] if number else ():
                times[drafts].append(1000 * step.seconds)
                if drafts:
                    drafting.append(1000 * seconds)
                    tokens.append(step.num_tokens / batch_size)
    if not times[False] or not drafting:
        raise SystemExit("answers are too short to time a step in the middle; raise --new-tokens")
    return Costs(
        batch_size=batch_size,
        plain=statistics.median(times[False]),
        speculative=statistics.median(times[True]),
        drafting=statistics.median(drafting),
        tokens_per_step=statistics.fmean(tokens),
    )


if __name__ == "__main__":
    main()
