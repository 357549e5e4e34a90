"""The native EAGLE-3 checkpoint, which vLLM and SGLang load: config.json and model.safetensors.

Neither engine notices a missing tensor, so everything is checked here, before and after.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aurora_core.checkpoint_config import (
    CONFIG_FILE,
    SECTION,
    check_flags,
    check_maker,
    describe_maker,
    readable,
)
from aurora_core.checkpoint_tensors import read_tensors, write_tensors
from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec
from aurora_eagle import vocabulary
from aurora_eagle.initialise import draft_shape
from aurora_eagle.model import DraftShape, Eagle3Network, find_shape_fault, tensor_shapes
from aurora_eagle.published_config import read_rope

if TYPE_CHECKING:
    from aurora_core.target.weights import TargetWeights

SCHEMA = 1
"""Version of the `aurora` section of config.json."""

MAP_DTYPES = {"d2t": torch.int64, "t2d": torch.bool}
"""Tensors of the vocabulary map; all others are weights."""


def save(
    network: Eagle3Network,
    path: Path,
    *,
    target: TargetSpec,
    aux_layers: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    """Write a checkpoint into a directory, creating it if needed.

    Raises:
        CheckpointError: a weight is not finite.
    """
    write_tensors(network.state_dict(), path, dtype=dtype)
    config = _config(network.shape, target=target, aux_layers=aux_layers, dtype=dtype)
    (path / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(
    path: Path, weights: TargetWeights, *, target: TargetSpec, aux_layers: tuple[int, ...]
) -> Eagle3Network:
    """Read what `save` wrote, as float32 on CPU.

    Raises:
        CheckpointError: it is unreadable, incomplete, malformed, or made for another target,
            tokenizer or choice of layers.
    """
    shape = _read_shape(path, weights, target=target, aux_layers=aux_layers)
    tensors = read_tensors(path, tensor_shapes(shape), maps=MAP_DTYPES)
    fault = vocabulary.find_fault(tensors["d2t"], tensors["t2d"])
    if fault is not None:
        raise CheckpointError(
            f"vocabulary map of checkpoint {str(path)!r} is invalid: {fault}; publish it again"
        )
    return assemble(shape, tensors, weights)


def assemble(
    shape: DraftShape, tensors: Mapping[str, Tensor], weights: TargetWeights
) -> Eagle3Network:
    """Return a network of tensors that were checked, as float32."""
    target_ids = tensors["d2t"] + torch.arange(shape.draft_vocab_size)
    # Weights are assigned, not copied over random ones: an engine loads this beside serving.
    with torch.device("meta"):
        network = Eagle3Network(shape, target_ids, weights.embed_tokens, weights.lm_head)
    floats = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    network.load_state_dict(floats, assign=True)
    return network


def _config(
    shape: DraftShape, *, target: TargetSpec, aux_layers: tuple[int, ...], dtype: torch.dtype
) -> dict[str, Any]:
    """Return config.json: every flag stands there, because engines differ in their defaults."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "target_hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": shape.max_position_embeddings,
        # transformers 4 reads the first two, transformers 5 the third.
        "rope_theta": shape.rope_theta,
        "rope_scaling": dict(shape.rope_scaling) or None,
        "rope_parameters": {
            "rope_type": "default",
            **dict(shape.rope_scaling),
            "rope_theta": shape.rope_theta,
        },
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "num_aux_hidden_states": shape.num_aux_layers,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": False,
        "norm_output": False,
        "fc_norm": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(aux_layers),
            "use_aux_hidden_state": True,
            "norm_before_fc": False,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        },
        "torch_dtype": str(dtype).removeprefix("torch."),
        SECTION: describe_maker("eagle3", SCHEMA, target)
        | {
            "aux_layers": list(aux_layers),
            # vLLM takes the ids above as they are; SGLang means the layer before each.
            "aux_layer_convention": "entering",
        },
    }


def _read_shape(
    path: Path, weights: TargetWeights, *, target: TargetSpec, aux_layers: tuple[int, ...]
) -> DraftShape:
    with readable(path):
        config = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        its_layers = list(config[SECTION]["aux_layers"])
        shape = _shape(config, weights, num_aux_layers=len(aux_layers))
    check_maker(path, config, speculator="eagle3", schema=SCHEMA, target=target)
    if its_layers != list(aux_layers):
        raise CheckpointError(
            f"checkpoint {str(path)!r} reads layers {its_layers} of the target, expected "
            f"{list(aux_layers)}; set `aux_layers` to those of the checkpoint"
        )
    # All that is left follows from these or from the target: nothing may say otherwise.
    wanted = _config(shape, target=target, aux_layers=aux_layers, dtype=torch.float32)
    check_flags(path, config, wanted)
    if fault := find_shape_fault(shape):
        raise CheckpointError(
            f"config.json of checkpoint {str(path)!r} has {fault}; publish it again"
        )
    return shape


def _shape(config: dict[str, Any], weights: TargetWeights, *, num_aux_layers: int) -> DraftShape:
    """Return the shape that config.json tells; of a published drafter it is not the target's."""
    theta, scaling = read_rope(config)
    return dataclasses.replace(
        draft_shape(
            weights,
            draft_vocab_size=int(config["draft_vocab_size"]),
            num_aux_layers=num_aux_layers,
        ),
        intermediate_size=int(config["intermediate_size"]),
        num_heads=int(config["num_attention_heads"]),
        num_kv_heads=int(config["num_key_value_heads"]),
        head_dim=int(config["head_dim"]),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_before_residual=bool(config["norm_before_residual"]),
    )
