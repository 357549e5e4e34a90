"""Observes a stock model runner: what was proposed, accepted and computed, and in how much time.

    engine thread  execute_model -> sample_tokens -> propose_draft_token_ids -> take_draft_token_ids
                        |                |                    |                       |
                   new, finished    rows, tokens       skipped when nobody      drafts of requests
                   requests                            wants drafts             that want none: out

Four bound methods of one runner are wrapped; nothing of vLLM is patched. Traces go to the sink's
writer, whose thread does the rest: the engine never waits for it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aurora_backend_vllm.engine import request_fields
from aurora_backend_vllm.engine.recording import RequestRecording, StepOutcome
from aurora_core.records import NO_DRAFTER, RequestStats
from aurora_core.spool.directory import trace_digest

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_backend_vllm.engine.live_drafter import LiveDrafter
    from aurora_backend_vllm.engine.settings import EngineSettings
    from aurora_core.interfaces import TraceWriter

NUM_REMEMBERED = 4096
"""Finished requests whose statistics are kept for whoever asks."""


class StepRecorder:
    """Follows every request of one runner. Used from the engine's thread."""

    def __init__(
        self,
        runner: Any,
        settings: EngineSettings,
        live: LiveDrafter,
        writer: TraceWriter | None,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        """
        Args:
            runner: vLLM's V1 model runner, checked.
            settings: what to record.
            live: the drafter in force.
            writer: takes the traces; None records nothing.
            decode: turns tokens into text, to tell a stop string from a client that left; without
                it both are an `abort`.
        """
        self.num_steps = 0
        self.step_s = 0.0
        """Seconds that all steps took, recording included."""
        self.recording_s = 0.0
        """Seconds of these that recording took."""
        self.left_out: Counter[str] = Counter()
        """Reason -> requests that left no trace."""
        self._runner, self._settings, self._live, self._writer = runner, settings, live, writer
        self._decode = decode
        self._running: dict[str, RequestRecording] = {}
        self._finished: deque[RequestStats] = deque(maxlen=NUM_REMEMBERED)
        self._sequence = 0
        self._proposed_by = NO_DRAFTER
        self._versions: dict[str, int] = {}
        """Request -> version whose drafts it verifies next."""
        self._verify_started = 0.0
        self._draft_s = self._drafting_s = 0.0
        self._execute_model = runner.execute_model
        self._sample_tokens = runner.sample_tokens
        self._propose = runner.propose_draft_token_ids
        self._take_drafts = runner.take_draft_token_ids

    def install(self) -> None:
        """Put the observers before the runner's own methods."""
        self._runner.execute_model = self.execute_model
        self._runner.sample_tokens = self.sample_tokens
        self._runner.propose_draft_token_ids = self.propose_draft_token_ids
        self._runner.take_draft_token_ids = self.take_draft_token_ids

    @property
    def num_running(self) -> int:
        """Requests that the engine has begun and not finished, preempted ones included."""
        return len(self._running)

    def finished(self, after: int) -> list[RequestStats]:
        """Return what is remembered of requests that finished after a sequence number."""
        return [stats for stats in self._finished if stats.sequence > after]

    def finish_all(self) -> None:
        """Let go of the requests that still run: the engine is ending."""
        for request_id in list(self._running):
            self._finish(request_id)

    # What follows stands in for methods of the runner, in the order in which a step calls them.

    def execute_model(self, scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        """Take note of new and finished requests, then run the target."""
        started = time.perf_counter()
        for request_id in scheduler_output.finished_req_ids:
            self._finish(request_id)
        for new in scheduler_output.scheduled_new_reqs:
            self._begin(new)
        self._verify_started = time.perf_counter()
        self._spend(started, self._verify_started)
        return self._execute_model(scheduler_output, *arguments, **options)

    def sample_tokens(self, *arguments: Any, **options: Any) -> Any:
        """Copy the rows of the step, let the runner sample and draft, then take in the outcome."""
        state = self._runner.execute_model_state
        if state is None:
            return self._sample_tokens(*arguments, **options)
        started = time.perf_counter()
        batch = self._runner.input_batch
        request_ids = list(batch.req_ids[: batch.num_reqs])
        starts = batch.num_computed_tokens_cpu[: batch.num_reqs].tolist()
        counts = state.scheduler_output.num_scheduled_tokens
        metadata = state.spec_decode_metadata
        drafts = _split_drafts(metadata, len(request_ids))
        # Sampling writes into the logits, so what is kept of them is computed before.
        features = self._features(state, request_ids, counts, drafts)
        self._proposed_by, self._drafting_s = NO_DRAFTER, 0.0
        sampling_started = time.perf_counter()
        output = self._sample_tokens(*arguments, **options)
        sampled = time.perf_counter()
        outcomes = self._outcomes(request_ids, starts, counts, drafts, features, output, sampled)
        for recording, outcome in outcomes:
            recording.take(outcome)
            self._bound(recording)
        self._versions = dict.fromkeys(request_ids, self._proposed_by)
        self._draft_s = self._drafting_s
        self.num_steps += 1
        ended = time.perf_counter()
        self.step_s += ended - self._verify_started
        self.recording_s += (sampling_started - started) + (ended - sampled)
        return output

    def propose_draft_token_ids(self, *arguments: Any, **options: Any) -> Any:
        """Draft, unless nobody in the batch wants it: then the drafter costs nothing."""
        request_ids = self._runner.input_batch.req_ids
        if not self._live.drafts or not any(map(self._wants_drafts, request_ids)):
            return [[] for _ in request_ids]
        started = time.perf_counter()
        proposed = self._propose(*arguments, **options)
        self._drafting_s = time.perf_counter() - started
        self._proposed_by = self._live.version
        return proposed

    def take_draft_token_ids(self) -> Any:
        """Hand the drafts to the scheduler, without those that nobody asked for."""
        drafts = self._take_drafts()
        if drafts is None:
            return None
        # Near the longest request vLLM proposes zeros in place of a drafter that has no room.
        by_drafter = self._proposed_by != NO_DRAFTER
        drafts.draft_token_ids = [
            list(tokens) if by_drafter and self._wants_drafts(request_id) else []
            for request_id, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
        ]
        return drafts

    def _wants_drafts(self, request_id: str) -> bool:
        recording = self._running.get(request_id)
        return recording is None or recording.drafts_wanted

    def _begin(self, new: Any) -> None:
        if new.sampling_params is None or new.prompt_token_ids is None:
            self.left_out["not_tokens"] += 1
            return
        recording = request_fields.begin(
            new.req_id,
            new.prompt_token_ids,
            new.sampling_params,
            draft_sampling=self._runner.speculative_config.draft_sample_method,
            max_model_len=self._runner.max_model_len,
        )
        if not request_fields.is_plain(new.sampling_params):
            self.left_out["sampling_parameters"] += 1
        recording.recorded &= self._writer is not None and self._is_sampled(new.req_id)
        self._running[new.req_id] = recording

    def _is_sampled(self, request_id: str) -> bool:
        """Return whether the sink would take it, so that what it sheds costs nothing before."""
        rate = self._settings.sink_options.get("sampling_rate", 1.0)
        return bool(int(trace_digest(request_id), 16) < float(rate) * 2**64)

    def _bound(self, recording: RequestRecording) -> None:
        if recording.recorded and recording.num_tokens > self._settings.max_trace_tokens:
            recording.forget_trace()
            self.left_out["too_long"] += 1

    def _finish(self, request_id: str) -> None:
        self._versions.pop(request_id, None)
        recording = self._running.pop(request_id, None)
        if recording is None or not recording.has_begun:
            return
        if recording.stop_strings and self._decode is not None:
            recording.ends_with_stop_string(self._decode(recording.output))
        self._sequence += 1
        self._finished.append(recording.statistics(self._sequence, time.time()))
        if recording.recorded and self._writer is not None:
            self._writer.put(recording.trace(self._settings))

    def _features(
        self,
        state: Any,
        request_ids: Sequence[str],
        counts: Mapping[str, int],
        drafts: Sequence[Sequence[int]],
    ) -> dict[str, Tensor]:
        """Return the features of all rows of the step, on CPU; nothing if nobody is recorded."""
        import torch

        if not any(self._is_recorded(request_id) for request_id in request_ids):
            return {}
        num_rows = sum(counts[request_id] for request_id in request_ids)
        dtype = getattr(torch, self._settings.feature_dtype)
        wanted = self._settings.needs.features
        features = {}
        if "aux_hidden_states" in wanted:
            aux = torch.cat([layer[:num_rows] for layer in state.aux_hidden_states], dim=-1)
            features["aux_hidden_states"] = aux.to("cpu", dtype)
        if "last_hidden_state" in wanted:
            features["last_hidden_state"] = state.hidden_states[:num_rows].to("cpu", dtype)
        if "target_logsumexp" in wanted:
            values = torch.full((num_rows,), float("nan"))
            index = _logit_rows([counts[one] for one in request_ids], [len(one) for one in drafts])
            values[index] = state.logits.float().logsumexp(-1).cpu()
            features["target_logsumexp"] = values
        return features

    def _is_recorded(self, request_id: str) -> bool:
        recording = self._running.get(request_id)
        return recording is not None and recording.recorded

    def _outcomes(
        self,
        request_ids: Sequence[str],
        starts: Sequence[int],
        counts: Mapping[str, int],
        drafts: Sequence[Sequence[int]],
        features: Mapping[str, Tensor],
        output: Any,
        sampled: float,
    ) -> list[tuple[RequestRecording, StepOutcome]]:
        now = time.time()
        verify_s = sampled - self._verify_started - self._drafting_s
        batch_size = sum(map(bool, output.sampled_token_ids))
        outcomes, first = [], 0
        for index, request_id in enumerate(request_ids):
            count = counts[request_id]
            recording = self._running.get(request_id)
            if recording is not None:
                drafted_by = self._versions.get(request_id, NO_DRAFTER)
                outcome = StepOutcome(
                    start=starts[index],
                    num_rows=count,
                    drafts=drafts[index],
                    chosen=output.sampled_token_ids[index],
                    version=drafted_by if drafts[index] else NO_DRAFTER,
                    draft_ms=1000 * self._draft_s if drafts[index] else 0.0,
                    verify_ms=1000 * verify_s,
                    finished_at=now,
                    batch_size=batch_size,
                    features={name: rows[first : first + count] for name, rows in features.items()},
                )
                outcomes.append((recording, outcome))
            first += count
        return outcomes

    def _spend(self, started: float, ended: float) -> None:
        self.recording_s += ended - started
        self.step_s += ended - started


def _split_drafts(metadata: Any, num_requests: int) -> list[list[int]]:
    """Return the draft tokens that each request of the batch verifies."""
    if metadata is None:
        return [[] for _ in range(num_requests)]
    tokens = iter(metadata.draft_token_ids.tolist())
    return [[next(tokens) for _ in range(count)] for count in metadata.num_draft_tokens]


def _logit_rows(counts: Sequence[int], num_drafts: Sequence[int]) -> list[int]:
    """Return which rows of the step have logits: of each request, the last row and its drafts'."""
    rows, end = [], 0
    for count, drafted in zip(counts, num_drafts, strict=True):
        end += count
        rows += range(end - 1 - drafted, end)
    return rows
