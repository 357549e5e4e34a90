"""What the hooks do where SGLang drafts by itself, with its objects played by the smallest."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from aurora_backend_sglang.engine.hooks import EngineHalf
from aurora_backend_sglang.engine.other_drafts import OtherDraftsHalf
from aurora_backend_sglang.engine.recorder import Recorder
from aurora_core.records import NO_DRAFTER
from plugins.backend_sglang.tests.engine_records import LAYERS, engine_settings
from plugins.backend_sglang.tests.test_recorder import (
    ListWriter,
    commit,
    finish,
    first_token,
    request,
    rows,
    verify,
)


def half(algorithm: str = "NGRAM", **changes: Any) -> OtherDraftsHalf:
    settings = engine_settings(algorithm=algorithm, drafter_dir="", **changes)
    one = OtherDraftsHalf(settings, lambda _: None)
    one.recorder = Recorder(settings, ListWriter(), rule="greedy_always")
    return one


def runner(**changes: Any) -> Any:
    config = SimpleNamespace(
        eagle_use_aux_hidden_state=False, eagle_aux_hidden_state_layer_ids=None
    )
    return SimpleNamespace(**{"is_draft_worker": False, "spec_aux_config": config, **changes})


def traces(one: OtherDraftsHalf) -> list[Any]:
    assert one.recorder is not None
    writer = one.recorder._writer
    assert isinstance(writer, ListWriter)
    return writer.traces


@pytest.fixture
def capture_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sglang.srt.model_executor.forward_batch_info")
    module.__dict__["CaptureHiddenMode"] = SimpleNamespace(FULL="full")
    for name in ("sglang", "sglang.srt", "sglang.srt.model_executor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_the_target_keeps_the_layers_and_a_model_that_drafts_does_not() -> None:
    target, drafting = runner(), runner(is_draft_worker=True)
    one = half()
    one.model_made(target)
    one.model_made(drafting)
    assert target.spec_aux_config.eagle_use_aux_hidden_state
    # What enters a layer leaves the one before it, which is SGLang's name for it.
    assert target.spec_aux_config.eagle_aux_hidden_state_layer_ids == [
        layer - 1 for layer in LAYERS
    ]
    assert not drafting.spec_aux_config.eagle_use_aux_hidden_state


def test_every_pass_of_the_target_hands_its_rows_over(capture_modes: None) -> None:
    one = half("STANDALONE")
    arguments, options = one.pass_prepared("kind", "batch", runner(), capture_hidden_mode="null")
    assert arguments[:2] == ("kind", "batch")
    assert options == {"capture_hidden_mode": "full"}
    assert one.pass_prepared("kind", "batch", runner(is_draft_worker=True)) is None


def test_a_server_that_records_nothing_is_left_as_it_is() -> None:
    one, target = half(sink=None), runner()
    one.model_made(target)
    assert not target.spec_aux_config.eagle_use_aux_hidden_state
    assert one.pass_prepared("kind", "batch", target) is None
    output = rows([1])
    one._put_back(output)
    assert output.hidden_states is not None
    assert output.last_hidden_states is not None


def prefill(one: OtherDraftsHalf, each: Any, **options: Any) -> Any:
    """Read a prompt through the hook; return what SGLang goes on with."""
    output = rows(each.origin_input_ids)
    output.next_token_logits = output.next_token_logits[-1:]
    mode = SimpleNamespace(is_extend=lambda: True, is_idle=lambda: False)
    batch = SimpleNamespace(
        reqs=[each],
        prefix_lens=[0],
        extend_lens=[len(each.origin_input_ids)],
        forward_mode=mode,
    )
    result = SimpleNamespace(logits_output=output)
    one.target_ran(result, SimpleNamespace(is_draft_worker=False), batch, **options)
    # The worker of STANDALONE is EAGLE's, whose own hook sees the same prompt.
    one.prefill_read(result, None, batch)
    return output


def test_a_prompt_is_recorded_once_and_its_rows_are_taken_away() -> None:
    one, each = half("STANDALONE"), request([11, 12, 13])
    output = prefill(one, each)
    assert (output.hidden_states, output.last_hidden_states) == (None, None)
    assert output.next_token_logits is not None
    assert one.recorder is not None
    first_token(one.recorder, each, 20)
    finish(one.recorder, each)
    (trace,) = traces(one)
    assert trace.rows.position.tolist() == [0, 1, 2]
    assert trace.features["aux_hidden_states"][:, 0].tolist() == [11, 12, 13]
    assert one.recorder.num_faults == 0


def test_a_pass_that_verifies_is_left_to_the_place_that_samples() -> None:
    one, each = half(), request([11, 12, 13])
    output = prefill(one, each, is_verify=True)
    assert output.hidden_states is not None, "its rows are recorded later"


def test_a_tree_of_ngrams_is_recorded_without_filler_as_drafted_by_no_version() -> None:
    one, each = half(), request([11, 12])
    prefill(one, each)
    recorder = one.recorder
    assert recorder is not None
    first_token(recorder, each, 20)
    #  20 -> 5 -> 7
    #     -> 6
    #     -> 0, 0   filler
    verify(
        recorder,
        each,
        2,
        [20, 5, 6, 7, 0, 0],
        [1, 3, -1, -1, -1, -1],
        [-1, 2, 4, -1, 5, -1],
        [0, 1],
        8,
    )
    commit(recorder, each, [5, 8])
    finish(recorder, each)
    (trace,) = traces(one)
    assert trace.nodes.token.tolist() == [5, 6, 7]
    assert trace.nodes.parent.tolist() == [-1, -1, 0]
    assert trace.nodes.accepted.tolist() == [True, False, False]
    assert trace.steps.version.tolist() == [NO_DRAFTER]
    (stats,) = recorder.finished_after(0)
    assert (stats.num_speculative_steps, stats.num_drafted) == (1, 3)
    assert stats.accepted_per_position == (1, 0)
    assert (stats.min_draft_version, stats.max_draft_version) == (NO_DRAFTER, NO_DRAFTER)


def test_verified_rows_are_recorded_before_they_are_taken_away() -> None:
    one = half()
    output, seen = rows([20, 5]), []

    def sample(verify_input: Any, batch: Any, output: Any) -> str:
        seen.append(output.hidden_states is not None)
        return "sampled"

    batch = SimpleNamespace(reqs=[], forward_mode=SimpleNamespace(is_idle=lambda: False))
    assert one.verified(sample, None, batch, output) == "sampled"
    assert seen == [True]
    assert output.hidden_states is None


def test_a_drafter_of_eagle_1_finds_the_rows_that_it_reads_of_a_prompt() -> None:
    one, each = half("EAGLE"), request([11, 12, 13])
    output = prefill(one, each)
    assert output.last_hidden_states is None
    assert torch.equal(output.hidden_states, rows([11, 12, 13]).last_hidden_states)
    assert one.recorder is not None
    first_token(one.recorder, each, 20)
    finish(one.recorder, each)
    (trace,) = traces(one)
    recorded, whole = trace.features, rows([11, 12, 13])
    assert torch.equal(recorded["aux_hidden_states"], whole.hidden_states)
    assert torch.equal(recorded["last_hidden_state"], whole.last_hidden_states)


@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE"])
def test_what_comes_behind_a_verification_finds_its_rows_though_recording_fails(
    algorithm: str,
) -> None:
    one, output = half(algorithm), rows([20, 5])
    last = output.last_hidden_states
    batch = SimpleNamespace(reqs=[None], forward_mode=SimpleNamespace(is_idle=lambda: False))
    assert one.verified(lambda *_: "sampled", None, batch, output) == "sampled"
    assert one.recorder is not None
    assert one.recorder.num_faults == 1
    assert output.hidden_states is (last if algorithm == "EAGLE" else None)
    assert output.last_hidden_states is None


def test_rows_that_sglang_put_there_by_itself_stay() -> None:
    """A pass of which no layers were kept has the rows after the last norm in the first field."""
    one, output = half("EAGLE"), rows([1])
    own, output.last_hidden_states = output.hidden_states, None
    one._put_back(output)
    assert output.hidden_states is own


def test_places_are_looked_into_where_the_algorithm_has_them() -> None:
    settings = engine_settings(algorithm="NGRAM")
    usual = EngineHalf(settings, lambda _: None).table().keys()
    further = half().table().keys() - usual
    assert further - half("STANDALONE").table().keys() == {
        "sglang.srt.speculative.ngram_worker.NGRAMWorker._prepare_for_speculative_decoding"
    }
    assert usual < half("STANDALONE").table().keys()
