"""The engine core's interface without a model: a thread that recites what a test scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from aurora_backend_torch.generation import (
    GenerationRequest,
    QueueFull,
    StepOutput,
    TokenLogprob,
)
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.lineages import LineageRule
from aurora_core.records import (
    NO_DRAFTER,
    BackendStatus,
    RequestStats,
    SwapReceipt,
    TargetSpec,
)

GOOD_CHECKSUM = "c0ffee"


@dataclass
class _Running:
    request: GenerationRequest
    on_output: Callable[[StepOutput], None]
    reply: list[int]
    output: list[int] = field(default_factory=list)
    num_steps: int = 0
    first_token: float = 0.0
    ending: tuple[str, int | None] | None = None


class FakeEngine:
    """Two tokens per step; one of them counts as an accepted draft."""

    def __init__(self, target: TargetSpec, reply: Callable[[GenerationRequest], list[int]]) -> None:
        """
        Args:
            reply: tokens that answer a request, an end token included if there is one.
        """
        self.target = target
        self.max_context = 256
        self.lineage_rules: tuple[LineageRule, ...] = ()
        self.live_version = NO_DRAFTER
        self.reply = reply
        self.max_running, self.max_waiting = 2, 2
        self.requests: list[GenerationRequest] = []
        self.ended: list[tuple[str, str, int | None]] = []
        self.resident: set[int] = set()
        self.may_step = threading.Event()
        self.may_step.set()
        self._waiting: list[_Running] = []
        self._running: list[_Running] = []
        self._finished: list[RequestStats] = []
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerationRequest, on_output: Callable[[StepOutput], None]) -> None:
        if isinstance(request.drafter, int) and request.drafter not in self.resident:
            raise BackendError(f"version {request.drafter} is not resident; load it first")
        with self._changed:
            # Like the real one, the fake admits waiting requests at its own pace.
            if self.num_running + self.num_waiting >= self.max_running + self.max_waiting:
                raise QueueFull(retry_after_s=3.0)
            self.requests.append(request)
            self._waiting.append(_Running(request, on_output, self.reply(request)))
            self._changed.notify()

    def end(
        self,
        request_id: str,
        *,
        reason: Literal["stop", "abort"],
        num_output_tokens: int | None = None,
    ) -> None:
        with self._changed:
            self.ended.append((request_id, reason, num_output_tokens))
            for entry in [*self._waiting, *self._running]:
                if entry.request.request_id == request_id:
                    entry.ending = (reason, num_output_tokens)
            self._changed.notify()

    def swap(self, version: int | None, checksum: str, *, lineage: str = "") -> SwapReceipt:
        if version is not None and checksum != GOOD_CHECKSUM:
            raise CheckpointError(f"version {version} has another checksum than it was given")
        self.live_version = NO_DRAFTER if version is None else version
        return SwapReceipt(
            version=self.live_version,
            checksum="" if version is None else checksum,
            load_ms=1.0,
            stall_ms=0.5,
        )

    def is_resident(self, version: int, *, lineage: str = "") -> bool:
        return version in self.resident

    def load_resident(
        self, version: int, checksum: str | None = None, *, lineage: str = ""
    ) -> None:
        if checksum and checksum != GOOD_CHECKSUM:
            raise CheckpointError(f"version {version} has another checksum than it was given")
        if len(self.resident) >= 2:
            raise BackendError("2 drafters are resident; unload one first")
        self.resident.add(version)

    def unload_resident(self, version: int, *, lineage: str = "") -> None:
        if version not in self.resident:
            raise BackendError(f"version {version} is not resident")
        self.resident.remove(version)

    def status(self, *, lineage: str = "") -> BackendStatus:
        if lineage not in ("", *(rule.name for rule in self.lineage_rules)):
            raise BackendError(f"there is no lineage {lineage!r} here")
        return BackendStatus(
            live_version=self.live_version,
            checksum="",
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            memory_mib=0.0,
            traces_kept=7,
            traces_shed=1,
        )

    def finished(self, after: int) -> list[RequestStats]:
        return [stats for stats in self._finished if stats.sequence > after]

    def shutdown(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self.may_step.set()
        self._thread.join()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._running or self._is_stopping):
                    self._changed.wait()
                if self._is_stopping:
                    return
                room = self.max_running - len(self._running)
                self._running += self._waiting[:room]
                del self._waiting[:room]
                for entry in [*self._running, *self._waiting]:
                    if entry.ending is not None:
                        self._finish(entry, [], *entry.ending)
            if not self.may_step.wait(timeout=0.005):
                continue
            with self._changed:
                for entry in list(self._running):
                    if entry.ending is None:
                        self._step(entry)

    def _step(self, entry: _Running) -> None:
        entry.num_steps += 1
        entry.first_token = entry.first_token or time.time()
        done = len(entry.output)
        tokens: list[int] = []
        for token_id in entry.reply[done : done + 2]:
            tokens.append(token_id)
            entry.output.append(token_id)
            if token_id in entry.request.stop_token_ids:
                return self._finish(entry, tokens, "stop", None)
            if len(entry.output) == entry.request.max_tokens:
                return self._finish(entry, tokens, "length", None)
        entry.on_output(self._output(entry, tokens))

    def _output(self, entry: _Running, tokens: list[int]) -> StepOutput:
        count = entry.request.num_logprobs
        logprobs = None if count is None else [_logprob(token_id, count) for token_id in tokens]
        return StepOutput(token_ids=tokens, logprobs=logprobs, finish_reason=None, stats=None)

    def _finish(self, entry: _Running, tokens: list[int], reason: str, keep: int | None) -> None:
        for entries in (self._running, self._waiting):
            if entry in entries:
                entries.remove(entry)
        request = entry.request
        stats = RequestStats(
            sequence=len(self._finished),
            request_id=request.request_id,
            finished=time.time(),
            num_prompt_tokens=len(request.prompt_token_ids),
            num_output_tokens=len(entry.output) if keep is None else keep,
            num_steps=entry.num_steps,
            num_speculative_steps=entry.num_steps,
            num_drafted=2 * entry.num_steps,
            accepted_per_position=(entry.num_steps, 0),
            min_draft_version=self.live_version,
            max_draft_version=self.live_version,
            ttft_s=0.25,
            decode_s=0.5,
            finish_reason=reason,
            tenant=request.tenant,
            route=request.route,
            lineage=request.lineage,
        )
        self._finished.append(stats)
        output = self._output(entry, tokens)
        entry.on_output(replace(output, finish_reason=reason, stats=stats))  # type: ignore[arg-type]


def _logprob(token_id: int, count: int) -> TokenLogprob:
    """The token after the chosen one is the most likely; the chosen one comes second."""
    top = ((token_id + 1, -0.5), (token_id, -1.0), (token_id - 1, -3.0))[:count]
    return TokenLogprob(token_id=token_id, logprob=-1.0, top=top)
