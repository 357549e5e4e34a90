"""Answers of a real SGLang as clients see them, requests without drafts, and attaching to it.

The tests share one server and run in order: the first one makes a drafter live.
"""

from __future__ import annotations

import httpx
import pytest

from aurora_core.records import RequestStats
from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import (
    NUM_SPECULATIVE_TOKENS,
    RunningServer,
)
from plugins.backend_sglang.engine_tests.test_chains import prompt

OPTIONS: dict[str, object] = {}
PLAIN = {"aurora": {"drafter": "none"}}

pytestmark = pytest.mark.sglang


def stats_of(server: RunningServer, request_id: str) -> RequestStats:
    return {one.request_id: one for one in server.finished(0)}[request_id]


def test_a_streamed_chat_has_its_tokens_and_statistics(
    server: RunningServer, reference: Reference
) -> None:
    version = server.publish(1)
    server.swap(version)
    answer = server.chat("hello", max_tokens=24)
    assert answer.prompt_token_ids is not None and answer.token_ids is not None
    assert len(answer.token_ids) == answer.num_output_tokens
    expected = reference.greedy(answer.prompt_token_ids, len(answer.token_ids))
    assert list(answer.token_ids) == expected
    field = answer.speculation
    assert field is not None
    stats = stats_of(server, field.request_id)
    assert field.num_steps == stats.num_steps > 0
    assert field.num_drafted == stats.num_drafted == NUM_SPECULATIVE_TOKENS * stats.num_steps
    assert field.accepted_per_position == stats.accepted_per_position
    assert (field.min_draft_version, field.max_draft_version) == (version.version,) * 2
    assert (answer.ttft_s, answer.decode_s) == (stats.ttft_s, stats.decode_s)
    assert answer.otps == (answer.num_output_tokens - 1) / stats.decode_s


def test_a_whole_answer_and_sglangs_own_route_have_the_same_statistics(
    server: RunningServer,
) -> None:
    body = {
        "model": server.target.name,
        "prompt": prompt(2, 9),
        "max_tokens": 8,
        "temperature": 0,
        "aurora": {"route": "whole"},
    }
    url = f"{server.backend.url}/v1/completions"
    answer = httpx.post(url, json=body, timeout=120).raise_for_status().json()
    assert answer["aurora"]["request_id"] == answer["id"]
    assert answer["aurora"]["num_steps"] == stats_of(server, answer["id"]).num_steps
    meta_info = server.generate(prompt(3, 9), 8)["meta_info"]
    assert meta_info["aurora"][0]["num_steps"] == meta_info["spec_verify_ct"]


def test_a_request_can_be_decoded_without_drafts(server: RunningServer) -> None:
    plain = server.chat("hello once more", max_tokens=24, drafter="none")
    drafted = server.chat("hello once more", max_tokens=24)
    assert plain.token_ids == drafted.token_ids
    assert plain.speculation is not None and drafted.speculation is not None
    assert plain.speculation.num_drafted == 0
    assert plain.speculation.num_steps == len(plain.token_ids or ()) - 1
    assert drafted.speculation.num_drafted > 0


def test_what_runs_beside_it_goes_without_and_drafts_again_afterwards(
    server: RunningServer, reference: Reference
) -> None:
    """What is left of the long request is drafted as if nothing had been beside it."""
    alone = server.generate(prompt(4, 20), 120)
    server.flush_cache()
    plain: list[dict[str, object]] = []
    (answer,) = server.generate_all(
        [prompt(4, 20)],
        120,
        lambda: plain.append(server.generate(prompt(5, 10), 20, custom_params=PLAIN)),
    )
    assert answer["output_ids"] == alone["output_ids"] == reference.greedy(prompt(4, 20), 120)
    assert plain[0]["output_ids"] == reference.greedy(prompt(5, 10), 20)
    one, other = (stats_of(server, each["meta_info"]["id"]) for each in (answer, alone))
    assert 0 < one.num_speculative_steps < one.num_steps
    assert other.num_speculative_steps == other.num_steps
    trace = server.trace_of(answer["meta_info"]["id"])
    assert reference.largest_error(trace, num_nodes=4) < 1e-4
    last = trace.steps.root.numel() - 1
    other_trace = server.trace_of(alone["meta_info"]["id"])
    drafts = {
        int(root): trace.nodes.token[trace.nodes.step == step].tolist()
        for step, root in enumerate(trace.steps.root.tolist())
    }
    other_drafts = {
        int(root): other_trace.nodes.token[other_trace.nodes.step == step].tolist()
        for step, root in enumerate(other_trace.steps.root.tolist())
    }
    assert drafts[int(trace.steps.root[last])], "the end of the request is drafted again"
    shared = [root for root in drafts if drafts[root] and root in other_drafts]
    same = sum(drafts[root] == other_drafts[root] for root in shared)
    assert same >= 0.8 * len(shared) > 0, "the drafter has not read what it did not draft for"


def test_a_running_server_is_attached_to_and_left_running(
    server: RunningServer, reference: Reference
) -> None:
    attached = server.attach()
    try:
        live = server.status().live_version
        assert server.call(attached.status).live_version == -1, "the plan begins without a drafter"
        version = server.publish(6)
        assert server.call(attached.swap, version).checksum == version.checksum
        assert version.version > live
        answer = server.generate(prompt(7, 11), 16)
        assert answer["output_ids"] == reference.greedy(prompt(7, 11), 16)
        finished = server.call(attached.finished, 0)
        assert [one.request_id for one in finished] == [answer["meta_info"]["id"]]
        assert finished[0].max_draft_version == version.version
    finally:
        server.call(attached.stop)
    assert server.generate(prompt(8, 11), 4)["output_ids"] == reference.greedy(prompt(8, 11), 4)
