"""A drafter's tensors, put in place of a version's number within SGLang's weight update.

    controller   begin (draft) -> update "version 7 of this checksum" -> end      stock routes
    scheduler                      read, check, then what SGLang does with tensors

So no weights and no pickle travel, no request names a path, and SGLang's own session, its version
spans and its cache flush stay in force. SGLang reads the vocabulary map once, at start, and its
graphs hold that tensor: the map is written over in place.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_backend_sglang.engine.drafter_file import DrafterFile, read_version
from aurora_core.errors import AuroraError
from aurora_core.records import NO_DRAFTER

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_backend_sglang.engine.settings import EngineSettings

logger = logging.getLogger(__name__)

LOAD_FORMAT = re.compile(r"aurora:(\d+):([0-9a-f]{64})")
"""Value of `load_format` in an update: version and sha256 of its weights."""


def is_reference(load_format: str | None) -> bool:
    """Return whether an update names a version of Aurora instead of carrying tensors."""
    return load_format is not None and load_format.startswith("aurora:")


class DrafterSwap:
    """Loads versions into the draft model of one scheduler process."""

    def __init__(self, settings: EngineSettings) -> None:
        self.version, self.checksum = settings.initial_version, settings.initial_checksum
        """Of the drafter in place."""
        self._settings = settings

    def forget(self) -> None:
        """Draft no more; the weights stay where they are until others come."""
        self.version, self.checksum = NO_DRAFTER, ""

    def update(self, stock_update: Callable[..., Any], updater: Any, request: Any) -> Any:
        """Carry out an update that names a version: all of it, or none.

        Args:
            stock_update: SGLang's own, given `updater` and a request with tensors.
            updater: SGLang's weight updater of this scheduler.
            request: its `UpdateWeightsFromTensorReqInput`.

        Returns:
            SGLang's answer; its message is a receipt in JSON, or the reason of a refusal.
        """
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqOutput
        from sglang.srt.runtime_context import get_parallel

        started = time.perf_counter()
        try:
            version, file = self._read(request)
        except AuroraError as error:
            return UpdateWeightsFromTensorReqOutput(success=False, message=str(error))
        read = time.perf_counter()
        models = [runner.model for _, runner in updater.draft_worker.weight_update_runners()]
        before = [_copy(model) for model in models]
        # Stays within this process: SGLang's update reads its tensors from such bytes.
        payload = pickle.dumps(list(file.tensors.items()))
        request.serialized_named_tensors = [payload] * get_parallel().tp_size
        request.load_format = None
        try:
            answer = stock_update(updater, request)
            reason = answer.message
            success = answer.success
        except Exception as error:  # SGLang's loaders raise what they like, and it would end
            success, reason = False, f"{type(error).__name__}: {error}"
        if not success:
            for model, state in zip(models, before, strict=True):
                _restore(model, state)
            return UpdateWeightsFromTensorReqOutput(
                success=False,
                message=f"SGLang did not load version {version} ({reason}); the drafter before it "
                "serves on",
            )
        for model in models:
            _write_vocabulary(model, updater.draft_worker, file)
        self.version, self.checksum = version, file.checksum
        receipt = {
            "version": version,
            "checksum": file.checksum,
            "load_ms": 1000 * (read - started),
            "stall_ms": 1000 * (time.perf_counter() - started),
        }
        return UpdateWeightsFromTensorReqOutput(success=True, message=json.dumps(receipt))

    def _read(self, request: Any) -> tuple[int, DrafterFile]:
        settings, named = self._settings, LOAD_FORMAT.fullmatch(request.load_format)
        if named is None:
            raise AuroraError(
                f"{request.load_format!r} names no version; write aurora:VERSION:SHA256"
            )
        if request.selector != "draft":
            raise AuroraError(
                f"a drafter cannot be loaded into {request.selector!r}; write selector 'draft'"
            )
        version = int(named[1])
        return version, read_version(
            settings.versions_dir,
            version,
            named[2],
            like=Path(settings.drafter_dir),
            vocab_size=settings.target.vocab_size,
        )


def _copy(model: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def _restore(model: Any, state: dict[str, Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])


def _write_vocabulary(model: Any, worker: Any, file: DrafterFile) -> None:
    """Write the vocabulary map into the tensor that the worker and its graphs read."""
    ids = file.target_ids()
    drafting = getattr(worker, "draft_worker", worker)
    in_use = getattr(drafting, "hot_token_id", None)
    if ids is not None and in_use is not None:
        in_use.copy_(ids)
        model.hot_token_id = in_use
