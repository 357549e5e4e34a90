"""An EAGLE-3 drafter that others have published, as a network to serve and to go on training with.

Engines keep random weights where a tensor is missing and leave out what they do not know, so all
names, shapes, types and values are checked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aurora_core.errors import CheckpointError
from aurora_core.published_tensors import read_published
from aurora_core.records import TargetSpec
from aurora_eagle import vocabulary
from aurora_eagle.checkpoint import assemble
from aurora_eagle.initialise import draft_shape
from aurora_eagle.model import DraftShape, Eagle3Network, find_shape_fault, tensor_shapes
from aurora_eagle.published_config import Convention, PublishedConfig, read_published_config

if TYPE_CHECKING:
    from aurora_core.target.weights import TargetWeights

FILES = ("model.safetensors", "pytorch_model.bin")
"""Names looked for in the directory, in this order."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored in; anything else needs scales that are not there."""

EMBEDDING = "embed_tokens.weight"


def import_network(
    folder: Path,
    weights: TargetWeights,
    *,
    target: TargetSpec,
    aux_layers: tuple[int, ...],
    convention: Convention | None = None,
) -> Eagle3Network:
    """Return a published drafter as float32 on CPU.

    Its draft vocabulary, sizes, rotary positions and residual are its own; the positions it may
    draft at are the target's. t2d follows from d2t and may be missing, both may where the draft
    vocabulary is the target's.

    Args:
        folder: in the native layout or that of `speculators`.
        weights: of the target.
        target: of the run.
        aux_layers: that the speculator records, in the `entering` convention.
        convention: see `read_published_config`.

    Raises:
        CheckpointError: it cannot be read, is not whole, has what is not known here, or was made
            for another target.
    """
    config = read_published_config(folder, target, convention)
    if config.aux_layers != aux_layers:
        raise CheckpointError(
            f"the published drafter {str(folder)!r} reads what enters layers "
            f"{list(config.aux_layers)}, and `aux_layers` says {list(aux_layers)}; leave "
            "`aux_layers` out"
        )
    shape = _shape(config, weights)
    if fault := find_shape_fault(shape):
        raise _refusal(folder, f"has {fault} in config.json")
    found = _canonical(read_published(folder, FILES, what="an EAGLE-3 drafter"), folder)
    _check_embedding(found.pop(EMBEDDING, None), weights.embed_tokens, folder)
    tensors = _check(_with_maps(found, shape), shape, folder)
    if fault := vocabulary.find_fault(tensors["d2t"], tensors["t2d"]):
        raise _refusal(folder, f"has an invalid vocabulary map: {fault}")
    return assemble(shape, tensors, weights)


def _shape(config: PublishedConfig, weights: TargetWeights) -> DraftShape:
    return dataclasses.replace(
        draft_shape(
            weights,
            draft_vocab_size=config.draft_vocab_size,
            num_aux_layers=len(config.aux_layers),
        ),
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        rope_scaling=config.rope_scaling,
        norm_before_residual=config.norm_before_residual,
    )


def _canonical(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Return the tensors under native names, without frequencies that follow from the config."""
    renamed: dict[str, Tensor] = {}
    for stored, tensor in tensors.items():
        name = stored.removeprefix("model.")
        if name.startswith("layers.0."):
            name = "midlayer." + name.removeprefix("layers.0.")
        if name.endswith("rotary_emb.inv_freq"):
            continue
        if name in renamed:
            raise _refusal(folder, f"names the tensor {name!r} twice")
        renamed[name] = tensor
    return renamed


def _check_embedding(found: Tensor | None, own: Tensor, folder: Path) -> None:
    """See that an embedding is the target's, perhaps rounded: drafters here share it."""
    if found is None:
        return
    same = found.shape == own.shape and found.dtype in DTYPES
    if not (same and (torch.equal(found, own.to(found.dtype)) or torch.equal(own, found.to(own)))):
        raise _refusal(folder, "has an embedding of its own, which drafters share with the target")


def _with_maps(tensors: dict[str, Tensor], shape: DraftShape) -> dict[str, Tensor]:
    """Add the maps that follow from what is there."""
    if shape.draft_vocab_size == shape.vocab_size and "d2t" not in tensors:
        tensors = {"d2t": torch.zeros(shape.vocab_size, dtype=torch.int64), **tensors}
    offsets = tensors.get("d2t")
    if offsets is None or "t2d" in tensors:
        return tensors
    if offsets.dtype != torch.int64 or offsets.dim() != 1:
        return tensors  # refused soon
    ids = offsets + torch.arange(len(offsets))
    membership = torch.zeros(shape.vocab_size, dtype=torch.bool)
    membership[ids[(ids >= 0) & (ids < shape.vocab_size)]] = True
    return {**tensors, "t2d": membership}


def _check(tensors: dict[str, Tensor], shape: DraftShape, folder: Path) -> dict[str, Tensor]:
    """Return exactly the tensors of such a drafter."""
    shapes = tensor_shapes(shape)
    missing, extra = sorted(shapes.keys() - tensors), sorted(tensors.keys() - shapes)
    if missing or extra:
        found = [f"lacks {names}" for names in (missing,) if names]
        found += [f"has the unknown {names}" for names in (extra,) if names]
        raise _refusal(folder, " and ".join(found))
    maps = {"d2t": torch.int64, "t2d": torch.bool}
    for name, wanted in shapes.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != wanted:
            raise _refusal(
                folder,
                f"has {name!r} of shape {list(tensor.shape)}, where its config.json and the target "
                f"make {list(wanted)}",
            )
        if tensor.dtype not in ((maps[name],) if name in maps else DTYPES):
            kind = maps.get(name, "weights of 16 or 32 bits")
            raise _refusal(folder, f"has {name!r} in {tensor.dtype}, and {kind} are known")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise _refusal(folder, f"has values in {name!r} that are not finite")
    return {name: tensors[name] for name in shapes}


def _refusal(folder: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the published drafter {str(folder)!r} {reason}; set `start_from` of speculator 'eagle3' "
        "to a whole EAGLE-3 drafter of this target"
    )
