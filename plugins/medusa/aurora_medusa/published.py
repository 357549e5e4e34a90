"""Medusa heads that others have published, as a network to go on training with.

Two layouts are known, told apart by the names of their tensors:

    FasterDecoding  `{head}.{block}.linear.weight`, `.bias`, then `{head}.{blocks}.weight` for the
                    head's output matrix, in medusa_lm_head.pt or .safetensors; exports that share
                    the target's output head leave the last one out
    vLLM            `blocks.{head}.layers.{block}.weight`, `.bias`, then `lm_heads.{head}.weight`
                    or one `lm_head.weight`, perhaps cut by `token_map`

Weights and biases alone are read; shapes follow from them, so no config.json is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from aurora_core.errors import CheckpointError
from aurora_core.published_tensors import read_published
from aurora_medusa.model import MedusaNetwork, MedusaShape, tensor_shapes

FILES = ("model.safetensors", "medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Names looked for in a directory, in this order."""

PREFIX = re.compile(r"^(model\.)?(medusa_heads?\.)?")


def import_network(
    path: Path, target_head: Tensor, target_ids: Tensor, *, vocab_size: int
) -> MedusaNetwork:
    """Return published heads as a float32 network with the given draft vocabulary.

    Heads that end with a matrix of their own keep it, cut to the draft vocabulary; others share the
    target's. Blocks without a bias get one of zeros, which computes the same.

    Args:
        path: a directory with one of `FILES`, or a file.
        target_head: [V, H] of the target.
        target_ids: int64 [D]. The draft vocabulary.
        vocab_size: V.

    Raises:
        CheckpointError: it cannot be read, has tensors that are not those of Medusa heads, or is
            of another size than the target.
    """
    tensors = _canonical(read_published(path, FILES, what="Medusa heads"), path)
    token_map = tensors.pop("token_map", None)
    shared = tensors.pop("lm_head.weight", None)
    heads, blocks = _count(tensors, path)
    shape = MedusaShape(
        hidden_size=target_head.shape[1],
        vocab_size=vocab_size,
        draft_vocab_size=len(target_ids),
        num_heads=heads,
        num_blocks=blocks,
        own_heads="lm_heads.0.weight" in tensors,
    )
    if shared is not None and shape.own_heads:
        raise CheckpointError(
            f"Medusa heads {str(path)!r} have both 'lm_head.weight' and 'lm_heads.0.weight'; "
            "give a file with one of them"
        )
    with torch.no_grad():
        for name in [name for name in tensors if name.startswith("lm_heads.")]:
            tensors[name] = _cut(tensors[name], token_map, target_ids, vocab_size, name, path)
        for name, size in tensor_shapes(shape).items():
            if name.endswith(".bias"):
                tensors.setdefault(name, torch.zeros(size))
        network = MedusaNetwork(shape, target_ids, target_head)
        # What is trained: neither the target's head nor the map of the vocabulary.
        own = dict(network.named_parameters())
        missing, extra = sorted(own.keys() - tensors), sorted(tensors.keys() - own)
        if missing or extra:
            found = [f"lack {names}" for names in (missing,) if names]
            found += [f"have the unknown {names}" for names in (extra,) if names]
            raise CheckpointError(
                f"Medusa heads {str(path)!r} {' and '.join(found)}; give a file with whole heads"
            )
        for name, parameter in own.items():
            _check(tensors[name], tuple(parameter.shape), name, path)
            parameter.copy_(tensors[name])
    return network


def _canonical(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors under vLLM's names."""
    stripped = {PREFIX.sub("", name): tensor for name, tensor in tensors.items()}
    renamed = {}
    for name, tensor in stripped.items():
        if match := re.fullmatch(r"(\d+)\.(\d+)\.linear\.(weight|bias)", name):
            head, block, kind = match.groups()
            name = f"blocks.{head}.layers.{block}.{kind}"
        elif match := re.fullmatch(r"(\d+)\.(\d+)\.weight", name):
            name = f"lm_heads.{match[1]}.weight"
        renamed[name] = tensor
    if len(renamed) < len(tensors):
        raise CheckpointError(
            f"Medusa heads {str(path)!r} name a tensor twice; give a file with one layout"
        )
    return renamed


def _count(tensors: Mapping[str, Tensor], path: Path) -> tuple[int, int]:
    """Return the numbers of heads and of blocks per head."""
    found = [re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.weight", name) for name in tensors]
    places = [(int(match[1]), int(match[2])) for match in found if match]
    if not places:
        raise CheckpointError(
            f"{str(path)!r} holds no Medusa heads, but {sorted(tensors)[:3]}; give one with names "
            "like '0.0.linear.weight' or 'blocks.0.layers.0.weight'"
        )
    return 1 + max(head for head, _ in places), 1 + max(block for _, block in places)


def _cut(
    matrix: Tensor,
    token_map: Tensor | None,
    target_ids: Tensor,
    vocab_size: int,
    name: str,
    path: Path,
) -> Tensor:
    """Return an output matrix's rows of the draft vocabulary."""
    rows = vocab_size if token_map is None else len(token_map)
    if matrix.ndim != 2 or len(matrix) != rows:
        raise CheckpointError(
            f"tensor {name!r} of Medusa heads {str(path)!r} has shape {list(matrix.shape)}, "
            f"expected {rows} rows; give heads of this target"
        )
    if token_map is None:
        return matrix[target_ids]
    place = torch.full((vocab_size,), -1, dtype=torch.int64)
    place[token_map.long()] = torch.arange(rows)
    wanted = place[target_ids]
    if bool((wanted < 0).any()):
        raise CheckpointError(
            f"{int((wanted < 0).sum())} tokens of the draft vocabulary are not in 'token_map' of "
            f"Medusa heads {str(path)!r}; give heads with the whole vocabulary"
        )
    return matrix[wanted]


def _check(tensor: Tensor, shape: tuple[int, ...], name: str, path: Path) -> None:
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"tensor {name!r} of Medusa heads {str(path)!r} has shape {list(tensor.shape)}, "
            f"expected {list(shape)}; give heads of this target"
        )
    if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(
            f"tensor {name!r} of Medusa heads {str(path)!r} has values that are not finite numbers;"
            " give another file"
        )
