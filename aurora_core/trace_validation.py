"""What must hold in every trace; `aurora_core.records` states it field by field.

Engines check their traces in tests, readers check every file: a learner never meets an
inconsistent trace. Values of features are not looked at; speculators refuse non-finite ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from aurora_core.errors import TraceError
from aurora_core.records import TRACE_SCHEMA

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_core.records import Trace

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "steps": {
        "root": "int64",
        "version": "int64",
        "bonus_token": "int64",
        "num_accepted": "int64",
        "draft_ms": "float32",
        "verify_ms": "float32",
    },
    "nodes": {
        "step": "int64",
        "token": "int64",
        "parent": "int64",
        "depth": "int64",
        "accepted": "bool",
        "log_prob": "float32",
    },
    "rows": {"position": "int64", "node": "int64"},
}
"""Tensors of a trace besides `token_ids` and the features: group -> field -> dtype."""


def validate_trace(trace: Trace) -> None:
    """Check every promise of the record; costs about a millisecond.

    Raises:
        TraceError: the first promise that does not hold, in one sentence.
    """
    problem = first_problem(trace)
    if problem is not None:
        raise TraceError(f"trace {trace.trace_id!r} is inconsistent: {problem}")


def first_problem(trace: Trace) -> str | None:
    """Return the first promise of the record that `trace` breaks, in words; None if it is sound."""
    # Later checks index by what earlier ones have bounded, so the first problem ends it.
    return next(_problems(trace), None)


def _problems(trace: Trace) -> Iterator[str]:
    if trace.schema != TRACE_SCHEMA:
        yield f"its schema is {trace.schema}, this version reads schema {TRACE_SCHEMA}"
    yield from _shape_problems(trace)
    num_tokens = trace.token_ids.numel()
    if not 1 <= trace.prompt_len <= num_tokens:
        yield f"prompt_len is {trace.prompt_len} for {num_tokens} tokens"
    if _any(trace.token_ids < 0):
        yield "token_ids holds negative ids"
    yield from _step_problems(trace)
    yield from _node_problems(trace)
    yield from _acceptance_problems(trace)
    yield from _row_problems(trace)
    yield from _feature_problems(trace)


def _shape_problems(trace: Trace) -> Iterator[str]:
    if _name(trace.token_ids) != "int64" or trace.token_ids.dim() != 1:
        yield f"token_ids is {_describe(trace.token_ids)} instead of int64 [T]"
    for group, fields in COLUMNS.items():
        record = getattr(trace, group)
        length = getattr(record, next(iter(fields))).shape[:1]
        for field, dtype in fields.items():
            tensor = getattr(record, field)
            if _name(tensor) != dtype or tensor.dim() != 1:
                yield f"{group}.{field} is {_describe(tensor)} instead of one column of {dtype}"
            if tensor.shape != length:
                yield f"{group}.{field} has {len(tensor)} entries, others of {group} {length[0]}"


def _step_problems(trace: Trace) -> Iterator[str]:
    steps = trace.steps
    if _any((steps.root < trace.prompt_len - 1) | (steps.root >= trace.token_ids.numel())):
        yield "steps.root lies outside the response"
    if _any(steps.version < -1):
        yield "steps.version holds a number below -1"
    if _any(steps.bonus_token < 0):
        yield "steps.bonus_token holds negative ids"
    if _any(steps.num_accepted < 0):
        yield "steps.num_accepted holds negative counts"
    if _any(steps.root[1:] <= (steps.root + steps.num_accepted)[:-1]):
        yield "steps overlap: steps.root must lie beyond what the step before committed"


def _node_problems(trace: Trace) -> Iterator[str]:
    import torch

    nodes, num_steps = trace.nodes, trace.steps.root.numel()
    if _any((nodes.step < 0) | (nodes.step >= num_steps)):
        yield f"nodes.step names a step outside the {num_steps} steps"
    if _any(nodes.step[1:] < nodes.step[:-1]):
        yield "nodes.step decreases"
    if _any(nodes.token < 0):
        yield "nodes.token holds negative ids"
    index = torch.arange(nodes.parent.numel())
    if _any((nodes.parent < -1) | (nodes.parent >= index)):
        yield "nodes.parent does not name an earlier node"
    child = nodes.parent >= 0
    parent = nodes.parent[child]
    if _any(nodes.step[child] != nodes.step[parent]):
        yield "nodes.parent names a node of another step"
    depth = torch.ones_like(nodes.depth)
    depth[child] = nodes.depth[parent] + 1
    if _any(nodes.depth != depth):
        yield "nodes.depth is not one more than the parent's"


def _acceptance_problems(trace: Trace) -> Iterator[str]:
    import torch

    steps, nodes, num_tokens = trace.steps, trace.nodes, trace.token_ids.numel()
    child = nodes.parent >= 0
    if _any(nodes.accepted[child] & ~nodes.accepted[nodes.parent[child]]):
        yield "an accepted node hangs below a rejected one"
    step, depth = nodes.step[nodes.accepted], nodes.depth[nodes.accepted]
    counts = torch.bincount(step, minlength=steps.root.numel())
    if _any(counts != steps.num_accepted):
        yield "steps.num_accepted differs from the accepted nodes of the step"
    # One node per depth and as many nodes as the count: the accepted nodes are one path.
    if _repeats(step * (nodes.depth.numel() + 1) + depth):
        yield "a step accepted two nodes of one depth"
    # A stop string or max_tokens may cut the last step; what it would have added is not there.
    position = steps.root[step] + depth
    inside = position < num_tokens
    if _any(trace.token_ids[position[inside]] != nodes.token[nodes.accepted][inside]):
        yield "an accepted node's token is not the committed one"
    position = steps.root + steps.num_accepted + 1
    inside = position < num_tokens
    if _any(trace.token_ids[position[inside]] != steps.bonus_token[inside]):
        yield "steps.bonus_token is not the committed token after the accepted ones"


def _row_problems(trace: Trace) -> Iterator[str]:
    rows, num_nodes = trace.rows, trace.nodes.step.numel()
    if _any((rows.position >= 0) == (rows.node >= 0)):
        yield "rows must name either a position or a node, never both or neither"
    position, node = rows.position[rows.position >= 0], rows.node[rows.node >= 0]
    if _any(position >= trace.token_ids.numel()):
        yield "rows.position lies beyond the last token"
    if _any(node >= num_nodes):
        yield f"rows.node names a node outside the {num_nodes} nodes"
    if _any(trace.nodes.accepted[node]):
        yield "rows.node names an accepted node; accepted nodes are positions"
    if _repeats(position) or _repeats(node):
        yield "rows maps two rows to one position or node"


def _feature_problems(trace: Trace) -> Iterator[str]:
    num_rows = trace.rows.position.numel()
    for name, feature in trace.features.items():
        if feature.dim() == 0 or len(feature) != num_rows:
            yield f"feature {name!r} is {_describe(feature)} beside {num_rows} rows"
        if not feature.is_floating_point():
            yield f"feature {name!r} is {_describe(feature)} instead of floating point"
    if "aux_hidden_states" in trace.features:
        feature, num_layers = trace.features["aux_hidden_states"], len(trace.aux_layers)
        if feature.dim() != 2 or num_layers == 0 or feature.shape[1] % num_layers:
            yield f"aux_hidden_states is {_describe(feature)} for {num_layers} aux_layers"
    if "last_hidden_state" in trace.features and trace.features["last_hidden_state"].dim() != 2:
        yield f"last_hidden_state is {_describe(trace.features['last_hidden_state'])}, not [R, D]"
    if "target_logsumexp" in trace.features:
        feature = trace.features["target_logsumexp"]
        if feature.dim() != 1 or _name(feature) != "float32":
            yield f"target_logsumexp is {_describe(feature)} instead of float32 [R]"


def _any(condition: Tensor) -> bool:
    return bool(condition.any())


def _repeats(values: Tensor) -> bool:
    ordered = values.sort().values
    return _any(ordered[1:] == ordered[:-1])


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _describe(tensor: Tensor) -> str:
    return f"{_name(tensor)} {list(tensor.shape)}"
