"""Trees of drafts on a real SGLang: two branches a step."""

from __future__ import annotations

import httpx
import pytest

from aurora_core.errors import BackendError
from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import RunningServer
from plugins.backend_sglang.engine_tests.test_chains import TOLERANCE, prompt

OPTIONS: dict[str, object] = {
    "eagle_topk": 2,
    "max_draft_nodes": 6,
    "verify_target": "between_steps",
}

pytestmark = pytest.mark.sglang


def test_trees_are_traced_with_all_their_branches(
    server: RunningServer, reference: Reference
) -> None:
    version = server.publish(1)
    receipt = server.swap(version)
    assert receipt.checksum == version.checksum
    prompts = [prompt(seed, 10 + seed) for seed in (1, 2)]
    answers = server.generate_all(prompts, 20)
    for one, answer in zip(prompts, answers, strict=True):
        assert answer["output_ids"] == reference.greedy(one, 20)
        trace = server.trace_of(answer["meta_info"]["id"])
        assert set(trace.steps.version.tolist()) == {version.version}
        for step in range(trace.steps.root.numel()):
            parents = trace.nodes.parent[trace.nodes.step == step].tolist()
            assert len(parents) == 6
            assert len(set(parents)) < len(parents), "no node has two children"
        assert int((trace.rows.node >= 0).sum()) == int((~trace.nodes.accepted).sum())
        assert reference.largest_error(trace, num_nodes=12) < TOLERANCE


def test_speculation_on_trees_cannot_be_switched_off(server: RunningServer) -> None:
    with pytest.raises(BackendError, match="cannot switch speculation off while it drafts trees"):
        server.swap(None)


def test_a_chat_request_is_labelled_and_kept_out_of_the_traces(server: RunningServer) -> None:
    kept = server.status().traces_kept
    body = {
        "model": server.target.name,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "temperature": 0,
        "aurora": {"record": False, "route": "private"},
    }
    url = f"{server.backend.url}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=120).raise_for_status().json()
    stats = {one.request_id: one for one in server.finished(0)}[answer["id"]]
    assert stats.route == "private"
    assert server.status().traces_kept == kept
    for wish, where in (
        ({**body, "aurora": {"drafter": "none"}}, url),
        (
            {"text": "a", "sampling_params": {"custom_params": {"aurora": {"drafter": "none"}}}},
            f"{server.backend.url}/generate",
        ),
    ):
        refused = httpx.post(where, json=wish, timeout=120)
        assert refused.status_code == 400
        assert "no step without drafts where it drafts trees" in refused.text


def test_control_routes_want_the_token(server: RunningServer) -> None:
    answer = httpx.post(f"{server.backend.url}/flush_cache", timeout=60)
    assert answer.status_code == 401


def test_a_change_of_the_target_is_noticed_by_sglangs_own_check(server: RunningServer) -> None:
    """The last test: what this server answers is wrong from here on."""
    server.change_target()
    with pytest.raises(BackendError, match=r"1 tensors of the target, 'model\.norm\.weight'"):
        server.swap(server.publish(2))
