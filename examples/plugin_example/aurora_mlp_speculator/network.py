"""The network and its checkpoint.

Shapes: A rows, D hidden size of the target, V its vocabulary, W tokens that can be drafted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec
from aurora_core.target.weights import TargetWeights

EPSILON = 1e-6
"""Of every normalisation, so that training and drafting compute the same."""
FORMAT = "mlp-speculator"


class MlpNetwork(nn.Module):
    """One gated layer per draft token: the MLP speculator (Wertheimer et al. 2024, section 3).

    The state starts as the target's last hidden state. Layer k reads the state and the latest
    token, the root at first and then what was drafted, and makes the state that token k is chosen
    from. All layers share one output head.
    """

    target_ids: Tensor
    """int64 [W]. The tokens that can be drafted, ascending. Part of every checkpoint."""
    embed_tokens: Tensor
    """[V, D]. The target's own embedding: shared with it, neither trained nor saved."""

    def __init__(self, embed_tokens: Tensor, *, num_drafted: int, draft_vocab_size: int) -> None:
        super().__init__()
        self.vocab_size, size = embed_tokens.shape
        self.layers = nn.ModuleList(
            nn.Linear(2 * size, 2 * size, bias=False) for _ in range(num_drafted)
        )
        self.norm = nn.Parameter(torch.ones(size))
        self.lm_head = nn.Linear(size, draft_vocab_size, bias=False)
        self.register_buffer("target_ids", torch.zeros(draft_vocab_size, dtype=torch.int64))
        self.register_buffer("embed_tokens", embed_tokens, persistent=False)

    def forward(self, depth: int, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Read a token at some depth, 0 for the root.

        Args:
            state: [A, D] what this returned one depth earlier; the target's hidden state at 0.
            token: int64 [A].

        Returns:
            ([A, D], [A, W]): the next state, and the logits of the token that comes next.
        """
        size = state.shape[-1:]
        embedded = self.embed_tokens[token].to(state.dtype)
        read = (rms_norm(state, size, eps=EPSILON), rms_norm(embedded, size, eps=EPSILON))
        gate, up = self.layers[depth](torch.cat(read, -1)).chunk(2, -1)
        state = silu(gate) * up
        return state, self.lm_head(rms_norm(state, size, self.norm.to(state.dtype), EPSILON))

    def draft_ids(self) -> Tensor:
        """Return int64 [V]: the place of a token among those that can be drafted, or -1."""
        places = self.target_ids.new_full((self.vocab_size,), -1)
        places[self.target_ids] = torch.arange(len(self.target_ids), device=places.device)
        return places


def save_network(network: MlpNetwork, path: Path, target: TargetSpec) -> None:
    """Write config.json and model.safetensors into an existing folder."""
    config = {
        "format": FORMAT,
        "target_fingerprint": target.fingerprint,
        "num_drafted": len(network.layers),
        "draft_vocab_size": len(network.target_ids),
    }
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    save_file(tensors, path / "model.safetensors")


def load_network(path: Path, weights: TargetWeights, target: TargetSpec) -> MlpNetwork:
    """Read what `save_network` wrote.

    Whatever loads goes live, so everything is checked: a checkpoint that is nearly right would
    only show in the acceptance length.

    Raises:
        CheckpointError: unreadable, of another target, or with a tensor that is missing, extra,
            misshapen, not finite or beyond the vocabulary.
    """
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(path / "model.safetensors")
        found = config["format"], config["target_fingerprint"]
        network = MlpNetwork(
            weights.embed_tokens,
            num_drafted=config["num_drafted"],
            draft_vocab_size=config["draft_vocab_size"],
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"MLP checkpoint {str(path)!r} cannot be read: {error}") from error
    if found != (FORMAT, target.fingerprint):
        raise CheckpointError(
            f"checkpoint {str(path)!r} is of format {found[0]!r} for target {found[1]!r}, expected "
            f"{FORMAT!r} for {target.fingerprint!r}"
        )
    expected = network.state_dict()
    for name in sorted(expected | tensors):
        if name not in tensors or name not in expected:
            problem = "is missing" if name not in tensors else "belongs to no part of the network"
        elif tensors[name].shape != expected[name].shape:
            problem = f"is {list(tensors[name].shape)}, expected {list(expected[name].shape)}"
        elif tensors[name].dtype != expected[name].dtype:
            problem = f"holds {tensors[name].dtype}, expected {expected[name].dtype}"
        elif not bool(tensors[name].isfinite().all()):
            problem = "holds values that are not finite"
        else:
            continue
        raise CheckpointError(f"MLP checkpoint {str(path)!r}: tensor {name!r} {problem}")
    ids = tensors["target_ids"]
    if not bool(((ids >= 0) & (ids < network.vocab_size)).all()):
        raise CheckpointError(f"MLP checkpoint {str(path)!r} drafts tokens that the target lacks")
    network.load_state_dict(tensors)
    return network
