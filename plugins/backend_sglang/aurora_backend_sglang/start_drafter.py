"""The checkpoint that SGLang is started with: a version, or a placeholder, as SGLang reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from aurora_backend_sglang.server_command import write_depths
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import ServePlan
from aurora_core.versions import WEIGHTS

_CONFIG = "config.json"


def check_layers(plan: ServePlan) -> None:
    """Raise BackendError if SGLang cannot capture the layers that a drafter reads.

    SGLang names a layer's output; Aurora what enters a layer. So what enters layer 0, and what
    leaves the last layer, cannot be named there.
    """
    last = plan.target.num_layers - 1
    wrong = [layer for layer in plan.needs.aux_layers if not 1 <= layer <= last]
    if wrong:
        raise BackendError(
            f"SGLang can record what enters layers 1 to {last} of target {plan.target.name!r}, "
            f"and the speculator reads {wrong}; set `aux_layers` of the speculator to others"
        )


def prepare_drafter(checkpoint: Path, folder: Path, plan: ServePlan) -> Path:
    """Write an EAGLE-3 checkpoint with its layers in SGLang's convention; return its folder.

    Args:
        checkpoint: as the speculator saved it.
        folder: replaced.
        plan: of the run.

    Raises:
        CheckpointError: the checkpoint is not one of EAGLE-3 for these layers.
    """
    try:
        config = json.loads((checkpoint / _CONFIG).read_text(encoding="utf-8"))
        layers = list(config["aurora"]["aux_layers"])
        architecture = config["architectures"][0]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"config.json of checkpoint {str(checkpoint)!r} is missing, unreadable or incomplete "
            f"({type(error).__name__}: {error}); publish it again"
        ) from error
    if "Eagle3" not in architecture or layers != list(plan.needs.aux_layers):
        raise CheckpointError(
            f"checkpoint {str(checkpoint)!r} is of {architecture} and reads layers {layers}, and "
            f"SGLang is to serve EAGLE-3 on layers {list(plan.needs.aux_layers)}"
        )
    if config.get("norm_before_residual"):
        raise CheckpointError(
            f"checkpoint {str(checkpoint)!r} has norm_before_residual, which SGLang does not know; "
            "start from another drafter, or serve this one with vLLM"
        )
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [layer - 1 for layer in layers]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(checkpoint / WEIGHTS, folder / WEIGHTS)
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_depths(folder, plan.num_speculative_tokens)
    return folder
