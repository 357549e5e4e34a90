"""What the config.json of a published EAGLE-3 drafter says. Imports no torch.

Two layouts are known:

    native       a Llama config of the draft layer with `draft_vocab_size`, as EAGLE's authors and
                 most trainers publish; variants in `eagle_config` or beside it
    speculators  `speculators_config`, `transformer_layer_config` and flags, as the library
                 `speculators` saves

Layer ids are the dangerous field. What enters layer i is what leaves layer i - 1, and the same ids
mean the one or the other by where a drafter was trained:

    entering     vLLM, the library `speculators`, Aurora
    output       SGLang, and trainers that follow it

A wrong guess costs acceptance and raises no error, so there is none: an id list without a known
meaning is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aurora_core.errors import CheckpointError, ConfigError
from aurora_core.records import TargetSpec

Convention = Literal["entering", "output"]
NUM_AUX_LAYERS = 3
"""Target layers whose hidden states a drafter reads; engines load no other number."""

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")
"""Scaling rules of rotary positions that a drafter can have."""

_FIXED = {
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "num_aux_hidden_states": NUM_AUX_LAYERS,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "quantization_config": None,
}
"""Flags with the only value that the network here has; a missing one stands for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedConfig:
    """A published drafter, as far as its weights do not say."""

    layout: Literal["native", "speculators"]
    aux_layers: tuple[int, ...]
    """Increasing, in the `entering` convention."""
    draft_vocab_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: tuple[tuple[str, str | float], ...]
    norm_before_residual: bool


def read_published_config(
    folder: Path, target: TargetSpec, convention: Convention | None
) -> PublishedConfig:
    """Read and check the config.json of a published drafter.

    Args:
        folder: with config.json.
        target: that it must have been made for.
        convention: what the layer ids of the native layout mean; None takes a meaning that gives
            the layers of EAGLE-3, and refuses ids for which there is none.

    Raises:
        CheckpointError: it cannot be read, is of another target or size, or has a flag or layers
            that cannot be followed here.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        is_speculators = "speculators_config" in config or "speculators_model_type" in config
        layer = config["transformer_layer_config"] if is_speculators else config
        flags = {**layer, **config, **(config.get("eagle_config") or {})}
        layer.get  # noqa: B018 - a list or a number has none
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refusal(folder, f"cannot be read ({type(error).__name__}: {error})") from error
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise _refusal(folder, f"is of a {kind!r} drafter, and not of EAGLE-3")
    if layer.get("model_type", "llama") != "llama":
        raise _refusal(
            folder, f"has layers of {layer['model_type']!r}; drafters with those of Llama are known"
        )
    for name, wanted in _FIXED.items():
        if flags.get(name, wanted) not in (wanted, None):
            raise _refusal(folder, f"has {name} = {flags[name]!r}, and only {wanted!r} is known")
    if is_speculators and "norm_before_residual" not in config:
        raise _refusal(folder, "lacks norm_before_residual, for which its readers' defaults differ")
    _check_target(folder, config, layer, target)
    try:
        theta, scaling = read_rope(layer)
        heads = int(layer["num_attention_heads"])
        return PublishedConfig(
            layout="speculators" if is_speculators else "native",
            aux_layers=_aux_layers(folder, config, flags, target, convention, is_speculators),
            draft_vocab_size=int(config.get("draft_vocab_size") or target.vocab_size),
            intermediate_size=int(layer["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(layer.get("num_key_value_heads") or heads),
            head_dim=int(layer.get("head_dim") or target.hidden_size // heads),
            rms_norm_eps=float(layer.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            norm_before_residual=bool(flags.get("norm_before_residual", False)),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise _refusal(folder, f"cannot be followed ({type(error).__name__}: {error})") from error


def read_rope(config: Mapping[str, Any]) -> tuple[float, tuple[tuple[str, str | float], ...]]:
    """Return the base of rotary positions, and the parameters of their scaling rule by name.

    transformers 5 writes one `rope_parameters`; 4 wrote `rope_theta` beside `rope_scaling`, and
    long ago called the latter's `rope_type` just `type`. Without any, Llama's base is 10000.

    Raises:
        ValueError: another rule than `SUPPORTED_ROPE_TYPES`.
    """
    rule = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(rule.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    rope_type = rule.pop("rope_type", None) or rule.pop("type", None) or "default"
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise ValueError(f"rope scaling {rope_type!r}, known are {', '.join(SUPPORTED_ROPE_TYPES)}")
    if rope_type == "default":
        return theta, ()
    return theta, tuple(sorted({**rule, "rope_type": rope_type}.items()))


def _check_target(
    folder: Path, config: Mapping[str, Any], layer: Mapping[str, Any], target: TargetSpec
) -> None:
    for name, found, wanted in (
        ("hidden_size", layer.get("hidden_size"), target.hidden_size),
        ("target_hidden_size", config.get("target_hidden_size"), target.hidden_size),
        ("vocab_size", layer.get("vocab_size"), target.vocab_size),
    ):
        if found != wanted and not (name == "target_hidden_size" and found is None):
            raise _refusal(
                folder, f"has {name} = {found!r}, and target {target.name!r} has {wanted}"
            )
    own = config.get("aurora")
    if isinstance(own, dict) and own.get("target_fingerprint") != target.fingerprint:
        raise _refusal(folder, f"was made for another target than {target.name!r}")


def _aux_layers(
    folder: Path,
    config: Mapping[str, Any],
    flags: Mapping[str, Any],
    target: TargetSpec,
    convention: Convention | None,
    is_speculators: bool,
) -> tuple[int, ...]:
    """Return what is read, in the `entering` convention."""
    num_layers = target.num_layers
    usual = (2, num_layers // 2, num_layers - 3)
    own = config.get("aurora")
    named = config.get("eagle_aux_hidden_state_layer_ids") or flags.get(
        "eagle_aux_hidden_state_layer_ids"
    )
    if isinstance(own, dict):
        found = tuple(own["aux_layers"])
    elif not named:
        found = usual
    elif is_speculators:
        if convention == "output":
            raise ConfigError(
                f"layer ids of the layout of {str(folder)!r} always mean what enters a layer; "
                "remove `start_from_layers`"
            )
        found = tuple(named)
    else:
        found = _resolve(folder, named, usual, convention)
    valid = len(found) == NUM_AUX_LAYERS and all(type(layer) is int for layer in found)
    if not valid or not 0 <= found[0] < found[1] < found[2] <= num_layers:
        raise _refusal(
            folder,
            f"reads what enters layers {list(found)}, and {NUM_AUX_LAYERS} increasing ones from 0 "
            f"to {num_layers} of target {target.name!r} are known",
        )
    return found


def _resolve(
    folder: Path, named: Sequence[int], usual: tuple[int, ...], convention: Convention | None
) -> tuple[int, ...]:
    entering, output = tuple(named), tuple(layer + 1 for layer in named)
    if convention is None and usual not in (entering, output):
        raise ConfigError(
            f"config.json of {str(folder)!r} names layers {list(named)} and not whether what "
            "enters them is meant, as by vLLM, or what leaves them, as by SGLang; set "
            "`start_from_layers` of speculator 'eagle3' to entering or output"
        )
    if convention is None:
        return usual
    return entering if convention == "entering" else output


def _refusal(folder: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"config.json of the published drafter {str(folder)!r} {reason}; set `start_from` of "
        "speculator 'eagle3' to a drafter of this target"
    )
