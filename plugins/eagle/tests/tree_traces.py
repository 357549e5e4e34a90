"""Real answers of the tiny target, as if they had been drafted with trees."""

from __future__ import annotations

import dataclasses
import random

import torch
from transformers import PreTrainedModel

from aurora_core.records import Nodes, Rows, Steps, Trace
from aurora_core.trace_validation import validate_trace


@torch.no_grad()
def with_branches(
    trace: Trace,
    model: PreTrainedModel,
    *,
    seed: int = 0,
    depth: int = 3,
    width: int = 2,
    branch_rows: bool = True,
    versions: tuple[int, ...] = (1,),
) -> Trace:
    """Return the trace with steps of drafted trees: accepted paths and wrong siblings at random.

    Args:
        depth: of the trees.
        width: wrong children of a node, at most.
        branch_rows: whether the target's rows at rejected nodes are kept.
        versions: draft versions of the steps, in turn.
    """
    chooser = random.Random(seed)
    token_ids = trace.token_ids.tolist()
    steps: list[tuple[int, int, int, int]] = []
    nodes: list[tuple[int, int, int, int, bool, float]] = []
    paths: list[list[int]] = []
    root = trace.prompt_len
    while root < len(token_ids) - 1:
        num_accepted = chooser.randint(0, min(depth, len(token_ids) - 2 - root))
        above: list[tuple[int, bool]] = [(-1, True)]
        for level in range(1, depth + 1):
            grown = []
            for parent, committed in above:
                prefix = token_ids[: root + 1] if parent < 0 else paths[parent]
                right = token_ids[root + level] if root + level < len(token_ids) else None
                children = [(right, True)] if committed and level <= num_accepted else []
                wrong = [token for token in range(3, model.config.vocab_size) if token != right]
                children += [(token, False) for token in chooser.sample(wrong, width)]
                chooser.shuffle(children)
                for token, accepted in children:
                    assert token is not None
                    grown.append((len(nodes), accepted))
                    nodes.append(
                        (len(steps), token, parent, level, accepted, -chooser.random() - 0.1)
                    )
                    paths.append([*prefix, token])
            on_path = [node for node in grown if node[1]]
            above = on_path + chooser.sample([node for node in grown if not node[1]], 1)
        bonus = token_ids[root + num_accepted + 1]
        steps.append((root, versions[len(steps) % len(versions)], bonus, num_accepted))
        root += num_accepted + 1
    rejected = [node for node, columns in enumerate(nodes) if not columns[4]] if branch_rows else []
    rows = [_row(model, trace.aux_layers, paths[node]) for node in rejected]
    step_columns = [torch.tensor(column) for column in zip(*steps, strict=True)]
    node_columns = [torch.tensor(column) for column in zip(*nodes, strict=True)]
    grown_trace = dataclasses.replace(
        trace,
        steps=Steps(
            root=step_columns[0],
            version=step_columns[1],
            bonus_token=step_columns[2],
            num_accepted=step_columns[3],
            draft_ms=torch.zeros(len(steps)),
            verify_ms=torch.zeros(len(steps)),
        ),
        nodes=Nodes(
            step=node_columns[0],
            token=node_columns[1],
            parent=node_columns[2],
            depth=node_columns[3],
            accepted=node_columns[4],
            log_prob=node_columns[5],
        ),
        rows=Rows(
            position=torch.cat([trace.rows.position, torch.full((len(rejected),), -1)]),
            node=torch.cat([trace.rows.node, torch.tensor(rejected, dtype=torch.int64)]),
        ),
        features={
            name: torch.cat([tensor, *[row[name] for row in rows]])
            for name, tensor in trace.features.items()
        },
    )
    validate_trace(grown_trace)
    return grown_trace


def _row(
    model: PreTrainedModel, layers: tuple[int, ...], path: list[int]
) -> dict[str, torch.Tensor]:
    output = model.model(torch.tensor([path]), output_hidden_states=True)
    last_hidden = output.last_hidden_state[0, -1:]
    return {
        "aux_hidden_states": torch.cat(
            [output.hidden_states[layer][0, -1:] for layer in layers], -1
        ),
        "last_hidden_state": last_hidden,
        "target_logsumexp": model.lm_head(last_hidden).logsumexp(-1),
    }
