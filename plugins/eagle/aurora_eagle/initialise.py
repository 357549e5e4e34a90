"""Weights of a new drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from aurora_eagle.model import DraftShape, Eagle3Network

if TYPE_CHECKING:
    from aurora_core.target.weights import TargetWeights

FEATURE_NOISE = 0.1
"""Size of the random part of `fc` beside the identity on the deepest layer."""

ATTENTION_NOISE = 0.3
"""Size of the random part of the attention projections beside the copied one."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def draft_shape(
    weights: TargetWeights, *, draft_vocab_size: int, num_aux_layers: int
) -> DraftShape:
    """Return the shape of a drafter with the dimensions of one of the target's layers."""
    return DraftShape(
        hidden_size=weights.hidden_size,
        intermediate_size=weights.intermediate_size,
        num_heads=weights.num_attention_heads,
        num_kv_heads=weights.num_key_value_heads,
        head_dim=weights.head_dim,
        num_aux_layers=num_aux_layers,
        vocab_size=weights.vocab_size,
        draft_vocab_size=draft_vocab_size,
        max_position_embeddings=weights.max_position_embeddings,
        rms_norm_eps=weights.rms_norm_eps,
        rope_theta=weights.rope_theta,
    )


@torch.no_grad()
def initialise(network: Eagle3Network, weights: TargetWeights, *, from_target: bool) -> None:
    """Fill a new network.

    A drafter from the target begins as the target's last layer and head, reading the deepest of the
    captured hidden states: it saves most of the tokens that learning from nothing takes.
    """
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
        else:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    if from_target:
        _from_target(network, weights)


def _from_target(network: Eagle3Network, weights: TargetWeights) -> None:
    hidden = network.shape.hidden_size
    network.fc.weight.mul_(FEATURE_NOISE)
    network.fc.weight[:, -hidden:].add_(torch.eye(hidden))
    network.lm_head.weight.copy_(network.target_head[network.target_ids])
    network.norm.weight.copy_(weights.final_norm)

    layer = weights.layer(weights.num_layers - 1)
    middle = network.midlayer
    middle.hidden_norm.weight.copy_(layer["input_layernorm.weight"])
    middle.post_attention_layernorm.weight.copy_(layer["post_attention_layernorm.weight"])
    for name in ("gate_proj", "up_proj", "down_proj"):
        _weight(middle.mlp, name).copy_(layer[f"mlp.{name}.weight"])
    # Qwen3 normalises its heads' queries and keys; a drafter does not, so its own stay random.
    copied = ("v_proj", "o_proj") if "self_attn.q_norm.weight" in layer else PROJECTIONS
    for name in copied:
        source = layer[f"self_attn.{name}.weight"]
        projection = _weight(middle.self_attn, name)
        projection.mul_(ATTENTION_NOISE)
        # A drafter's queries, keys and values read the embedding, which the target's do not, and
        # then the hidden state, which they do.
        projection[:, -source.shape[1] :].add_(source)


def _weight(module: nn.Module, name: str) -> nn.Parameter:
    return module.get_parameter(f"{name}.weight")
