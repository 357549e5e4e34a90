"""The checkpoint that vLLM's Medusa loads: config.json and model.safetensors.

vLLM ignores tensors that it does not know and takes defaults for flags that are not there, so
everything is checked here, before and after.
"""

from __future__ import annotations

import json
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
from aurora_medusa.config import MAX_TREE_NODES, NUM_RANKS
from aurora_medusa.model import MedusaNetwork, MedusaShape, tensor_shapes

if TYPE_CHECKING:
    from aurora_core.target.weights import TargetWeights

SCHEMA = 1
"""Version of the `aurora` section of config.json."""


def save(network: MedusaNetwork, path: Path, *, target: TargetSpec, dtype: torch.dtype) -> None:
    """Write a checkpoint into a directory, creating it if needed.

    The target's head, cut to the draft vocabulary, is part of it unless every head has its own:
    vLLM does not share it. It takes most of the space.

    Raises:
        CheckpointError: a weight is not finite.
    """
    content = dict(network.state_dict())
    if not network.shape.own_heads:
        content["lm_head.weight"] = network.draft_head
    write_tensors(content, path, dtype=dtype)
    config = _config(network.shape, target=target, dtype=dtype)
    (path / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(path: Path, weights: TargetWeights, *, target: TargetSpec) -> MedusaNetwork:
    """Read what `save` wrote, as float32 on CPU.

    Raises:
        CheckpointError: it is unreadable, incomplete, malformed, or made for another target or
            tokenizer.
    """
    shape = _read_shape(path, weights, target=target)
    tensors = read_tensors(path, tensor_shapes(shape), maps={"token_map": torch.int64})
    token_map = tensors.get("token_map", torch.arange(shape.vocab_size))
    if fault := find_fault(token_map, shape.vocab_size):
        raise CheckpointError(
            f"vocabulary map of checkpoint {str(path)!r} is invalid: {fault}; publish it again"
        )
    # Weights are assigned, not copied over random ones: an engine loads this beside serving.
    with torch.device("meta"):
        network = MedusaNetwork(shape, token_map, weights.lm_head)
    head = tensors.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, network.draft_head.to(head.dtype)):
        raise CheckpointError(
            f"tensor 'lm_head.weight' of checkpoint {str(path)!r} is not the output head of target "
            f"{target.name!r}; start a new drafter for this target"
        )
    floats = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    network.load_state_dict(floats, assign=True)
    return network


def find_fault(token_map: Tensor, vocab_size: int) -> str | None:
    """Return what is wrong with a stored vocabulary map in words, or None."""
    if int(token_map.min()) < 0 or int(token_map.max()) >= vocab_size:
        return f"token_map leads to ids outside 0 to {vocab_size - 1}"
    if bool((token_map[1:] <= token_map[:-1]).any()):
        return "the target ids of token_map do not increase"
    return None


def _config(shape: MedusaShape, *, target: TargetSpec, dtype: torch.dtype) -> dict[str, Any]:
    """Return config.json: every flag stands there, because engines differ in their defaults."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "truncated_vocab_size": shape.draft_vocab_size,
        # No other key may hold "num" with "heads" or "layers": vLLM would take it for these two.
        "num_heads": shape.num_heads,
        "num_hidden_layers": shape.num_blocks,
        "medusa_fc_bias": True,
        "original_lm_head": not shape.own_heads,
        "logit_scale": 1.0,
        "max_paths": MAX_TREE_NODES,
        "topk": NUM_RANKS,
        "torch_dtype": str(dtype).removeprefix("torch."),
        SECTION: describe_maker("medusa", SCHEMA, target),
    }


def _read_shape(path: Path, weights: TargetWeights, *, target: TargetSpec) -> MedusaShape:
    with readable(path):
        config = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        shape = MedusaShape(
            hidden_size=weights.hidden_size,
            vocab_size=weights.vocab_size,
            draft_vocab_size=int(config["truncated_vocab_size"]),
            num_heads=int(config["num_heads"]),
            num_blocks=int(config["num_hidden_layers"]),
            own_heads=not config["original_lm_head"],
        )
    check_maker(path, config, speculator="medusa", schema=SCHEMA, target=target)
    # All that is left follows from the target or is fixed: nothing may say otherwise.
    wanted = _config(shape, target=target, dtype=torch.float32)
    check_flags(path, config, wanted)
    for name, size, largest in (
        ("truncated_vocab_size", shape.draft_vocab_size, shape.vocab_size),
        ("num_heads", shape.num_heads, 16),
        ("num_hidden_layers", shape.num_blocks, 16),
    ):
        if not 0 < size <= largest:
            raise CheckpointError(
                f"config.json of checkpoint {str(path)!r} has {name} = {size}, expected 1 to "
                f"{largest}; publish it again"
            )
    return shape
