"""How fast a new drafter learns from recorded traces, in the order in which they were served.

    python plugins/eagle/benchmarks/first_pass.py --traces DIR --target DIR [--set KEY=VALUE]...

Every trace is scored before it is trained on, which is what serving would have seen. Held-out
traces (one in eight) are scored at the end. Acceptance length counts `--depth` draft positions.
Prints one line of JSON for each window of traces and one at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aurora_core.learner.muon import MuonWithAdamW, split_parameters
from aurora_core.records import Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.trace_file import read_trace
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.num_threads)
    torch.manual_seed(arguments.seed)
    chooser = random.Random(arguments.seed)
    target = read_target_spec(arguments.target)
    options = Eagle3Options.model_validate(
        {key: yaml_value(value) for key, _, value in (o.partition("=") for o in arguments.set)}
    )
    speculator = Eagle3Speculator(options, target)
    files = sorted(arguments.traces.rglob("*.safetensors"))[: arguments.limit]
    if arguments.shuffle:
        random.Random(0).shuffle(files)
    traces = [read_trace(file) for file in files]
    held_out, stream = traces[7::8], [t for i, t in enumerate(traces) if i % 8 != 7]
    started = stream[: arguments.start_traces]
    network = speculator.build_module(TargetWeights(target), started)
    matrices, others = split_parameters(network)
    optimizer = MuonWithAdamW(
        matrices,
        others,
        matrix_learning_rate=arguments.matrix_learning_rate,
        learning_rate=arguments.learning_rate,
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    began, seconds, step, passes = time.process_time(), 0.0, 0, 0
    window: list[tuple[torch.Tensor, torch.Tensor]] = []
    for first in range(0, len(stream), arguments.fresh):
        fresh = stream[first : first + arguments.fresh]
        if first >= arguments.start_traces:
            began_scoring = time.process_time()
            window.append(score(speculator, network, fresh, arguments.depth))
            seconds -= time.process_time() - began_scoring
        seen = stream[: first + len(fresh)]
        for repeat in range(1 + arguments.extra):
            chosen = list(fresh) if repeat == 0 else []
            chosen += chooser.sample(seen, min(len(seen), arguments.batch - len(chosen)))
            step += 1
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * min(1.0, step / arguments.warmup)
            passes += train(speculator, network, optimizer, chosen)
        if len(window) * arguments.fresh >= arguments.window:
            emit(first + len(fresh), seen, window, passes, time.process_time() - began + seconds)
            window = []
    final = [score(speculator, network, [trace], arguments.depth) for trace in held_out]
    deep = [score(speculator, network, [trace], 8) for trace in held_out]
    length, shares = summary(final)
    print(
        json.dumps(
            {
                "held_out": length,
                "accepted": shares,
                "held_out_8": summary(deep)[0],
                "coverage": coverage(network, held_out),
                "passes": passes,
                "cpu_s": round(time.process_time() - began + seconds, 1),
                "options": arguments.set,
            }
        ),
        flush=True,
    )
    if arguments.save is not None:
        speculator.save(network, arguments.save)


def train(
    speculator: Eagle3Speculator, network: Any, optimizer: MuonWithAdamW, traces: list[Trace]
) -> int:
    """Take one optimizer step and return the response positions trained on."""
    output = speculator.loss(network, speculator.collate(traces))
    optimizer.zero_grad()
    (output.loss_sum / output.weight_sum.clamp(min=1)).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return output.num_tokens


def score(
    speculator: Eagle3Speculator, network: Any, traces: Sequence[Trace], depth: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (accepted [depth], anchors []) of a greedy replay."""
    accepted, anchors = speculator.acceptance(network, speculator.collate(traces), depth)
    return accepted.sum(0), anchors.sum()


def summary(scores: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, list[float]]:
    """Return (acceptance length, share of anchors accepted at each depth)."""
    accepted = torch.stack([one for one, _ in scores]).sum(0)
    shares = accepted / torch.stack([count for _, count in scores]).sum().clamp(min=1)
    return round(1 + float(shares.sum()), 3), [round(float(share), 3) for share in shares]


def coverage(network: Any, traces: Sequence[Trace]) -> float:
    """Return the share of response tokens that can be drafted at all."""
    tokens = torch.cat([trace.token_ids[trace.prompt_len :] for trace in traces])
    return round(float(network.t2d[tokens].float().mean()), 4)


def emit(
    num_traces: int,
    seen: Sequence[Trace],
    window: Sequence[tuple[torch.Tensor, torch.Tensor]],
    passes: int,
    seconds: float,
) -> None:
    length, shares = summary(window)
    tokens = sum(len(trace.token_ids) - trace.prompt_len for trace in seen)
    line = {
        "traces": num_traces,
        "tokens": tokens,
        "first_pass": length,
        "accepted": shares,
        "passes": passes,
        "cpu_s": round(seconds, 1),
    }
    print(json.dumps(line), flush=True)


def yaml_value(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--traces", type=Path, required=True, help="folder of trace files")
    parser.add_argument("--target", type=Path, required=True, help="target directory")
    parser.add_argument("--set", action="append", default=[], help="option of the speculator")
    parser.add_argument("--limit", type=int, default=None, help="traces to use")
    parser.add_argument("--shuffle", action="store_true", help="mix the order of traces")
    parser.add_argument("--start-traces", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4, help="traces per step")
    parser.add_argument("--fresh", type=int, default=2, help="new traces per step")
    parser.add_argument("--extra", type=int, default=0, help="replay steps per fresh step")
    parser.add_argument("--window", type=int, default=64, help="traces per printed line")
    parser.add_argument("--depth", type=int, default=3, help="draft positions")
    parser.add_argument("--matrix-learning-rate", type=float, default=0.01)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=None, help="write the drafter here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
