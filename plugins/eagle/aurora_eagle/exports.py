"""Published versions in the layouts of others: the weights bit for bit, the configuration anew.

    sglang       native, with layer ids that mean what leaves a layer
    speculators  of the library of that name, which vLLM reads too, with ids of what enters a layer
                 and the target's embedding: the library fills a missing one with random values

Native versions, which need no conversion, have ids of what enters a layer, as vLLM takes them.
Readers of a layout differ in what they take for a flag that is missing, so none is left out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from aurora_core.checkpoint_config import CONFIG_FILE
from aurora_core.checkpoint_tensors import WEIGHTS_FILE
from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec
from aurora_core.target.weights import TargetWeights
from aurora_eagle.published import EMBEDDING

SPECULATORS_VERSION = "0.9.0"
"""Version of the library whose layout is written."""

_LAYER_KEYS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "vocab_size",
)
"""Of a native config.json, what describes the draft layer."""

_FLAG_KEYS = (
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "torch_dtype",
    "aurora",
)
"""Of a native config.json, what the layout of `speculators` has under the same names."""


def export(
    checkpoint: Path,
    folder: Path,
    *,
    target: TargetSpec,
    layout: str,
    num_speculative_tokens: int,
) -> None:
    """Write a native checkpoint of this plugin into a folder in another layout.

    Args:
        checkpoint: as `aurora_eagle.checkpoint.save` wrote it.
        folder: exists and is empty.
        target: named in the layout of `speculators`, by its hub id or else its directory; its
            embedding goes there too, in the dtype that the target stores it in.
        layout: `sglang` or `speculators`.
        num_speculative_tokens: written into the layout of `speculators`.

    Raises:
        CheckpointError: SGLang cannot serve this drafter.
        TargetError: the target's embedding cannot be read.
    """
    config = json.loads((checkpoint / CONFIG_FILE).read_text(encoding="utf-8"))
    if layout == "sglang":
        config = _for_sglang(config, target)
        shutil.copyfile(checkpoint / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    else:
        config = _for_speculators(config, target, num_speculative_tokens)
        tensors = load_file(checkpoint / WEIGHTS_FILE)
        renamed = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
        renamed[EMBEDDING] = TargetWeights(target).embed_tokens.contiguous()
        save_file(renamed, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def serving_command(
    folder: Path, *, layout: str, target: str, num_speculative_tokens: int
) -> list[str]:
    """Return program and arguments of the engine that serves a folder without Aurora.

    Args:
        folder: with a checkpoint in that layout.
        layout: `eagle3`, `sglang` or `speculators`; there is none for others.
        target: directory or hub id.
        num_speculative_tokens: length of the chains.
    """
    if layout == "sglang":
        return [
            *("sglang", "serve", "--model-path", target),
            *("--speculative-algorithm", "EAGLE3"),
            *("--speculative-draft-model-path", str(folder)),
            *("--speculative-num-steps", str(num_speculative_tokens)),
            *("--speculative-eagle-topk", "1"),
            # SGLang counts the root too.
            *("--speculative-num-draft-tokens", str(num_speculative_tokens + 1)),
        ]
    if layout not in ("eagle3", "speculators"):
        return []
    # Without the method, vLLM guesses it from the folder's name.
    drafting = {
        "method": "eagle3",
        "model": str(folder),
        "num_speculative_tokens": num_speculative_tokens,
    }
    return ["vllm", "serve", target, "--speculative-config", json.dumps(drafting)]


def _for_sglang(config: dict[str, Any], target: TargetSpec) -> dict[str, Any]:
    layers = config["aurora"]["aux_layers"]
    if not all(1 <= layer < target.num_layers for layer in layers):
        raise CheckpointError(
            f"this drafter reads what enters layers {layers}, and SGLang records what enters 1 to "
            f"{target.num_layers - 1} of target {target.name!r}; train one with other `aux_layers`"
        )
    if config["norm_before_residual"]:
        raise CheckpointError(
            "this drafter has norm_before_residual, which SGLang does not know; export it in the "
            "format eagle3 or speculators, for vLLM"
        )
    ids = [layer - 1 for layer in layers]
    return config | {
        "eagle_config": config["eagle_config"] | {"eagle_aux_hidden_state_layer_ids": ids}
    }


def _for_speculators(
    config: dict[str, Any], target: TargetSpec, num_speculative_tokens: int
) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": num_speculative_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": _verifier(target),
                "architectures": [target.architecture],
            },
        },
        "transformer_layer_config": {key: config[key] for key in _LAYER_KEYS},
        "eagle_aux_hidden_state_layer_ids": config["aurora"]["aux_layers"],
        "embed_requires_grad": False,
        **{key: config[key] for key in _FLAG_KEYS},
    }


def _verifier(target: TargetSpec) -> str:
    """Return what others find the target by: its hub id, or else where it lies."""
    is_hub_id = target.name.count("/") == 1 and not Path(target.name).is_dir()
    return target.name if is_hub_id else str(Path(target.path).absolute())
