"""The engine thread: admits requests, steps them, swaps drafters between two steps.

    HTTP side            inbox (commands)            engine thread
    submit, end, swap -> ------------------> between two steps: take commands, admit, step,
    on_output         <--------------------- deliver tokens, finish, hand traces to the sink

Loading a drafter happens on the caller's thread; the engine thread only changes which one is live.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import torch

from aurora_backend_torch.active_request import ActiveRequest
from aurora_backend_torch.capture import FeatureWindow, TraceRecorder
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.drafting import Drafting
from aurora_backend_torch.generation import GenerationRequest, QueueFull, StepOutput
from aurora_backend_torch.held_lineage import HeldLineage
from aurora_backend_torch.model import TargetModel
from aurora_backend_torch.pacing import Pacing
from aurora_backend_torch.shadowing import Shadowing
from aurora_backend_torch.stepping import Stepper, StepResult
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.lineages import shown_name, union_of_needs
from aurora_core.records import NO_DRAFTER, BackendStatus, RequestStats, SwapReceipt

logger = logging.getLogger(__name__)

_FINISHED_KEPT = 10_000
_PREFILL_ROWS = 96
"""Prompt rows in one pass: enough to amortise it, few enough not to hold up decoding."""


class Engine:
    """Owns the target, the drafters and one thread. Public methods are thread-safe."""

    def __init__(
        self,
        plan: ServePlan,
        options: TorchBackendOptions,
        model: TargetModel,
        lineages: Mapping[str, HeldLineage],
        *,
        max_context: int,
    ) -> None:
        """Prepare the thread; `build_engine` makes the parts.

        Args:
            plan: what the controller asks for.
            options: of this backend.
            model: the target.
            lineages: the drafters by the name of their lineage, the default one, whose name is
                empty, among them.
            max_context: prompt and output tokens of a request, at most.
        """
        self.target = plan.target
        self.max_context = max_context
        self.lineage_rules = tuple(one.rule for one in plan.lineages)
        """Which requests belong to which lineage but the default one."""
        self._options, self._model = options, model
        self._lineages = dict(lineages)
        self._residents = lineages[""].residents
        self._depth = max(one.num_speculative_tokens for one in lineages.values())
        drafting = Drafting(
            vocab_size=model.vocab_size,
            max_draft_nodes=options.max_draft_nodes,
            max_verification_rows=options.resolved_verification_rows(model.device.type),
            sample_drafts=options.sample_drafts,
        )
        self._shadowing = Shadowing(
            vocab_size=model.vocab_size, draft_patience=options.draft_patience
        )
        needs = union_of_needs((name, one.needs) for name, one in lineages.items())
        self._stepper = Stepper(
            model, drafting, self._shadowing, needs, max_prefill_rows=_PREFILL_ROWS
        )
        self._random = random.Random(plan.seed)
        self._changed = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[GenerationRequest, Callable[[StepOutput], None]]] = deque()
        self._running: list[ActiveRequest] = []
        self._finished: deque[RequestStats] = deque(maxlen=_FINISHED_KEPT)
        self._num_finished = 0
        self._recent_s = 1.0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def live_version(self) -> int:
        """Draft version that new requests of the default lineage get; `NO_DRAFTER` for none."""
        return self._residents.live_version

    @property
    def is_alive(self) -> bool:
        """Whether the engine thread runs; without it nothing is answered any more."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def submit(self, request: GenerationRequest, on_output: Callable[[StepOutput], None]) -> None:
        """Queue a request; `on_output` is called on the engine thread.

        Raises:
            QueueFull: `max_waiting_requests` are waiting.
            BackendError: the drafter asked for is not resident, or the engine is stopping.
        """
        residents = self._held(request.lineage).residents
        if isinstance(request.drafter, int) and residents.get(request.drafter) is None:
            raise BackendError(f"drafter version {request.drafter} is not resident; load it first")
        with self._changed:
            if self._is_stopping:
                raise BackendError("the engine is stopping; send the request elsewhere")
            room = self._options.max_running_requests - len(self._running)
            if len(self._waiting) >= self._options.max_waiting_requests + max(room, 0):
                raise QueueFull(retry_after_s=max(1.0, round(self._recent_s)))
            self._waiting.append((request, on_output))
            self._changed.notify()

    def end(
        self,
        request_id: str,
        *,
        reason: Literal["stop", "abort"],
        num_output_tokens: int | None = None,
    ) -> None:
        """End a request early: a stop string was met, or the client is gone. Idempotent.

        Args:
            request_id: unknown ids are ignored.
            reason: what to report.
            num_output_tokens: tokens that count as output; all so far if not given.
        """
        self._post(lambda: self._end(request_id, reason, num_output_tokens))

    def swap(self, version: int | None, checksum: str, *, lineage: str = "") -> SwapReceipt:
        """Make a version live between two steps, or speculate no more. Blocks until it is so.

        Args:
            version: number within its lineage; None speculates no more.
            checksum: sha256 of its weights.
            lineage: whose requests it is for; the others' drafters stay.

        Raises:
            CheckpointError: the version cannot be loaded; the live one goes on.
            BackendError: the engine is stopping, or there is no such lineage.
        """
        residents = self._held(lineage).residents
        started = time.perf_counter()
        found = "" if version is None else residents.load(version, checksum)
        loaded = time.perf_counter()
        new = NO_DRAFTER if version is None else version
        stall: list[float] = []

        def activate() -> None:
            before = time.perf_counter()
            mine = [active for active in self._running if active.request.lineage == lineage]
            residents.activate(new, {active.draft_version for active in mine})
            stall.append((time.perf_counter() - before) * 1e3)

        self._call(activate)
        return SwapReceipt(
            version=new,
            checksum=found,
            load_ms=(loaded - started) * 1e3,
            stall_ms=stall[0],
        )

    def is_resident(self, version: int, *, lineage: str = "") -> bool:
        """Return whether requests of a lineage may name a version."""
        return self._held(lineage).residents.get(version) is not None

    def load_resident(
        self, version: int, checksum: str | None = None, *, lineage: str = ""
    ) -> None:
        """Load a version beside the live one, for requests that name it.

        Raises:
            CheckpointError, BackendError: as `Residents.load` and `Residents.reserve`.
        """
        residents = self._held(lineage).residents
        residents.reserve(version)
        residents.load(version, checksum)

    def unload_resident(self, version: int, *, lineage: str = "") -> None:
        """Let go of a version that is not live; requests that use it go on without a drafter."""
        residents = self._held(lineage).residents
        self._call(lambda: residents.unload(version))

    def status(self, *, lineage: str = "") -> BackendStatus:
        """Return version and trace counts of a lineage, and the load of the whole engine."""
        held = self._held(lineage)
        stats = held.writer.stats() if held.writer else None
        return BackendStatus(
            live_version=held.residents.live_version,
            checksum=held.residents.live_checksum,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            memory_mib=0.0,
            traces_kept=stats.kept if stats else 0,
            traces_shed=sum(stats.shed.values()) if stats else 0,
        )

    def finished(self, after: int) -> list[RequestStats]:
        """Return requests that finished with `sequence > after`, oldest first."""
        return [stats for stats in list(self._finished) if stats.sequence > after]

    def shutdown(self) -> None:
        """End all requests, stop the thread and write the traces handed over. Callable twice."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        for held in self._lineages.values():
            if held.writer is not None:
                held.writer.close()

    def _held(self, lineage: str) -> HeldLineage:
        held = self._lineages.get(lineage)
        if held is None:
            known = ", ".join(map(repr, map(shown_name, self._lineages)))
            raise BackendError(f"there is no lineage {lineage!r} here; there are {known}")
        return held

    def _post(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def _call(self, command: Callable[[], None]) -> None:
        """Run a command between two steps and wait for it; its exception is raised here."""
        done = threading.Event()
        errors: list[Exception] = []

        def run() -> None:
            try:
                command()
            except Exception as error:
                errors.append(error)
            done.set()

        if not self._thread.is_alive():
            raise BackendError("the engine is stopping; nothing was changed")
        self._post(run)
        while not done.wait(1.0):
            if not self._thread.is_alive():
                raise BackendError("the engine stopped; nothing was changed")
        if errors:
            raise errors[0]

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            with self._changed:
                while not (self._commands or self._waiting or self._running or self._is_stopping):
                    self._changed.wait()
                stopping = self._is_stopping
                commands = list(self._commands)
                self._commands.clear()
            for command in commands:
                command()
            if stopping:
                break
            self._admit()
            self._step()
        self._abort_all()

    def _admit(self) -> None:
        while len(self._running) < self._options.max_running_requests:
            with self._changed:
                if not self._waiting:
                    return
                request, on_output = self._waiting.popleft()
            if self._options.sample_drafts and request.sampling.temperature > 0:
                sampling = replace(request.sampling, rule="rejection")
                request = replace(request, sampling=sampling)
            room = min(len(request.prompt_token_ids) + request.max_tokens, self.max_context)
            reserve = self._depth + self._options.max_draft_nodes + 2
            lineage = self._lineages[request.lineage]
            seed = request.sampling.seed
            self._running.append(
                ActiveRequest(
                    request=request,
                    on_output=on_output,
                    seed=self._random.getrandbits(63) if seed is None else seed % 2**63,
                    cache=self._model.new_cache(room + reserve),
                    window=FeatureWindow(),
                    recorder=TraceRecorder() if lineage.reads_traces and request.record else None,
                    lineage=lineage,
                    pacing=Pacing(self._options.draft_patience),
                    token_ids=list(request.prompt_token_ids),
                )
            )
            self._shadowing.begin(self._running[-1])

    def _step(self) -> None:
        if not self._running:
            return
        try:
            results = self._stepper.step(self._running)
        except Exception:
            # One bad step must not take the service down; its requests are the ones that pay.
            logger.exception("a step failed; %d requests are ended", len(self._running))
            self._abort_all()
            return
        for active, result in results:
            self._deliver(active, result)

    def _deliver(self, active: ActiveRequest, result: StepResult) -> None:
        request = active.request
        reason: Literal["stop", "length"] | None = None
        if result.token_ids[-1] in request.stop_token_ids:
            reason = "stop"
        elif active.num_left <= 0 or len(active.token_ids) >= self.max_context:
            reason = "length"
        stats = None if reason is None else self._finish(active, reason, None)
        self._send(
            active,
            StepOutput(
                token_ids=result.token_ids,
                logprobs=result.logprobs,
                finish_reason=reason,
                stats=stats,
            ),
        )

    def _send(self, active: ActiveRequest, output: StepOutput) -> None:
        try:
            active.on_output(output)
        except Exception:
            logger.exception("the receiver of %s failed", active.request.request_id)

    def _end(self, request_id: str, reason: Literal["stop", "abort"], num: int | None) -> None:
        for active in self._running:
            if active.request.request_id == request_id:
                stats = self._finish(active, reason, num)
                self._send(
                    active,
                    StepOutput(token_ids=[], logprobs=None, finish_reason=reason, stats=stats),
                )
                return
        with self._changed:
            for entry in self._waiting:
                if entry[0].request_id == request_id:
                    self._waiting.remove(entry)
                    break
            else:
                return
        entry[1](StepOutput(token_ids=[], logprobs=None, finish_reason=reason, stats=None))

    def _finish(self, active: ActiveRequest, reason: str, num: int | None) -> RequestStats:
        self._running.remove(active)
        held = active.lineage
        if (drafter := held.residents.get(active.draft_version)) is not None:
            drafter.forget(active.request.request_id)
        produced = active.num_output_tokens
        stats = active.stats(
            self._num_finished + 1, reason, produced if num is None else min(num, produced)
        )
        if (shadow := self._shadowing.end(active)) is not None:
            stats = replace(stats, shadow=shadow)
        self._num_finished += 1
        self._finished.append(stats)
        self._recent_s = 0.9 * self._recent_s + 0.1 * (stats.ttft_s + stats.decode_s)
        if active.recorder is not None and produced:
            trace = active.recorder.trace(
                active.request,
                token_ids=active.token_ids,
                finish_reason=reason,
                target=self.target,
                needs=held.needs,
            )
            if held.writer is not None:
                held.writer.put(trace)
            held.residents.observe(trace)
        return stats

    def _abort_all(self) -> None:
        for active in list(self._running):
            self._end(active.request.request_id, "abort", None)
        with self._changed:
            waiting = [request.request_id for request, _ in self._waiting]
        for request_id in waiting:
            self._end(request_id, "abort", None)
