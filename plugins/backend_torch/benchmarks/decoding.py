"""Decoding speed of the engine beside Hugging Face `generate`, and what recording traces costs.

    python plugins/backend_torch/benchmarks/decoding.py transformers --target TARGET
    python plugins/backend_torch/benchmarks/decoding.py capture --target TARGET

Arms alternate, every pair runs the same prompts, and the figure is the median of the pairs' ratios.
TARGET is a directory, a hub id or `quickstart`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from aurora_backend_torch.build import build_engine
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.engine import Engine
from aurora_backend_torch.generation import GenerationRequest, StepOutput
from aurora_backend_torch.tokenizer import TargetTokenizer
from aurora_core.interfaces import ServePlan
from aurora_core.records import Needs, Sampling, TargetSpec
from aurora_core.target.pull import pull_target
from aurora_core.target.spec import read_target_spec
from aurora_core.traffic.prompts import generate

Prompts = Sequence[Sequence[int]]


def main() -> None:
    """Run one comparison and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparison", choices=["transformers", "capture"])
    parser.add_argument("--target", default="quickstart")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=64)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    spec = read_target_spec(pull_target(settings.target), name=settings.target)
    with tempfile.TemporaryDirectory() as folder:
        engine = start_engine(spec, Path(folder), settings)
        try:
            rows = [compare(engine, spec, settings, size) for size in settings.batch_sizes]
        finally:
            engine.shutdown()
    print(json.dumps({"settings": vars(settings), "results": rows}, indent=2))


def compare(
    engine: Engine, spec: TargetSpec, settings: argparse.Namespace, batch_size: int
) -> dict[str, object]:
    """Return tokens per second of both arms at one batch size, and their ratio."""
    prompts = draw_prompts(spec, batch_size)
    arms: dict[str, Callable[[], int]]
    if settings.comparison == "transformers":
        arms = {
            "transformers": transformers_arm(spec, prompts, settings),
            "engine": engine_arm(engine, prompts, settings, record=False),
        }
    else:
        arms = {
            "not recorded": engine_arm(engine, prompts, settings, record=False),
            "recorded": engine_arm(engine, prompts, settings, record=True),
        }
    for arm in arms.values():
        arm()
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(settings.repeats):
        order = list(arms) if repeat % 2 == 0 else list(arms)[::-1]
        for name in order:
            started = time.perf_counter()
            num_tokens = arms[name]()
            speeds[name].append(num_tokens / (time.perf_counter() - started))
    first, second = speeds.values()
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    return {
        "batch_size": batch_size,
        "tokens_per_s": {name: round(statistics.median(s), 2) for name, s in speeds.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def draw_prompts(spec: TargetSpec, number: int) -> Prompts:
    """Return tokenised held-out prompts of the built-in traffic."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    drawn = generate(["sql", "math", "chat"], seed=0, split="holdout", num_prompts=number)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for prompt in drawn
    ]


def start_engine(spec: TargetSpec, folder: Path, settings: argparse.Namespace) -> Engine:
    """Return a running engine without a drafter that can record everything EAGLE-3 needs."""
    layers = (2, spec.num_layers // 2, spec.num_layers - 3)
    features = {"aux_hidden_states", "last_hidden_state", "target_logsumexp"}
    plan = ServePlan(
        target=spec,
        speculator="eagle3",
        speculator_options={},
        plugins=None,
        needs=Needs(features=frozenset(features), aux_layers=layers),
        num_speculative_tokens=3,
        versions_dir=str(folder / "versions"),
        initial_version=None,
        sink="spool",
        sink_options={"path": str(folder / "spool")},
        run_dir=str(folder),
        seed=0,
    )
    options = TorchBackendOptions(
        num_threads=settings.threads,
        dtype=settings.dtype,
        max_running_requests=max(settings.batch_sizes),
    )
    engine = build_engine(plan, options)
    engine.start()
    return engine


def engine_arm(
    engine: Engine, prompts: Prompts, settings: argparse.Namespace, *, record: bool
) -> Callable[[], int]:
    """Return a function that generates for all prompts at once and counts tokens."""

    def run() -> int:
        counts, done = [0] * len(prompts), threading.Semaphore(0)

        def receive(index: int, output: StepOutput) -> None:
            counts[index] += len(output.token_ids)
            if output.finish_reason is not None:
                done.release()

        for index, prompt in enumerate(prompts):
            request = GenerationRequest(
                request_id=f"{time.time_ns()}-{index}",
                prompt_token_ids=list(prompt),
                max_tokens=settings.new_tokens,
                sampling=Sampling(),
                stop_token_ids=frozenset(),
                num_logprobs=None,
                drafter="none",
                record=record,
                request_key=str(index),
                tenant="",
                route="",
                arrived=time.time(),
            )
            engine.submit(request, lambda output, index=index: receive(index, output))
        for _ in prompts:
            done.acquire()
        return sum(counts)

    return run


def transformers_arm(
    spec: TargetSpec, prompts: Prompts, settings: argparse.Namespace
) -> Callable[[], int]:
    """Return a function that does the same with Hugging Face `generate`, padded on the left."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=getattr(torch, settings.dtype))
    pad = min(TargetTokenizer.read(Path(spec.path)).eos_token_ids)
    longest = max(map(len, prompts))
    token_ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])

    def run() -> int:
        output = model.generate(
            token_ids,
            attention_mask=mask,
            max_new_tokens=settings.new_tokens,
            min_new_tokens=settings.new_tokens,
            do_sample=False,
            pad_token_id=pad,
        )
        return int((output.shape[1] - longest) * len(prompts))

    return run


if __name__ == "__main__":
    main()
