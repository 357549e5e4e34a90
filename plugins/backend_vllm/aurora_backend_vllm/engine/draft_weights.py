"""Replacing the weights of vLLM's drafter between two steps, all or nothing.

    staging thread   read, check, checksum                       beside serving
    engine thread    load into the model, compare, or load back  one call, no step in between

vLLM packs weights for its kernels and drops the originals, so new ones must go through its own
layer-wise reload. That also touches what the drafter shares with the target; hence one call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_backend_vllm.engine.checkpoint import Checkpoint, CheckpointShape
from aurora_core.errors import AuroraError, CheckpointError
from aurora_core.records import NO_DRAFTER, SwapReceipt
from aurora_core.versions import VersionStore

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_backend_vllm.engine.live_drafter import LiveDrafter
    from aurora_backend_vllm.engine.settings import EngineSettings

logger = logging.getLogger(__name__)


class DraftWeights:
    """The drafter of one worker. Methods are called between two steps of the engine."""

    def __init__(
        self,
        runner: Any,
        settings: EngineSettings,
        live: LiveDrafter,
        started_with: Path,
        load: Callable[[Any, Checkpoint], None] | None = None,
    ) -> None:
        """
        Args:
            runner: vLLM's V1 model runner, with its models loaded.
            settings: says where versions lie, and which one the engine was started with.
            live: told of every swap.
            started_with: folder of the checkpoint that is loaded.
            load: puts a checkpoint into the runner's drafter; vLLM's own way if not given.

        Raises:
            CheckpointError: that folder cannot be read.
        """
        self._runner, self._live = runner, live
        self._load = load or load_weights
        self._store = VersionStore(Path(settings.versions_dir))
        self._shape = CheckpointShape(started_with, target_vocab_size=settings.target.vocab_size)
        self._loaded_from = started_with
        self._staging: _Staging | None = None

    def stage(self, version: int, checksum: str) -> None:
        """Begin to read a published version; `staged` tells when it is there."""
        staging = _Staging(version=version, checksum=checksum)
        self._staging = staging
        threading.Thread(
            target=staging.run, args=(self._store, self._shape), name="staging", daemon=True
        ).start()

    def staged(self, version: int) -> dict[str, Any]:
        """Return {"state": loading, ready or refused, "reason": a sentence}."""
        staging = self._staging
        if staging is None or staging.version != version:
            return {"state": "refused", "reason": f"version {version} was not staged"}
        if staging.problem:
            return {"state": "refused", "reason": staging.problem}
        return {"state": "ready" if staging.checkpoint else "loading", "reason": ""}

    def swap(self, version: int) -> SwapReceipt:
        """Make the staged version live, or switch drafting off with `NO_DRAFTER`.

        Raises:
            CheckpointError: it is not staged, or vLLM does not hold what was loaded; the previous
                drafter is live.
        """
        started = time.perf_counter()
        if version == NO_DRAFTER:
            self._live.version, self._live.checksum = NO_DRAFTER, ""
            return SwapReceipt(version=NO_DRAFTER, checksum="", load_ms=0.0, stall_ms=0.0)
        staging, self._staging = self._staging, None
        if staging is None or staging.version != version or staging.checkpoint is None:
            raise CheckpointError(f"version {version} was not staged")
        self._load_or_restore(staging.checkpoint, version)
        self._loaded_from = staging.folder
        self._live.version, self._live.checksum = version, staging.checkpoint.checksum
        return SwapReceipt(
            version=version,
            checksum=staging.checkpoint.checksum,
            load_ms=staging.load_ms,
            stall_ms=1000 * (time.perf_counter() - started),
        )

    def _load_or_restore(self, checkpoint: Checkpoint, version: int) -> None:
        try:
            self._load(self._runner, checkpoint)
            require_loaded(self._runner.get_draft_model(), checkpoint)
        except Exception as error:  # whatever vLLM raises, the previous weights must come back
            logger.exception("version %d could not be loaded", version)
            try:
                self._load(self._runner, self._shape.read(self._loaded_from))
            except Exception:
                logger.exception("the previous drafter could not be restored; drafting is off")
                self._live.version, self._live.checksum = NO_DRAFTER, ""
                raise CheckpointError(
                    f"vLLM could not load version {version} and lost the previous drafter; it "
                    f"serves on without speculation ({error})"
                ) from error
            raise CheckpointError(
                f"vLLM could not load version {version}, and the previous drafter serves on "
                f"({type(error).__name__}: {error})"
            ) from error


class _Staging:
    """One version on its way into memory."""

    def __init__(self, *, version: int, checksum: str) -> None:
        self.version, self.checksum = version, checksum
        self.folder = Path()
        self.checkpoint: Checkpoint | None = None
        self.problem = ""
        self.load_ms = 0.0

    def run(self, store: VersionStore, shape: CheckpointShape) -> None:
        started = time.perf_counter()
        try:
            self.folder = Path(store.read(self.version).path)
            checkpoint = shape.read(self.folder)
            if checkpoint.checksum != self.checksum:
                raise CheckpointError(
                    f"version {self.version} in {str(self.folder)!r} has sha256 "
                    f"{checkpoint.checksum[:12]}..., expected {self.checksum[:12]}...; publish it "
                    "again"
                )
        except AuroraError as error:
            self.problem = str(error)
            return
        except Exception as error:  # a thread's error would be lost, and staging never end
            logger.exception("version %d could not be staged", self.version)
            self.problem = f"version {self.version} could not be read: {error!r}"
            return
        self.load_ms = 1000 * (time.perf_counter() - started)
        self.checkpoint = checkpoint


def load_weights(runner: Any, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into the runner's drafter; whatever vLLM raises passes through."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    model = runner.get_draft_model()
    config = runner.speculative_config.draft_model_config
    with set_current_vllm_config(runner.vllm_config), torch.inference_mode():
        initialize_layerwise_reload(model)
        model.load_weights(iter(checkpoint.tensors.items()))
        finalize_layerwise_reload(model, config)


def require_loaded(model: Any, checkpoint: Checkpoint) -> None:
    """Compare what the engine holds with what was loaded, where it holds it unpacked.

    Raises:
        CheckpointError: a tensor differs, or none can be compared.
    """
    parameters = dict(model.named_parameters())
    num_compared = 0
    for name, tensor in checkpoint.tensors.items():
        held = _find(parameters, "draft_id_to_target_id" if name == "d2t" else name)
        if held is None or held.dim() != tensor.dim() or held.numel() < tensor.numel():
            continue  # fused with others, packed for a kernel, or not kept at all
        num_compared += 1
        # Embeddings and heads may be padded at their end.
        rows = held[: len(tensor)]
        if rows.shape != tensor.shape or not _equal(rows, tensor):
            raise CheckpointError(f"vLLM does not hold the tensor {name!r} that was loaded")
    if not num_compared:
        raise CheckpointError("vLLM holds no tensor of the drafter that could be compared")


def _find(parameters: dict[str, Tensor], name: str) -> Tensor | None:
    for candidate in (name, f"model.{name}", name.replace("midlayer.", "model.layers.0.")):
        if candidate in parameters:
            return parameters[candidate]
    return None


def _equal(held: Tensor, loaded: Tensor) -> bool:
    return bool((held.detach().cpu() == loaded.to(held.dtype)).all())
