"""Chains of drafts on a real SGLang: day 0, swaps under load, traces, and what must not go live.

The tests share one server and run in order: the first ones see it without a drafter.
"""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
import torch

from aurora_core.errors import BackendError
from aurora_core.interfaces import DraftRequest
from aurora_core.records import NO_DRAFTER, Trace
from aurora_eagle.drafter import Eagle3Drafter
from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import (
    NUM_SPECULATIVE_TOKENS,
    RunningServer,
)

OPTIONS: dict[str, object] = {}
TOLERANCE = 1e-4

pytestmark = pytest.mark.sglang


def prompt(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 250, (length,), generator=generator).tolist()


def test_day_0_decodes_plainly_with_whole_traces(
    server: RunningServer, reference: Reference
) -> None:
    assert server.status().live_version == NO_DRAFTER
    answer = server.generate(prompt(1, 20), 16)
    assert answer["output_ids"] == reference.greedy(prompt(1, 20), 16)
    trace = server.trace_of(answer["meta_info"]["id"])
    assert trace.nodes.step.numel() == 0, "the placeholder is not drafted with"
    assert set(trace.steps.version.tolist()) == {NO_DRAFTER}
    assert trace.rows.position.tolist() == list(range(35))
    assert reference.largest_error(trace, num_nodes=0) < TOLERANCE


def test_drafters_change_under_load_and_no_answer_does(
    server: RunningServer, reference: Reference
) -> None:
    prompts = [prompt(seed, 12 + seed) for seed in range(2, 6)]
    published = [server.publish(seed) for seed in (1, 2, 3)]

    def swap_all() -> None:
        for version in published:
            time.sleep(1.0)
            receipt = server.swap(version)
            assert receipt.checksum == version.checksum
            assert server.status().live_version == version.version

    answers = server.generate_all(prompts, 160, swap_all)
    for one, answer in zip(prompts, answers, strict=True):
        assert answer["output_ids"] == reference.greedy(one, 160)
    traces = [server.trace_of(answer["meta_info"]["id"]) for answer in answers]
    seen = set().union(*(trace.steps.version.tolist() for trace in traces))
    assert len(seen) > 1, "no swap fell into a running request"
    report = server.report()
    assert report.num_faults == 0
    assert report.target.num_done == 1 + len(published), "at the start, and after every swap"
    assert report.target.num_changed == 0


def test_every_row_is_where_the_trace_says(server: RunningServer, reference: Reference) -> None:
    server.flush_cache()
    prompts = [prompt(seed, length) for seed, length in ((11, 9), (12, 40), (13, 23))]
    answers = server.generate_all(prompts, 24)
    for answer in answers:
        trace = server.trace_of(answer["meta_info"]["id"])
        assert trace.nodes.step.numel() > 0
        num_tokens = trace.token_ids.numel()
        committed = sorted(trace.rows.position[trace.rows.position >= 0].tolist())
        assert committed == list(range(num_tokens - 1))
        num_rejected = int((~trace.nodes.accepted).sum())
        assert int((trace.rows.node >= 0).sum()) == num_rejected
        assert reference.largest_error(trace, num_nodes=12) < TOLERANCE


def test_the_engine_drafts_what_the_published_weights_say(server: RunningServer) -> None:
    version = server.publish(7)
    server.swap(version)
    server.flush_cache()
    answer = server.generate(prompt(21, 18), 24)
    trace = server.trace_of(answer["meta_info"]["id"])
    module = server.speculator.load(Path(version.path), server.weights)
    drafter = server.speculator.drafter(module, dtype=torch.float32, device=torch.device("cpu"))
    assert isinstance(drafter, Eagle3Drafter)
    steps = range(0, trace.steps.root.numel(), 3)
    drafted = [_tokens_of(trace, step) for step in steps]
    expected = [_propose(drafter, trace, step) for step in steps]
    same = sum(one == other for one, other in zip(drafted, expected, strict=True))
    # The first token follows from the target's rows alone; the ones behind it from the drafter's.
    assert [one[0] for one in drafted] == [other[0] for other in expected]
    assert same >= 0.8 * len(drafted), (drafted, expected)


def test_a_prefix_from_the_cache_shortens_the_trace_and_shifts_nothing(
    server: RunningServer, reference: Reference
) -> None:
    shared = prompt(31, 30)
    server.generate(shared, 8)
    answer = server.generate([*shared, 5, 6, 7], 8)
    trace = server.trace_of(answer["meta_info"]["id"])
    first = int(trace.rows.position[trace.rows.position >= 0].min())
    assert first >= 20, "the cache did not have the prefix"
    assert reference.largest_error(trace, num_nodes=4) < TOLERANCE


def test_a_client_that_goes_away_leaves_an_aborted_trace(server: RunningServer) -> None:
    before = {one.request_id for one in server.finished(0)}
    body = {
        "input_ids": prompt(41, 10),
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True},
    }
    with httpx.stream("POST", f"{server.backend.url}/generate", json=body, timeout=60) as stream:
        next(stream.iter_lines())
    deadline = time.monotonic() + 30
    ended = []
    while not ended and time.monotonic() < deadline:
        time.sleep(0.2)
        ended = [one for one in server.finished(0) if one.request_id not in before]
    assert [one.finish_reason for one in ended] == ["abort"]
    assert server.trace_of(ended[0].request_id).finish_reason == "abort"


def test_a_client_can_keep_its_request_out_of_the_traces(server: RunningServer) -> None:
    kept = server.status().traces_kept
    wish = {"aurora": {"record": False, "route": "private"}}
    answer = server.generate(prompt(51, 10), 4, custom_params=wish)
    stats = {one.request_id: one for one in server.finished(0)}[answer["meta_info"]["id"]]
    assert stats.route == "private"
    assert server.status().traces_kept == kept


def test_damaged_weights_are_refused_while_the_others_serve_on(
    server: RunningServer, reference: Reference
) -> None:
    live = server.status().live_version
    version = server.publish(9)
    weights = Path(version.path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(BackendError, match="announced with checksum"):
        server.swap(version)
    assert server.status().live_version == live
    assert server.generate(prompt(61, 8), 8)["output_ids"] == reference.greedy(prompt(61, 8), 8)


def test_speculation_can_be_switched_off_and_on_again(
    server: RunningServer, reference: Reference
) -> None:
    live = server.status().live_version
    assert server.swap(None).version == NO_DRAFTER
    answer = server.generate(prompt(71, 12), 12)
    assert answer["output_ids"] == reference.greedy(prompt(71, 12), 12)
    assert server.trace_of(answer["meta_info"]["id"]).nodes.step.numel() == 0
    server.swap(server.store.read(live))
    answer = server.generate(prompt(72, 12), 12)
    assert answer["output_ids"] == reference.greedy(prompt(72, 12), 12)
    assert server.trace_of(answer["meta_info"]["id"]).nodes.step.numel() > 0


def test_sglangs_own_counters_agree(server: RunningServer) -> None:
    answer = server.generate(prompt(81, 12), 30)
    stats = {one.request_id: one for one in server.finished(0)}[answer["meta_info"]["id"]]
    histogram = answer["meta_info"]["spec_correct_drafts_histogram"]
    assert stats.num_steps == answer["meta_info"]["spec_verify_ct"]
    assert stats.num_drafted == NUM_SPECULATIVE_TOKENS * stats.num_steps
    ours = [*stats.accepted_per_position, *[0] * NUM_SPECULATIVE_TOKENS]
    theirs = [sum(histogram[depth:]) for depth in range(1, NUM_SPECULATIVE_TOKENS + 1)]
    assert ours[:NUM_SPECULATIVE_TOKENS] == theirs


def test_a_change_of_the_target_is_noticed_while_it_serves(server: RunningServer) -> None:
    """The last test: what this server answers is wrong from here on."""
    server.swap(server.publish(10))
    server.change_target()
    with pytest.raises(BackendError, match=r"1 tensors of the target, 'model\.norm\.weight'"):
        server.swap(server.publish(11))


def _tokens_of(trace: Trace, step: int) -> list[int]:
    tokens: list[int] = trace.nodes.token[trace.nodes.step == step].tolist()
    return tokens


def _propose(drafter: Eagle3Drafter, trace: Trace, step: int) -> list[int]:
    """Return what our own drafter proposes from the very rows that the engine had."""
    root = int(trace.steps.root[step])
    order = torch.argsort(trace.rows.position)
    committed = order[trace.rows.position[order] >= 0][:root]
    features = {name: feature[committed] for name, feature in trace.features.items()}
    request = DraftRequest(
        request_id=f"step-{step}",
        start=0,
        token_ids=trace.token_ids[: root + 1],
        features=features,
        num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
        max_nodes=NUM_SPECULATIVE_TOKENS,
    )
    (proposal,) = drafter.propose([request])
    return list(proposal.token_ids)
