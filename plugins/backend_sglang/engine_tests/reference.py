"""What Hugging Face's model computes, to hold answers and traces against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from aurora_core.records import Trace


class Reference:
    """The target in float32, without a cache, one sequence at a time."""

    def __init__(self, path: str | Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Return the most likely continuation."""
        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([list(prompt)]),
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    def features(self, token_ids: Sequence[int], layers: Sequence[int]) -> dict[str, Tensor]:
        """Return the features of every position of a sequence."""
        with torch.inference_mode():
            output = self._model(torch.tensor([list(token_ids)]), output_hidden_states=True)
        entering = [output.hidden_states[layer][0] for layer in layers]
        return {
            "aux_hidden_states": torch.cat(entering, dim=-1),
            "last_hidden_state": output.hidden_states[-1][0],
            "target_logsumexp": output.logits[0].logsumexp(-1),
        }

    def largest_error(self, trace: Trace, *, num_nodes: int) -> float:
        """Return the largest error of a trace's rows, relative to the largest value of its row.

        Args:
            trace: recorded in float32.
            num_nodes: rejected nodes that are compared too, at most; each is read on its own path.
        """
        wanted = self.features(trace.token_ids.tolist(), trace.aux_layers)
        errors = [0.0]
        for row, (position, node) in enumerate(
            zip(trace.rows.position.tolist(), trace.rows.node.tolist(), strict=True)
        ):
            if position >= 0:
                right = {name: feature[position] for name, feature in wanted.items()}
            elif num_nodes > 0:
                num_nodes -= 1
                path = self.features(_path_to(trace, node), trace.aux_layers)
                right = {name: feature[-1] for name, feature in path.items()}
            else:
                continue
            errors += [_error(trace.features[name][row], right[name]) for name in right]
        return max(errors)


def _path_to(trace: Trace, node: int) -> list[int]:
    root = int(trace.steps.root[trace.nodes.step[node]])
    branch = []
    while node >= 0:
        branch.append(int(trace.nodes.token[node]))
        node = int(trace.nodes.parent[node])
    return [*trace.token_ids[: root + 1].tolist(), *reversed(branch)]


def _error(found: Tensor, right: Tensor) -> float:
    if bool(torch.isnan(found).all()):
        return 0.0  # logits of a prompt, which nobody computed
    return float((found - right).abs().max() / right.abs().max())
