"""Objectives against each other on the same traces, the same batches and as many optimizer steps.

    python plugins/eagle/benchmarks/ablation.py --traces SPOOL --target DIR --out OUT

Each arm is trained from the same beginning, once for each seed; a seed sets the random part of the
new weights and which traces form which batch, alike in all arms. Held-out traces, one in
`--held-out-share`, are then drafted from at every position to a depth of 8. Only traces with rows
of rejected nodes are used (`gather_traces.py` makes them; a run's own spool has them too).

OUT/runs holds one file for each arm and seed; what is there is not run again, so the command can be
interrupted. OUT/ablation.md and OUT/ablation.json are written anew after every run.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from ablation_table import Run, write_tables
from first_pass import train

from aurora_core.learner.muon import MuonWithAdamW, split_parameters
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.trace_file import read_trace
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator

_FIXED: Mapping[str, Any] = {"depth_weights": "power"}

ARMS: Mapping[str, Mapping[str, Any]] = {
    "kl": {"objective": "kl", **_FIXED},
    "lk_hybrid": {"objective": "lk_hybrid", **_FIXED},
    "discard 0.1": {"objective": "discard", "discard_weight": 0.1, **_FIXED},
    "discard 1": {"objective": "discard", "discard_weight": 1.0, **_FIXED},
    "branches, floor 0": {"objective": "branches", "branch_floor": 0.0, **_FIXED},
    "branches, floor 0.1": {"objective": "branches", "branch_floor": 0.1, **_FIXED},
    "kl, reach": {"objective": "kl", "depth_weights": "reach"},
    "branches, floor 0.1, decay 0.5": {
        "objective": "branches",
        "branch_floor": 0.1,
        "step_decay": 0.5,
        **_FIXED,
    },
    "branches, floor 0.1, reach": {
        "objective": "branches",
        "branch_floor": 0.1,
        "depth_weights": "reach",
    },
}
"""Arm -> options of the speculator beside those that all arms share."""

DEPTH = 8
"""Draft positions that are scored; shorter drafts are the beginnings of the same curve."""


def main() -> None:
    """Run what is missing and write the tables."""
    settings = _arguments()
    torch.set_num_threads(settings.num_threads)
    target = read_target_spec(settings.target)
    training, held_out = split(settings)
    shared = {
        "steps": settings.steps,
        "batch": settings.batch,
        "training_traces": len(training),
        "held_out_traces": len(held_out),
        "first_trace": training[0].trace_id,
        "draft_vocab_size": settings.draft_vocab_size,
        "training_steps": settings.training_steps,
        "max_trace_tokens": settings.max_trace_tokens,
        "matrix_learning_rate": settings.matrix_learning_rate,
        "learning_rate": settings.learning_rate,
        "start": "" if settings.start is None else settings.start.name,
    }
    (settings.out / "runs").mkdir(parents=True, exist_ok=True)
    jobs = [(arm, seed) for seed in settings.seeds for arm in settings.arms]
    runs: list[Run] = []
    for arm, seed in jobs:
        file = settings.out / "runs" / f"{arm.replace(' ', '_').replace(',', '')}-{seed}.json"
        wanted = shared | {"arm": arm, "seed": seed, "options": dict(ARMS[arm])}
        if file.exists():
            found = json.loads(file.read_text())
            if found["settings"] != wanted:
                raise SystemExit(f"{file} was made with other settings; choose another --out")
        else:
            found = {"settings": wanted} | run(settings, target, training, held_out, arm, seed)
            file.write_text(json.dumps(found))
            print(
                f"{arm}, seed {seed}: {found['cpu_s']} CPU s, training {found['training_cpu_s']}",
                flush=True,
            )
        runs.append(Run(arm, seed, found["accepted"], found["anchors"], found["cpu_s"]))
        write_tables(settings.out, runs, shared, baseline="kl", resamples=settings.resamples)
    print((settings.out / "ablation.md").read_text())


def split(settings: argparse.Namespace) -> tuple[list[Trace], list[Trace]]:
    """Return (training, held-out) traces that have rows of rejected nodes, in order of arrival."""
    files = sorted(settings.traces.rglob("*.safetensors"))[: settings.limit]
    traces = [trace for file in files if bool(((trace := read_trace(file)).rows.node >= 0).any())]
    share = settings.held_out_share
    held_out = traces[share - 1 :: share]
    training = [trace for index, trace in enumerate(traces) if index % share != share - 1]
    if not held_out or len(training) < settings.batch:
        raise SystemExit(
            f"{settings.traces} holds {len(traces)} traces with rows of rejected nodes, too few; "
            "gather some with gather_traces.py"
        )
    return training, held_out


def run(
    settings: argparse.Namespace,
    target: TargetSpec,
    training: Sequence[Trace],
    held_out: Sequence[Trace],
    arm: str,
    seed: int,
) -> dict[str, Any]:
    """Train one arm with one seed and score it on every held-out trace."""
    began = time.process_time()
    torch.manual_seed(seed)
    options = Eagle3Options.model_validate(
        {
            "draft_vocab_size": settings.draft_vocab_size,
            "training_steps": settings.training_steps,
            "max_trace_tokens": settings.max_trace_tokens,
            **ARMS[arm],
        }
    )
    speculator = Eagle3Speculator(options, target)
    weights = TargetWeights(target)
    if settings.start is None:
        network = speculator.build_module(weights, training[:16])
    else:
        network = speculator.load(settings.start, weights)
    matrices, others = split_parameters(network)
    optimizer = MuonWithAdamW(
        matrices,
        others,
        matrix_learning_rate=settings.matrix_learning_rate,
        learning_rate=settings.learning_rate,
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    positions, built = 0, time.process_time()
    for step, batch in enumerate(batches(training, settings.steps, settings.batch, seed), start=1):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, step / settings.warmup)
        positions += train(speculator, network, optimizer, batch)
    trained = time.process_time()
    accepted, anchors = [], []
    for trace in held_out:
        right, judged = speculator.acceptance(network, speculator.collate([trace]), DEPTH)
        accepted.append(right[0].tolist())
        anchors.append(int(judged[0]))
    return {
        "accepted": accepted,
        "anchors": anchors,
        "positions_trained": positions,
        "training_cpu_s": round(trained - built, 1),
        "cpu_s": round(time.process_time() - began, 1),
    }


def batches(traces: Sequence[Trace], num_steps: int, size: int, seed: int) -> Sequence[list[Trace]]:
    """Return the batches of a seed: shuffled passes over all traces, one after the other."""
    chooser, order = random.Random(seed), list[Trace]()
    while len(order) < num_steps * size:
        order += chooser.sample(list(traces), len(traces))
    return [order[first : first + size] for first in range(0, num_steps * size, size)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--traces", type=Path, required=True, help="folder of trace files")
    parser.add_argument("--target", type=Path, required=True, help="target directory")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--start", type=Path, help="drafter to go on from; a new one if not given")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=56, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=4, help="traces per step")
    parser.add_argument("--held-out-share", type=int, default=8, help="one in so many is held out")
    parser.add_argument("--limit", type=int, help="trace files to read, at most")
    parser.add_argument("--draft-vocab-size", type=int, default=4096)
    parser.add_argument("--training-steps", type=int, default=3)
    parser.add_argument("--max-trace-tokens", type=int, default=256)
    parser.add_argument("--matrix-learning-rate", type=float, default=0.02)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--resamples", type=int, default=2000, help="of the bootstrap")
    parser.add_argument("--num-threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
