"""The worker class that vLLM is started with, `--worker-cls` of its command line.

A stock worker of the platform that installs the recorder once its models are loaded, and answers
Aurora's calls between two steps.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import vllm
from vllm.platforms import current_platform

from aurora_backend_vllm.engine import capabilities
from aurora_backend_vllm.engine.draft_weights import DraftWeights
from aurora_backend_vllm.engine.live_drafter import LiveDrafter
from aurora_backend_vllm.engine.recorder import StepRecorder
from aurora_backend_vllm.engine.settings import EngineSettings, read_settings
from aurora_core.errors import AuroraError
from aurora_core.records import BackendStatus
from aurora_core.wire import to_dict

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_worker import Worker as StockWorker
else:
    from vllm.v1.worker.cpu_worker import CPUWorker as StockWorker

if TYPE_CHECKING:
    from aurora_core.interfaces import TraceWriter

logger = logging.getLogger(__name__)


class AuroraWorker(StockWorker):
    """A stock worker with a recorder and exchangeable draft weights."""

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Load the models, see that this vLLM is understood, and begin to observe.

        Raises:
            BackendError: this vLLM, or the way it was started, does not fit.
        """
        capabilities.check_version(vllm.__version__)
        settings = read_settings(self.vllm_config.additional_config)
        capabilities.check_speculation(self.vllm_config.speculative_config)
        super().load_model(*arguments, **options)
        runner = self.model_runner
        capabilities.check_engine(self.vllm_config, runner)
        capabilities.check_internals(runner)
        capabilities.check_layers(runner, settings.needs.aux_layers)
        self._aurora_live = LiveDrafter(settings.initial_version, settings.initial_checksum)
        self._aurora_weights = DraftWeights(
            runner,
            settings,
            self._aurora_live,
            Path(self.vllm_config.speculative_config.draft_model_config.model),
        )
        # All ranks hold the same rows; one of them writes.
        self._aurora_writer = open_writer(settings) if self.rank == 0 else None
        self._aurora_recorder = StepRecorder(
            runner, settings, self._aurora_live, self._aurora_writer
        )
        self._aurora_recorder.install()
        logger.info("Aurora's recorder is installed; version %d", self._aurora_live.version)

    def aurora_status(self) -> dict[str, Any]:
        """Return the engine's `BackendStatus`, and under `recorder` what recording cost."""
        recorder, stats = self._aurora_recorder, None
        if self._aurora_writer is not None:
            stats = self._aurora_writer.stats()
        status = BackendStatus(
            live_version=self._aurora_live.version,
            checksum=self._aurora_live.checksum,
            num_running=recorder.num_running,
            num_waiting=0,
            memory_mib=psutil.Process().memory_info().rss / 2**20,
            traces_kept=stats.kept if stats else 0,
            traces_shed=sum(stats.shed.values()) if stats else 0,
        )
        return {
            "status": to_dict(status),
            "recorder": {
                "num_steps": recorder.num_steps,
                "step_s": recorder.step_s,
                "recording_s": recorder.recording_s,
                "left_out": dict(recorder.left_out),
                "shed": dict(stats.shed) if stats else {},
            },
        }

    def aurora_finished(self, after: int) -> list[dict[str, Any]]:
        """Return the statistics of requests that finished after a sequence number."""
        return [to_dict(stats) for stats in self._aurora_recorder.finished(after)]

    def aurora_stage(self, version: int, checksum: str) -> None:
        """Begin to read a published version beside serving."""
        self._aurora_weights.stage(version, checksum)

    def aurora_staged(self, version: int) -> dict[str, Any]:
        """Return how far the reading of a version is."""
        return self._aurora_weights.staged(version)

    def aurora_swap(self, version: int) -> dict[str, Any]:
        """Make a staged version live; returns a `SwapReceipt`, or {"refused": a sentence}."""
        started = time.perf_counter()
        try:
            receipt = self._aurora_weights.swap(version)
        except AuroraError as error:
            return {"refused": str(error)}
        logger.info(
            "version %d is live after %.1f ms", version, 1000 * (time.perf_counter() - started)
        )
        return to_dict(receipt)

    def shutdown(self) -> None:
        """Write the traces that were handed over, then end as a stock worker does."""
        recorder = getattr(self, "_aurora_recorder", None)
        if recorder is not None:
            recorder.finish_all()
            if self._aurora_writer is not None:
                self._aurora_writer.close()
        super().shutdown()


def open_writer(settings: EngineSettings) -> TraceWriter | None:
    """Open the engine's end of the trace sink.

    Raises:
        AuroraError: the sink's plugin is not installed here, or its options do not fit.
    """
    from aurora_core.components import build_component
    from aurora_core.config import ComponentSection
    from aurora_core.plugins import Plugins

    if settings.sink is None:
        return None
    plugins = Plugins()
    plugins.load()
    section = ComponentSection.model_validate({"name": settings.sink, **settings.sink_options})
    return build_component(plugins, "trace_sinks", section).open_writer()
