"""What config.json says about a target, for the model families that Aurora can serve."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aurora_core.errors import TargetError

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Values of `architectures` in config.json that can be served."""

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")
"""Scaling rules of rotary position embeddings that can be served."""

SUPPORTED_ACTIVATIONS = ("silu",)
"""Values of `hidden_act` that can be served; every released model of the families uses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The facts of a decoder of the Llama, Qwen2 or Qwen3 family."""

    name: str
    """One of `SUPPORTED_ARCHITECTURES`."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the gated feed-forward layer."""
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Not always hidden_size / num_attention_heads."""
    max_position_embeddings: int
    """Positions the model was made for: prompt and output together."""
    rms_norm_eps: float
    rope_theta: float
    rope_type: str
    """One of `SUPPORTED_ROPE_TYPES`."""
    rope_scaling: Mapping[str, Any]
    """Parameters of the scaling rule, such as `factor`; empty for the rule `default`."""
    hidden_act: str
    attention_bias: bool
    """Whether query, key and value projections have biases, as in Qwen2."""
    tie_word_embeddings: bool
    """Whether the output head is the embedding matrix."""

    @property
    def query_key_norm(self) -> bool:
        """Whether each head's query and key pass an RMS norm before rotation, as in Qwen3."""
        return self.name == "Qwen3ForCausalLM"

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors of one decoder layer: short name -> shape."""
        hidden, inner, dim = self.hidden_size, self.intermediate_size, self.head_dim
        query, key = self.num_attention_heads * dim, self.num_key_value_heads * dim
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (key, hidden),
            "self_attn.v_proj.weight": (key, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        if self.attention_bias:
            shapes["self_attn.q_proj.bias"] = (query,)
            shapes["self_attn.k_proj.bias"] = shapes["self_attn.v_proj.bias"] = (key,)
        if self.query_key_norm:
            shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (dim,)
        return shapes

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor that the weights must hold: full name -> shape."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size),
            "model.norm.weight": (self.hidden_size,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        for short_name, shape in self.layer_shapes().items():
            for index in range(self.num_layers):
                shapes[f"model.layers.{index}.{short_name}"] = shape
        return shapes


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a target's file.

    Raises:
        TargetError: the file cannot be read or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TargetError(
            f"{path} cannot be read as JSON ({error}); fetch the target again"
        ) from error
    if not isinstance(content, dict):
        raise TargetError(f"{path} is not a JSON object; fetch the target again")
    return content


def read_config(directory: Path) -> dict[str, Any]:
    """Return config.json of a target directory.

    Raises:
        TargetError: there is no such directory, it has no config.json, or that is not JSON.
    """
    if not directory.is_dir():
        raise TargetError(f"target {str(directory)!r} is not a directory; give a model directory")
    path = directory / "config.json"
    if not path.is_file():
        raise TargetError(
            f"target directory {str(directory)!r} has no config.json; "
            "give a directory in Hugging Face layout"
        )
    return read_json(path)


def parse_architecture(config: Mapping[str, Any], directory: Path) -> Architecture:
    """Return the facts in a config.json, in the layout of transformers 4 or 5.

    Args:
        config: content of config.json.
        directory: named in error messages.

    Raises:
        TargetError: the model is of another family or uses what Aurora cannot serve.
    """
    name = _supported_name(config, directory)
    _refuse_variants(config, directory)
    num_heads = _positive(config, "num_attention_heads", directory)
    hidden_size = _positive(config, "hidden_size", directory)
    qwen = name.startswith("Qwen")
    # Defaults are those of the families' own config classes: a missing key and a null differ.
    num_key_value_heads = config.get("num_key_value_heads", 32 if qwen else None) or num_heads
    default_dim = 128 if name == "Qwen3ForCausalLM" else None
    head_dim = config.get("head_dim", default_dim) or hidden_size // num_heads
    if num_heads % num_key_value_heads:
        raise TargetError(
            f"config.json of target {str(directory)!r} has {num_heads} attention heads, which "
            f"{num_key_value_heads} key-value heads do not divide; fetch the target again"
        )
    rope_theta, rope_type, rope_scaling = _rope(config, directory)
    return Architecture(
        name=name,
        vocab_size=_positive(config, "vocab_size", directory),
        hidden_size=hidden_size,
        intermediate_size=_positive(config, "intermediate_size", directory),
        num_layers=_positive(config, "num_hidden_layers", directory),
        num_attention_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=config.get("max_position_embeddings", 32768 if qwen else 2048),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=rope_theta,
        rope_type=rope_type,
        rope_scaling=rope_scaling,
        hidden_act=config.get("hidden_act", "silu"),
        attention_bias=name == "Qwen2ForCausalLM",
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _supported_name(config: Mapping[str, Any], directory: Path) -> str:
    architectures = config.get("architectures") or []
    name = architectures[0] if architectures else config.get("model_type", "unknown")
    if name not in SUPPORTED_ARCHITECTURES:
        raise TargetError(
            f"target {str(directory)!r} has architecture {name!r}, which Aurora cannot serve; "
            f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return str(name)


def _refuse_variants(config: Mapping[str, Any], directory: Path) -> None:
    # Qwen2 has biases on queries, keys and values whatever its config.json says.
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise TargetError(
                f"target {str(directory)!r} has `{key}: true`, which Aurora cannot serve; "
                "choose a target without these biases"
            )
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise TargetError(
            f"target {str(directory)!r} is quantised ({method!r}); "
            "give the model's bfloat16, float16 or float32 weights"
        )
    if config.get("use_sliding_window"):
        raise TargetError(
            f"target {str(directory)!r} uses sliding-window attention, which Aurora cannot serve; "
            "choose a target with `use_sliding_window: false`"
        )
    activation = config.get("hidden_act", "silu")
    if activation not in SUPPORTED_ACTIVATIONS:
        raise TargetError(
            f"target {str(directory)!r} has activation {activation!r}, which Aurora cannot serve; "
            f"supported: {', '.join(SUPPORTED_ACTIVATIONS)}"
        )


def _rope(config: Mapping[str, Any], directory: Path) -> tuple[float, str, dict[str, Any]]:
    # transformers 5 writes one `rope_parameters`; 4 wrote `rope_theta` beside `rope_scaling`,
    # and before 4.43 called the scaling's `rope_type` just `type`.
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    legacy_type = parameters.pop("type", None)
    rope_type = parameters.pop("rope_type", None) or legacy_type or "default"
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise TargetError(
            f"target {str(directory)!r} has rope scaling {rope_type!r}, which Aurora cannot serve; "
            f"supported: {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    partial = parameters.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1.0):
        raise TargetError(
            f"target {str(directory)!r} rotates only {partial} of each head, "
            "which Aurora cannot serve; choose one without `partial_rotary_factor`"
        )
    return theta, rope_type, {} if rope_type == "default" else parameters


def _positive(config: Mapping[str, Any], key: str, directory: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise TargetError(
            f"config.json of target {str(directory)!r} has {key} = {value!r}, "
            "expected a positive integer; fetch the target again"
        )
    return value
