"""What a tree saves: one training step over traced trees, against their branches one by one.

    python plugins/eagle/benchmarks/tree_training_cost.py --traces SPOOL --target DIR

The other way is to make a sequence of its own of every branch, prefix and all, beside the committed
sequence, and to train on chains. Both ways have the same loss, which is checked, and run as one
batch. CPU time is the median of `--repeats`, alternating; memory is what the forward pass keeps for
the backward pass, in bytes of distinct tensors. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.trace_file import read_trace
from aurora_eagle.collate import Batch
from aurora_eagle.config import Eagle3Options
from aurora_eagle.model import Eagle3Network
from aurora_eagle.speculator import Eagle3Speculator
from aurora_eagle.training import compute_loss


def main() -> None:
    """Measure and print."""
    settings = _arguments()
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(0)
    target = read_target_spec(settings.target)
    shared = {
        "draft_vocab_size": settings.draft_vocab_size,
        "training_steps": settings.training_steps,
    }
    # Every rejected node weighs what a committed one does, so that chains can have the same loss.
    tree_options = Eagle3Options(objective="branches", branch_floor=1.0, **shared)
    speculator = Eagle3Speculator(tree_options, target)
    traces = []
    for file in sorted(settings.traces.rglob("*.safetensors")):
        trace = read_trace(file)
        if len(traces) < settings.num_traces and bool((trace.rows.node >= 0).any()):
            traces.append(trace)
    if not traces:
        raise SystemExit(f"{settings.traces} holds no trace with rows of rejected nodes")
    network = speculator.build_module(TargetWeights(target), traces[:4])
    assert isinstance(network, Eagle3Network)
    tree = Batch.from_dict(speculator.collate(traces))
    chains = separate(tree)
    ways = {
        "tree": (tree, tree_options),
        "separate": (chains, Eagle3Options(objective="kl", **shared)),
    }
    losses = [
        float(compute_loss(network, batch, options).loss_sum.detach())
        for batch, options in ways.values()
    ]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-3)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    kept = {name: kept_bytes(network, *way) for name, way in ways.items()}
    for repeat in range(settings.repeats):
        for name in list(ways)[:: 1 if repeat % 2 == 0 else -1]:
            began = time.process_time()
            compute_loss(network, *ways[name]).loss_sum.backward()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    num_roots = len(tree.branch_anchor.unique())
    num_sequences = len(chains.token_ids) - len(traces)
    print(
        json.dumps(
            {
                "traces": len(traces),
                "committed_positions": int(tree.num_tokens.sum()),
                "rejected_nodes": len(tree.branch_token),
                "branches": num_sequences,
                "branching_factor": round(1 + num_sequences / num_roots, 2),
                "cpu_s": {name: round(value, 3) for name, value in medians.items()},
                "time_ratio": round(medians["separate"] / medians["tree"], 2),
                "kept_mib": {name: round(value / 2**20, 1) for name, value in kept.items()},
                "memory_ratio": round(kept["separate"] / kept["tree"], 2),
                "training_steps": settings.training_steps,
                "draft_vocab_size": settings.draft_vocab_size,
            }
        )
    )


def separate(batch: Batch) -> Batch:
    """Return the same supervision as chains: committed sequences, then one for each branch.

    A branch runs from its root to a leaf; a node that several share teaches in the first of them.
    """
    num_traces, leaves = len(batch.token_ids), set(range(len(batch.branch_token)))
    leaves -= set(batch.branch_parent.tolist())
    longest = int(batch.token_ids.shape[1]) + int(batch.branch_depth.max())
    token_ids = [torch.nn.functional.pad(row, (0, longest - len(row))) for row in batch.token_ids]
    teacher_row = [
        torch.nn.functional.pad(row, (0, longest - len(row)), value=-1) for row in batch.teacher_row
    ]
    num_tokens, source = batch.num_tokens.tolist(), list(range(num_traces))
    rows = [torch.arange(len(batch.row_trace))]
    anchors = [batch.anchor_row]
    row_trace, num_rows, taught = [batch.row_trace], len(batch.row_trace), set[int]()
    for leaf in sorted(leaves):
        path, node = [], leaf
        while node >= 0:
            path.insert(0, node)
            node = int(batch.branch_parent[node])
        anchor = int(batch.anchor_row[batch.branch_anchor[leaf]])
        trace, position = int(batch.row_trace[anchor]), int(batch.row_position[anchor])
        first = position + 1 + int(batch.branch_depth[path[0]])
        tokens, teachers = token_ids[trace].clone(), torch.full((longest,), -1)
        for offset, one in enumerate(path):
            tokens[first + offset] = batch.branch_token[one]
            if one not in taught:
                teachers[first + offset] = batch.branch_teacher[one]
        taught |= set(path)
        prefix = ((batch.row_trace == trace) & (batch.row_position <= position)).nonzero().flatten()
        row_trace.append(torch.full_like(prefix, len(token_ids)))
        num_rows += len(prefix)
        anchors.append(torch.tensor([num_rows - 1]))
        rows.append(prefix)
        token_ids.append(tokens)
        teacher_row.append(teachers)
        num_tokens.append(first + len(path) + 1)
        source.append(trace)
    every = torch.cat(rows)
    empty: dict[str, Tensor] = {
        name: getattr(batch, name)[:0] for name in Batch.__slots__ if name.startswith("branch_")
    }
    return Batch.from_dict(
        batch.to_dict()
        | empty
        | {
            "token_ids": torch.stack(token_ids),
            "teacher_row": torch.stack(teacher_row),
            "num_tokens": torch.tensor(num_tokens),
            "row_trace": torch.cat(row_trace),
            "row_position": batch.row_position[every],
            "aux_hidden_states": batch.aux_hidden_states[every],
            "anchor_row": torch.cat(anchors),
            **{name: getattr(batch, name)[source] for name in ("temperature", "top_p", "top_k")},
        }
    )


def kept_bytes(network: Eagle3Network, batch: Batch, options: Eagle3Options) -> int:
    """Return the bytes of distinct tensors that a forward pass keeps for the backward pass.

    Weights and the batch itself are not counted.
    """
    own = {one.untyped_storage().data_ptr() for one in (*network.parameters(), *network.buffers())}
    own |= {one.untyped_storage().data_ptr() for one in batch.to_dict().values()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = compute_loss(network, batch, options)
    total = sum(one.untyped_storage().nbytes() for key, one in kept.items() if key not in own)
    output.loss_sum.backward()
    return total


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--traces", type=Path, required=True, help="folder of trace files")
    parser.add_argument("--target", type=Path, required=True, help="target directory")
    parser.add_argument("--num-traces", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--draft-vocab-size", type=int, default=4096)
    parser.add_argument("--training-steps", type=int, default=4)
    parser.add_argument("--num-threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
