"""Hooks where SGLang drafts by itself: n-grams, a whole model, or a drafter of EAGLE-1.

    ModelRunner       keeps what leaves the wanted layers      no such algorithm asks for it
    ForwardBatch      has every pass hand it over              as EAGLE-3 does
    TpModelWorker     prompts are recorded                     the same place for all
    eagle_sample      verified drafts are recorded             as with EAGLE-3

A pass hands the kept layers over in the field in which a drafter of EAGLE-1 finds the rows after
the last norm, and those rows in a field of their own. Right after the recording both fields are
what they would be without Aurora: the rows after the last norm are back where EAGLE-1 reads them,
and n-grams and whole models find nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aurora_backend_sglang.engine.hooks import EngineHalf

_NGRAM = "sglang.srt.speculative.ngram_worker.NGRAMWorker"


class OtherDraftsHalf(EngineHalf):
    """The scheduler's hooks in a server that no version of a run drafts for."""

    def table(self) -> dict[str, tuple[Callable[..., Any], str]]:
        """Return target -> (hook, kind of hook)."""
        further: dict[str, tuple[Callable[..., Any], str]] = {
            "sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends": (
                self.model_made,
                "before",
            ),
            "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new": (
                self.pass_prepared,
                "before",
            ),
            "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": (
                self.target_ran,
                "after",
            ),
        }
        if self.settings.algorithm == "NGRAM":
            further[f"{_NGRAM}._prepare_for_speculative_decoding"] = (self.drafted, "around")
        return super().table() | further

    def model_made(self, runner: Any, *args: Any, **options: Any) -> None:
        """Have the target keep what enters the wanted layers; before any graph is captured."""
        layers = self.settings.needs.aux_layers
        if runner.is_draft_worker or not self._records or not layers:
            return
        runner.spec_aux_config.eagle_use_aux_hidden_state = True
        # SGLang names a layer's output.
        runner.spec_aux_config.eagle_aux_hidden_state_layer_ids = [layer - 1 for layer in layers]

    def pass_prepared(self, kind: Any, batch: Any, runner: Any, **options: Any) -> Any:
        """Have every pass of the target hand over the rows of all its tokens."""
        if runner.is_draft_worker or not self._records:
            return None
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

        return (kind, batch, runner), {**options, "capture_hidden_mode": CaptureHiddenMode.FULL}

    def target_ran(
        self, result: Any, worker: Any, batch: Any = None, *args: Any, **options: Any
    ) -> None:
        """See the rows of prompts; a pass that verifies is seen where SGLang samples from it."""
        if batch is None or worker.is_draft_worker or options.get("is_verify"):
            return
        if result.logits_output is None:  # of a pipeline's earlier rank
            return
        if batch.forward_mode.is_extend():
            super().prefill_read(result, worker, batch)
        self._put_back(result.logits_output)

    def prefill_read(self, result: Any, worker: Any, batch: Any, *args: Any, **opts: Any) -> None:
        """See nothing: `target_ran` has seen it."""

    def verified(
        self, stock: Callable[..., Any], verify_input: Any, batch: Any, output: Any, *args: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """See the tree, the rows of all its nodes, and what was accepted."""
        result = super().verified(stock, verify_input, batch, output, *args, **options)
        self._put_back(output)
        return result

    @property
    def _records(self) -> bool:
        return self.settings.sink is not None

    def _put_back(self, output: Any) -> None:
        """Leave in a pass's output what SGLang would have put there by itself."""
        if not self._records:
            return
        last, output.last_hidden_states = output.last_hidden_states, None
        if self.settings.algorithm != "EAGLE":
            output.hidden_states = None
        elif last is not None:
            # Without kept layers this very tensor is in the field: SGLang chooses between the two.
            output.hidden_states = last
