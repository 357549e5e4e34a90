"""Where the recorder and the swaps look into SGLang 0.5.23; one line in the table for each place.

Everything that SGLang is asked for by name stands in this file. A hook of a name that a later
version no longer has is logged by SGLang and left out: `missing` tells.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aurora_backend_sglang.engine.answer_statistics import KEY
from aurora_backend_sglang.engine.drafter_swap import DrafterSwap, is_reference
from aurora_backend_sglang.engine.recorder import Recorder
from aurora_backend_sglang.engine.request_facts import finish_reason_of
from aurora_backend_sglang.engine.request_fields import wants_no_drafts
from aurora_backend_sglang.engine.settings import EngineSettings
from aurora_backend_sglang.engine.status import SECTION, ControlCall, TargetState, describe
from aurora_backend_sglang.engine.target_check import TargetCheck, check_of
from aurora_core.records import NO_DRAFTER

_EAGLE = "sglang.srt.speculative"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_COMPONENTS = "sglang.srt.managers.scheduler_components"


@dataclass(slots=True)
class EngineHalf:
    """What the hooks of one process share; the scheduler process fills it at its start."""

    settings: EngineSettings
    start_recorder: Callable[[EngineSettings], Recorder | None]
    recorder: Recorder | None = None
    swap: DrafterSwap | None = None
    target: TargetCheck | None = None
    acknowledged: int = 0
    plain: tuple[bool, ...] = ()
    """Of the batch at hand: which requests are to be decoded without drafts."""
    unused: list[Callable[[], None]] = field(default_factory=list)
    """What is to be taken in of the result at hand, before answers are sent."""
    missing: Callable[[], list[str]] = field(default=list)

    def table(self) -> dict[str, tuple[Callable[..., Any], str]]:
        """Return target -> (hook, kind of hook)."""
        return {
            f"{_SCHEDULER}.__init__": (self.scheduler_made, "after"),
            f"{_SCHEDULER}.process_batch_result": (self.result_used, "around"),
            f"{_COMPONENTS}.output_streamer.SchedulerOutputStreamer"
            ".build_additional_customized_info": (self.answers_sent, "around"),
            f"{_SCHEDULER}._release_aborted_request": (self.waiting_aborted, "after"),
            "sglang.srt.layers.logits_processor.LogitsProcessor.__init__": (
                self.logits_processor_made,
                "after",
            ),
            f"{_EAGLE}.eagle_worker_v2.EAGLEWorkerV2._forward_prefill_batch": (
                self.prefill_read,
                "after",
            ),
            f"{_EAGLE}.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation": (
                self.batch_begun,
                "before",
            ),
            f"{_EAGLE}.eagle_worker_v2.EagleDraftWorker.draft": (self.drafted, "around"),
            f"{_EAGLE}.eagle_utils.eagle_sample": (self.verified, "around"),
            f"{_EAGLE}.adaptive_runtime_state.AdaptiveController.activate_step_by_batch": (
                self.steps_chosen,
                "around",
            ),
            f"{_EAGLE}.adaptive_runtime_state.AdaptiveController.on_verify_complete": (
                self.steps_reviewed,
                "around",
            ),
            f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager"
            ".update_weights_from_tensor": (self.weights_updated, "around"),
            f"{_COMPONENTS}.internal_state.SchedulerInternalStateController.get_internal_state": (
                self.state_asked,
                "after",
            ),
            f"{_COMPONENTS}.internal_state.SchedulerInternalStateController.set_internal_state": (
                self.state_set,
                "around",
            ),
        }

    def scheduler_made(self, _: Any, scheduler: Any, *args: Any, **options: Any) -> None:
        """Begin with what was there at start."""
        from sglang.srt.runtime_context import get_parallel

        self.recorder, self.swap = self.start_recorder(self.settings), DrafterSwap(self.settings)
        model = scheduler.tp_worker.model_runner.model
        self.target = check_of(model, num_ranks=get_parallel().tp_size)
        if self.recorder is not None:
            from sglang.srt.managers.scheduler_components import output_streamer

            output_streamer.SchedulerOutputStreamer.has_additional_customized_info = True

    def logits_processor_made(self, _: Any, processor: Any, *args: Any, **options: Any) -> None:
        """Have the rows after the last norm kept beside those of the inner layers."""
        processor.keep_last_hidden_states = True

    def prefill_read(self, result: Any, worker: Any, batch: Any, *args: Any, **opts: Any) -> None:
        """See the rows of prompts."""
        recorder = self.recorder
        if recorder is not None and not batch.forward_mode.is_idle():
            _guarded(recorder, lambda: recorder.prefill_read(batch, result.logits_output))

    def batch_begun(self, worker: Any, batch: Any, *args: Any, **options: Any) -> None:
        """See what the requests of a batch wish, by whatever route they came."""
        may = self.settings.requests_without_drafts == "allow"
        self.plain = tuple(may and wants_no_drafts(request) for request in batch.reqs)

    def drafted(self, stock: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Take the time of drafting."""
        started = time.perf_counter()
        result = stock(*args, **options)
        if self.recorder is not None:
            self.recorder.draft_ended = time.perf_counter()
            self.recorder.draft_ms = 1000 * (self.recorder.draft_ended - started)
        return result

    def steps_chosen(
        self, stock: Callable[..., Any], controller: Any, *args: Any, **options: Any
    ) -> None:
        """Draft at full depth with a drafter, and not at all without one.

        SGLang's own choice between several depths is taken over: it holds everything ready for
        each of them, so that a change costs nothing. It has one depth for all requests of a step,
        so that a request without drafts takes those beside it along.
        """
        if self.swap is None:
            stock(controller, *args, **options)
            return
        from sglang.srt.environ import envs

        without_drafter = self.swap.version == NO_DRAFTER
        depths = controller.candidate_steps
        plainly = without_drafter or any(self.plain)
        wanted = min(depths) if plainly else max(depths)
        if wanted != controller.worker.speculative_num_steps:
            controller._activate(wanted)
        # A drafter reads on beside a request without drafts, for those that want some again.
        nobody_drafts = without_drafter or all(self.plain)
        envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.set(nobody_drafts)

    def steps_reviewed(
        self, stock: Callable[..., Any], controller: Any, *args: Any, **options: Any
    ) -> None:
        """Keep SGLang from choosing a depth by what was accepted."""
        if self.swap is None:
            stock(controller, *args, **options)

    def verified(
        self, stock: Callable[..., Any], verify_input: Any, batch: Any, output: Any, *args: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """See the tree, the rows of all its nodes, and what was accepted."""
        recorder = self.recorder
        if recorder is None or batch.forward_mode.is_idle():
            return stock(verify_input, batch, output, *args, **options)
        # Before: sampling writes penalties over the logits.
        features = _guarded(recorder, lambda: recorder.verification_features(output)) or {}
        result = stock(verify_input, batch, output, *args, **options)
        _guarded(recorder, lambda: recorder.step_verified(verify_input, batch, features, result))
        return result

    def result_used(
        self, stock: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **options: Any
    ) -> Any:
        """See which tokens were committed, and which requests ended by it."""
        recorder = self.recorder
        if recorder is None:
            return stock(scheduler, batch, *args, **options)
        requests = [(one, len(one.output_ids), one.finished()) for one in batch.reqs]
        is_decoding = batch.forward_mode.is_decode()
        self.unused = [
            functools.partial(_use, recorder, request, num_before, had_ended, is_decoding)
            for request, num_before, had_ended in requests
        ]
        result = stock(scheduler, batch, *args, **options)
        self._take_in(recorder)
        return result

    def answers_sent(self, stock: Callable[..., Any], streamer: Any, requests: Any) -> Any:
        """Send the statistics of requests that have ended along with their last tokens."""
        further = stock(streamer, requests)
        recorder = self.recorder
        if recorder is None:
            return further
        self._take_in(recorder)
        fields = [recorder.answer_field(request) for request in requests]
        if not any(fields):
            return further
        return {**further, KEY: [[found] if found else [] for found in fields]}

    def _take_in(self, recorder: Recorder) -> None:
        unused, self.unused = self.unused, []
        for use in unused:
            _guarded(recorder, use)

    def waiting_aborted(self, _: Any, scheduler: Any, request: Any) -> None:
        """See a request end that waits, perhaps after it has been decoding."""
        if self.recorder is not None and request.output_ids:
            recorder = self.recorder
            _guarded(recorder, lambda: recorder.request_finished(request, "abort"))

    def weights_updated(self, stock: Callable[..., Any], updater: Any, request: Any) -> Any:
        """Answer updates that name a version; the others are SGLang's own."""
        if self.swap is None or not is_reference(request.load_format):
            return stock(updater, request)
        answer = self.swap.update(stock, updater, request)
        if self.recorder is not None:
            self.recorder.version = self.swap.version
        return answer

    def state_asked(self, answer: Any, controller: Any, *args: Any) -> None:
        """Add Aurora's section to `/server_info`."""
        if self.recorder is not None and self.swap is not None:
            answer.internal_state[SECTION] = describe(
                self.settings,
                controller.scheduler,
                self.recorder,
                self.swap,
                TargetState() if self.target is None else self.target.state(),
                missing=self.missing(),
                after=self.acknowledged,
            )

    def state_set(self, stock: Callable[..., Any], state: Any, request: Any) -> Any:
        """Take in what the controller has to say."""
        call = ControlCall.read(request.server_args)
        if call is None or self.swap is None:
            return stock(state, request)
        if call.requests_after is not None:
            self.acknowledged = call.requests_after
        if call.check_target and self.target is not None:
            self.target.ask()
        if call.without_drafter:
            self.swap.forget()
            if self.recorder is not None:
                self.recorder.version = NO_DRAFTER
        return call.answer()


def _use(
    recorder: Recorder, request: Any, num_before: int, had_ended: bool, is_decoding: bool
) -> None:
    if is_decoding:
        if had_ended or request.is_retracted:
            recorder.step_discarded(request)
        else:
            recorder.step_committed(request, num_before)
    if request.output_ids and not num_before:
        recorder.first_token(request)
    if request.finished() and not had_ended:
        kinds = [kind.__name__ for kind in type(request.finished_reason).__mro__]
        recorder.request_finished(request, finish_reason_of(kinds))


def _guarded(recorder: Recorder, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:  # whatever recording meets, serving goes on
        recorder.fault(f"{type(error).__name__}: {error}")
        return None
