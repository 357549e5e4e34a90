"""The native EAGLE-3 checkpoint, which vLLM and SGLang load: config.json and model.safetensors.

Neither engine notices a missing tensor, so everything is checked here, before and after.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aurora_core.checkpoint_tensors import read_tensors, write_tensors
from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec
from aurora_eagle import vocabulary
from aurora_eagle.initialise import draft_shape
from aurora_eagle.model import DraftShape, Eagle3Network, find_shape_fault, tensor_shapes
from aurora_eagle.published_config import read_rope

if TYPE_CHECKING:
    from aurora_core.target.weights import TargetWeights

CONFIG_FILE = "config.json"
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
        "aurora": {
            "schema": SCHEMA,
            "speculator": "eagle3",
            "target_fingerprint": target.fingerprint,
            "tokenizer_fingerprint": target.tokenizer_fingerprint,
            "aux_layers": list(aux_layers),
            # vLLM takes the ids above as they are; SGLang means the layer before each.
            "aux_layer_convention": "entering",
        },
    }


def _read_shape(
    path: Path, weights: TargetWeights, *, target: TargetSpec, aux_layers: tuple[int, ...]
) -> DraftShape:
    try:
        config = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        own = config["aurora"]
        maker = (own["speculator"], own["schema"])
        made_for = {
            "target": own["target_fingerprint"],
            "tokenizer": own["tokenizer_fingerprint"],
        }
        its_layers = list(own["aux_layers"])
        shape = _shape(config, weights, num_aux_layers=len(aux_layers))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"config.json of checkpoint {str(path)!r} is missing, unreadable or incomplete "
            f"({type(error).__name__}: {error}); publish it again"
        ) from error
    if maker != ("eagle3", SCHEMA):
        raise CheckpointError(
            f"checkpoint {str(path)!r} is of speculator {maker[0]!r}, schema {maker[1]!r}, "
            f"expected 'eagle3', schema {SCHEMA}; use the version that wrote it"
        )
    expected = {"target": target.fingerprint, "tokenizer": target.tokenizer_fingerprint}
    for name, fingerprint in expected.items():
        if made_for[name] != fingerprint:
            raise CheckpointError(
                f"checkpoint {str(path)!r} was made for another {name} than that of "
                f"{target.name!r}; start a new drafter for this target"
            )
    if its_layers != list(aux_layers):
        raise CheckpointError(
            f"checkpoint {str(path)!r} reads layers {its_layers} of the target, expected "
            f"{list(aux_layers)}; set `aux_layers` to those of the checkpoint"
        )
    # All that is left follows from these or from the target: nothing may say otherwise.
    wanted = _config(shape, target=target, aux_layers=aux_layers, dtype=torch.float32)
    for name in sorted(wanted.keys() - {"torch_dtype", "aurora"}):
        if config.get(name) != wanted[name]:
            raise CheckpointError(
                f"config.json of checkpoint {str(path)!r} has {name} = {config.get(name)!r}, "
                f"expected {wanted[name]!r}; publish it again"
            )
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
