"""Follows every request of a scheduler and hands finished ones to the trace sink.

    forward pass     prefill_read, step_verified   tensors are copied off the device's buffers
    result is used   step_committed                in the order in which the passes ran
    request ends     request_finished              statistics; trace to the sink's own thread

With SGLang's overlapping scheduler a pass may run for a request that has just ended: its result is
thrown away there, and here. Nothing in here may end the service: a fault costs the trace and is
counted, and the last one is shown in the status.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aurora_backend_sglang.engine.captured_rows import capture, last_row_alone
from aurora_backend_sglang.engine.recording import FinishReason, RequestRecording
from aurora_backend_sglang.engine.request_facts import sampling_of, seconds_since_arrival
from aurora_backend_sglang.engine.request_fields import wishes_of
from aurora_backend_sglang.engine.verification import VerifiedStep, read_draft, without_filler
from aurora_core.engine_process.aurora_field import describe_answer
from aurora_core.records import NO_DRAFTER, RequestStats, SinkStats, VerificationRule
from aurora_core.trace_validation import first_problem

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_backend_sglang.engine.settings import EngineSettings
    from aurora_core.interfaces import TraceWriter

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_aurora_recording"
"""Name under which a request of SGLang carries its recording, so that both end together."""
_FINISHED = "_aurora_statistics"
"""Name under which a finished request carries its statistics, for the answer to it."""
_HEALTH_CHECK = "HEALTH_CHECK"
_NUM_REMEMBERED = 4096
"""Finished requests whose statistics wait for the controller, at most."""


@dataclass(slots=True)
class _Followed:
    """A recording and the passes whose results have not been used yet."""

    recording: RequestRecording
    pending: deque[Callable[[], VerifiedStep]] = field(default_factory=deque)


class Recorder:
    """All requests of one scheduler process. Used from its thread only."""

    def __init__(
        self, settings: EngineSettings, writer: TraceWriter | None, *, rule: VerificationRule
    ) -> None:
        """
        Args:
            settings: what to record.
            writer: the engine's end of the sink; None records nothing.
            rule: how the engine verifies drafts of requests that sample.
        """
        self.rule = rule
        self.version = settings.initial_version
        """Draft version in force; `NO_DRAFTER` while the placeholder is there, and where SGLang
        drafts by itself."""
        self.draft_ms = 0.0
        """Time of the latest drafting, set right before its verification."""
        self.draft_ended = 0.0
        """Clock at its end; 0 where nothing took the time."""
        self.shed: Counter[str] = Counter()
        """Reason -> traces that never reached the sink."""
        self.num_faults = 0
        self.last_fault = ""
        self._settings, self._writer = settings, writer
        self._sequence = 0
        self._finished: deque[RequestStats] = deque(maxlen=_NUM_REMEMBERED)

    def prefill_read(self, batch: Any, output: Any) -> None:
        """Take in a pass over prompts, or over requests that are read again.

        Args:
            batch: SGLang's `ScheduleBatch`.
            output: its `LogitsProcessorOutput`, with rows of all tokens read.
        """
        features = capture(output, self._settings, last_logits_only=True)
        spans = zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
        first = 0
        for index, (request, start, count) in enumerate(spans):
            followed = self._follow(request)
            if followed is not None and followed.recording.recorded:
                rows = {name: tensor[first : first + count] for name, tensor in features.items()}
                if rows and "target_logsumexp" in self._settings.needs.features:
                    rows["target_logsumexp"] = last_row_alone(output, index, count)
                followed.recording.add_prefix(start, count, rows)
            first += count

    def step_verified(
        self, verify_input: Any, batch: Any, features: Mapping[str, Tensor], result: Any
    ) -> None:
        """Take in a pass that verified drafts; it counts once `step_committed` is called.

        Args:
            verify_input: SGLang's `EagleVerifyInput`, with the tree as links.
            batch: SGLang's `ScheduleBatch`.
            features: rows of all nodes, as `verification_features` returned them.
            result: (predicted tokens, numbers of committed tokens, rows accepted).
        """
        num_requests = len(batch.reqs)
        if num_requests == 0:
            return
        since = time.perf_counter() - self.draft_ended if self.draft_ended else 0.0
        verify_ms, self.draft_ended = 1000 * since, 0.0
        predicted, num_committed, accepted_rows = (tensor.to("cpu", copy=True) for tensor in result)
        shape = (num_requests, -1)
        links = [
            tensor.reshape(shape).to("cpu", copy=True)
            for tensor in (
                verify_input.draft_token,
                verify_input.retrieve_next_token,
                verify_input.retrieve_next_sibling,
            )
        ]
        roots = verify_input.positions.reshape(shape)[:, 0].to("cpu", copy=True)
        num_nodes = links[0].shape[1]
        version, draft_ms, now = self.version, self.draft_ms, time.time()

        def read(index: int) -> VerifiedStep:
            tokens, first_child, next_sibling = (tensor[index].tolist() for tensor in links)
            draft = read_draft(tokens, first_child, next_sibling)
            count, first = int(num_committed[index]), index * num_nodes
            rows = accepted_rows[index, :count].tolist()
            if self._settings.algorithm == "NGRAM":
                draft = without_filler(draft, used={row - first for row in rows})
            order = [first, *(first + slot for slot in draft.slots)]
            number = {slot: node for node, slot in enumerate(draft.slots)}
            return VerifiedStep(
                root=int(roots[index]),
                draft=draft,
                accepted=[number[row - first] for row in rows[1:]],
                bonus_token=int(predicted[rows[-1]]),
                version=version if draft.tokens else NO_DRAFTER,
                draft_ms=draft_ms,
                verify_ms=verify_ms,
                finished_at=now,
                batch_size=num_requests,
                features={name: tensor[order] for name, tensor in features.items()},
            )

        for index, request in enumerate(batch.reqs):
            followed = self._follow(request)
            if followed is not None:
                followed.pending.append(functools.partial(read, index))

    def verification_features(self, output: Any) -> dict[str, Tensor]:
        """Return copies of the rows of a verification pass, before sampling changes its logits."""
        if self._writer is None:
            return {}
        return capture(output, self._settings, last_logits_only=False)

    def step_committed(self, request: Any, num_before: int) -> None:
        """Take in that the oldest pending pass of a request has been used.

        Args:
            request: SGLang's `Req`.
            num_before: output tokens that it had before.
        """
        followed = getattr(request, _ATTRIBUTE, None)
        if followed is None or not followed.pending:
            return
        step = followed.pending.popleft()()
        recording = followed.recording
        recording.add_step(step)
        num_added = len(request.output_ids) - num_before
        if num_added < step.num_tokens and not request.finished():
            # A grammar takes back tokens after the verification.
            self._drop(recording, "shortened")
        elif len(recording.prompt) + len(request.output_ids) > self._settings.max_trace_tokens:
            self._drop(recording, "too_long")

    def step_discarded(self, request: Any) -> None:
        """Take in that the oldest pending pass came too late for its request."""
        followed = getattr(request, _ATTRIBUTE, None)
        if followed is not None and followed.pending:
            followed.pending.popleft()

    def first_token(self, request: Any) -> None:
        """Take in that a request has its first token."""
        followed = getattr(request, _ATTRIBUTE, None)
        if followed is not None and not followed.recording.first_token_at:
            followed.recording.first_token(time.time())

    def request_finished(self, request: Any, finish_reason: FinishReason) -> None:
        """Count a finished request and hand over its trace; `answer_field` knows of it then."""
        followed = self._follow(request)
        if followed is None:
            return
        delattr(request, _ATTRIBUTE)
        recording = followed.recording
        output = list(request.output_ids_through_stop)
        self._sequence += 1
        stats = recording.statistics(
            self._sequence,
            time.time(),
            num_output_tokens=len(output),
            finish_reason=finish_reason,
        )
        self._finished.append(stats)
        setattr(request, _FINISHED, stats)
        if recording.recorded and self._writer is not None:
            trace = recording.trace(self._settings, output=output, finish_reason=finish_reason)
            problem = first_problem(trace)
            if problem is None:
                self._writer.put(trace)
            else:
                self.shed["inconsistent"] += 1
                self.fault(f"trace {trace.trace_id!r} is inconsistent: {problem}")

    def answer_field(self, request: Any) -> dict[str, Any] | None:
        """Return the `aurora` field of the answer to a request that has ended, else None."""
        stats: RequestStats | None = getattr(request, _FINISHED, None)
        return None if stats is None else describe_answer(stats)

    def finished_after(self, sequence: int) -> list[RequestStats]:
        """Return statistics of requests that finished later, as far as they are remembered."""
        return [stats for stats in self._finished if stats.sequence > sequence]

    def sink_stats(self) -> SinkStats:
        """Return what this process handed over, and what it shed before or at the sink."""
        if self._writer is None:
            return SinkStats(num_traces=0, num_bytes=0, kept=0, shed=dict(self.shed))
        stats = self._writer.stats()
        shed = Counter(stats.shed) + self.shed
        return SinkStats(
            num_traces=stats.num_traces,
            num_bytes=stats.num_bytes,
            kept=stats.kept,
            shed=dict(shed),
        )

    def fault(self, reason: str) -> None:
        """Count a fault of the recording, and log it unless it is the one before once more."""
        self.num_faults += 1
        if reason != self.last_fault:
            logger.warning("Aurora's recorder: %s", reason)
        self.last_fault = reason

    def _follow(self, request: Any) -> _Followed | None:
        followed: _Followed | None = getattr(request, _ATTRIBUTE, None)
        if followed is None and not str(request.rid).startswith(_HEALTH_CHECK):
            followed = _Followed(self._recording(request))
            setattr(request, _ATTRIBUTE, followed)
        return followed

    def _recording(self, request: Any) -> RequestRecording:
        wishes = wishes_of(request.sampling_params)
        prompt = list(request.origin_input_ids)
        return RequestRecording(
            request_id=str(request.rid),
            prompt=prompt,
            sampling=sampling_of(request.sampling_params, self.rule),
            arrived=time.time() - seconds_since_arrival(request),
            tenant=str(wishes.get("tenant", "")),
            route=str(wishes.get("route", "")),
            recorded=self._writer is not None
            and wishes.get("record") is not False
            and len(prompt) < self._settings.max_trace_tokens,
        )

    def _drop(self, recording: RequestRecording, reason: str) -> None:
        if recording.recorded:
            recording.drop_trace()
            self.shed[reason] += 1
