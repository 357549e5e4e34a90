"""Published drafters as others write them, made by hand and not by this plugin's own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from aurora_core.target.weights import TargetWeights

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, DRAFTED = 32, 48, 2, 1, 8, 64
"""Other sizes than those of the target's layers, but for the first."""


def draft_tensors(weights: TargetWeights, *, prefix: str = "midlayer.") -> dict[str, Tensor]:
    """Return the tensors of a random drafter under one of the known names of its layer."""
    generator = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    ids = torch.randperm(weights.vocab_size, generator=generator)[:DRAFTED].sort().values
    drafted = torch.zeros(weights.vocab_size, dtype=torch.bool)
    drafted[ids] = True
    layer = {
        "self_attn.q_proj": noise(HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.k_proj": noise(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.v_proj": noise(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.o_proj": noise(HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": noise(INNER, HIDDEN),
        "mlp.up_proj": noise(INNER, HIDDEN),
        "mlp.down_proj": noise(HIDDEN, INNER),
        "hidden_norm": 1 + noise(HIDDEN),
        "input_layernorm": 1 + noise(HIDDEN),
        "post_attention_layernorm": 1 + noise(HIDDEN),
    }
    return {
        **{f"{prefix}{name}.weight": tensor for name, tensor in layer.items()},
        "fc.weight": noise(HIDDEN, 3 * HIDDEN),
        "norm.weight": 1 + noise(HIDDEN),
        "lm_head.weight": noise(DRAFTED, HIDDEN),
        "d2t": ids - torch.arange(DRAFTED),
        "t2d": drafted,
    }


def layer_config(weights: TargetWeights) -> dict[str, Any]:
    """Return the Llama config of the draft layer, as transformers 4 writes it."""
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "vocab_size": weights.vocab_size,
    }


def native_config(weights: TargetWeights, **changes: Any) -> dict[str, Any]:
    """Return a config.json of the native layout."""
    return {
        **layer_config(weights),
        "architectures": ["LlamaForCausalLM"],
        "draft_vocab_size": DRAFTED,
        **changes,
    }


def speculators_config(weights: TargetWeights, **changes: Any) -> dict[str, Any]:
    """Return a config.json of the layout of `speculators`."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"},
        "transformer_layer_config": layer_config(weights),
        "draft_vocab_size": DRAFTED,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "eagle_aux_hidden_state_layer_ids": [0, 2, 3],
        **changes,
    }


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write config.json and model.safetensors, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    return folder
