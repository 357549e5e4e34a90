"""What a version must be before any of its tensors reaches SGLang, which checks none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aurora_backend_sglang.engine.drafter_file import DrafterFile, read_version
from aurora_core.errors import CheckpointError
from aurora_core.records import DraftVersion
from plugins.backend_sglang.tests.engine_records import (
    DRAFT_VOCABULARY,
    HIDDEN,
    VOCABULARY,
    drafter_tensors,
    publish,
)


def read(versions: Path, draft: DraftVersion, *, checksum: str | None = None) -> DrafterFile:
    return read_version(
        str(versions),
        draft.version,
        draft.checksum if checksum is None else checksum,
        like=versions / "v000001",
        vocab_size=VOCABULARY,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with version 1, which the engine was started with."""
    publish(tmp_path)
    return tmp_path


def test_a_version_is_read_with_its_checksum_and_vocabulary(folder: Path) -> None:
    draft = publish(folder)
    file = read(folder, draft)
    assert file.checksum == draft.checksum
    assert file.tensors.keys() == drafter_tensors().keys()
    target_ids = file.target_ids()
    assert target_ids is not None
    assert target_ids.tolist() == [0, 3, 6, 9, 12, 15, 18, 21]


def test_another_file_than_was_announced_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="announced with checksum '000000000000'"):
        read(folder, publish(folder), checksum="0" * 64)


def test_a_version_that_is_not_there_is_refused(folder: Path) -> None:
    draft = publish(folder)
    (folder / "v000002" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="must see the run directory under the same path"):
        read(folder, draft)


def _without(name: str) -> dict[str, torch.Tensor]:
    tensors = drafter_tensors()
    del tensors[name]
    return tensors


def _with(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**drafter_tensors(), name: tensor}


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (_without("fc.weight"), r"lacks \['fc\.weight'\]; publish it again"),
        (_with("fc.bias", torch.zeros(1)), r"has the unknown \['fc\.bias'\]"),
        (_with("fc.weight", torch.zeros(HIDDEN, 1)), r"has shape \[4, 1\], but the engine was"),
        (
            _with("lm_head.weight", torch.full((DRAFT_VOCABULARY, HIDDEN), float("nan"))),
            "'lm_head.weight' .* not finite",
        ),
        (_with("d2t", torch.arange(DRAFT_VOCABULARY) * 40), "increasing ids below 50"),
        (_with("d2t", -2 * torch.arange(DRAFT_VOCABULARY)), "increasing ids below 50"),
    ],
)
def test_an_unfit_version_is_refused(folder: Path, tensors: Any, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read(folder, publish(folder, tensors))


def test_a_half_written_file_is_refused_whatever_was_announced(folder: Path) -> None:
    import hashlib

    draft = publish(folder)
    weights = Path(draft.path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    found = hashlib.sha256(weights.read_bytes()).hexdigest()
    with pytest.raises(CheckpointError, match="is damaged"):
        read(folder, draft, checksum=found)
