"""Random drafters in the layouts that vLLM loads, for a tiny target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from aurora_core.records import TargetSpec

AUX_LAYERS = (1, 2, 3)
DRAFT_VOCABULARY = 96


def write_drafter(
    method: str, folder: Path, target: TargetSpec, head: torch.Tensor, *, seed: int
) -> None:
    """Write config.json and model.safetensors.

    Args:
        method: vLLM's name of the speculative method.
        folder: to write into; created if needed.
        target: the tiny target.
        head: its output head, [V, H], from which the drafter's own is made, so that some drafts
            are right.
        seed: of everything random.
    """
    generator = torch.Generator().manual_seed(seed)
    writer = {"eagle3": _eagle3, "eagle": _eagle, "medusa": _medusa}[method]
    config, tensors = writer(target, head.float(), generator)
    folder.mkdir(parents=True, exist_ok=True)
    config["torch_dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _llama(target: TargetSpec) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": 2 * target.hidden_size,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": target.hidden_size // 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": target.max_position_embeddings,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
    }


def _layer(
    prefix: str, width: int, target: TargetSpec, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    hidden = target.hidden_size
    shapes = {
        "self_attn.q_proj": (hidden, width),
        "self_attn.k_proj": (hidden // 2, width),
        "self_attn.v_proj": (hidden // 2, width),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (2 * hidden, hidden),
        "mlp.up_proj": (2 * hidden, hidden),
        "mlp.down_proj": (hidden, 2 * hidden),
    }
    weights = {
        f"{prefix}{name}.weight": 0.05 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    weights[f"{prefix}post_attention_layernorm.weight"] = torch.ones(hidden)
    return weights


def _eagle3(
    target: TargetSpec, head: torch.Tensor, generator: torch.Generator
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    hidden, vocabulary = target.hidden_size, target.vocab_size
    ids = torch.randperm(vocabulary, generator=generator)[:DRAFT_VOCABULARY].sort().values
    drafted = torch.zeros(vocabulary, dtype=torch.bool)
    drafted[ids] = True
    tensors = {
        "fc.weight": 0.05 * torch.randn(hidden, 3 * hidden, generator=generator),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": head[ids],
        "d2t": ids - torch.arange(DRAFT_VOCABULARY),
        "t2d": drafted,
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        **_layer("midlayer.", 2 * hidden, target, generator),
    }
    config = {
        **_llama(target),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCABULARY,
        "norm_before_residual": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS)},
    }
    return config, tensors


def _eagle(
    target: TargetSpec, head: torch.Tensor, generator: torch.Generator
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    hidden = target.hidden_size
    fc = 0.02 * torch.randn(hidden, 2 * hidden, generator=generator)
    fc[:, hidden:] += torch.eye(hidden)
    tensors = {"fc.weight": fc, **_layer("layers.0.", hidden, target, generator)}
    config = {**_llama(target), "architectures": ["LlamaForCausalLM"]}
    return {**config, "aurora": {"speculator": "eagle1"}}, tensors


def _medusa(
    target: TargetSpec, head: torch.Tensor, generator: torch.Generator
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    hidden = target.hidden_size
    tensors = {
        f"blocks.{index}.layers.0.weight": 0.1 * torch.randn(hidden, hidden, generator=generator)
        for index in range(3)
    }
    tensors["lm_head.weight"] = head
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": target.vocab_size,
        "num_heads": 3,
        "num_hidden_layers": 1,
        "original_lm_head": True,
    }
    return config, tensors
