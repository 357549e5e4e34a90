"""What Hugging Face's model computes, to hold traces against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from aurora_core.records import Trace


class Reference:
    """The target in float32, without a cache, one sequence at a time."""

    def __init__(self, path: Path | str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def features(self, token_ids: Sequence[int], layers: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the features of every position of a sequence, by name."""
        with torch.inference_mode():
            out = self._model(torch.tensor([list(token_ids)]), output_hidden_states=True)
        features = {
            "last_hidden_state": out.hidden_states[-1][0],
            "target_logsumexp": out.logits[0].float().logsumexp(-1),
        }
        if layers:
            entering = [out.hidden_states[layer][0] for layer in layers]
            features["aux_hidden_states"] = torch.cat(entering, dim=-1)
        return features

    def largest_gap(self, token_ids: Sequence[int], prompt_len: int) -> float:
        """Return by how much a token was less likely than the best one, in logits, at most.

        0 is a greedy answer; rounding may swap two tokens that are equally likely but for it.
        """
        with torch.inference_mode():
            logits = self._model(torch.tensor([list(token_ids)])).logits[0, prompt_len - 1 : -1]
        answer = torch.tensor(list(token_ids[prompt_len:]))
        chosen = logits.gather(1, answer[:, None])[:, 0]
        return float((logits.amax(-1) - chosen).max())


def largest_error(trace: Trace, reference: Reference, *, branches: int) -> float:
    """Return the largest relative error of a trace's features, of committed rows and of nodes.

    The error of a row is the norm of its difference, by the norm of the right one.

    Args:
        trace: recorded in float32.
        reference: the target.
        branches: verification steps whose rejected nodes are compared too, at most.
    """
    errors = [0.0]
    committed = (trace.rows.position >= 0).nonzero().flatten()
    right = reference.features(trace.token_ids.tolist(), trace.aux_layers)
    errors.append(_error(trace, committed, right, trace.rows.position[committed]))
    for step in range(min(branches, len(trace.steps.root))):
        nodes = (trace.nodes.step == step).nonzero().flatten()
        rows = torch.isin(trace.rows.node, nodes).nonzero().flatten()
        if not len(rows):
            continue
        root = int(trace.steps.root[step])
        path = [*trace.token_ids[: root + 1].tolist(), *trace.nodes.token[nodes].tolist()]
        right = reference.features(path, trace.aux_layers)
        positions = root + trace.nodes.depth[trace.rows.node[rows]]
        errors.append(_error(trace, rows, right, positions))
    return max(errors)


def _error(
    trace: Trace, rows: torch.Tensor, right: dict[str, torch.Tensor], positions: torch.Tensor
) -> float:
    largest = 0.0
    for name, feature in trace.features.items():
        told, wanted = feature[rows].float(), right[name][positions].float()
        if name == "target_logsumexp":
            known = ~torch.isnan(told)
            told, wanted = told[known, None], wanted[known, None]
        if len(told):
            errors = (told - wanted).norm(dim=-1) / wanted.norm(dim=-1)
            largest = max(largest, float(errors.max()))
    return largest
