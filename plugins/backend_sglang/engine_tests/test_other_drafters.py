"""Drafts that a real SGLang makes by itself: all their rows are recorded, and no answer changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER, Trace
from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import RunningServer
from plugins.backend_sglang.engine_tests.test_chains import TOLERANCE, prompt

NGRAM = "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8"
STANDALONE = "--speculative-algorithm STANDALONE --speculative-draft-model-path {target}"
CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
TREE = "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 7"

pytestmark = pytest.mark.sglang


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(NGRAM, id="ngram"),
        pytest.param(f"{STANDALONE} {CHAIN}", id="chain"),
        pytest.param(f"{STANDALONE} {TREE}", id="tree"),
    ],
)
def arguments(request: pytest.FixtureRequest) -> str:
    """What an operator starts SGLang with, in one line."""
    line: str = request.param
    return line


@pytest.fixture(scope="module")
def server(arguments: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server without a drafter of Aurora's; a whole model that it drafts with is the target."""
    folder = tmp_path_factory.mktemp("sglang")
    line = arguments.format(target=folder / "target")
    with start_blocking_portal() as portal:
        running = RunningServer(folder, portal, sink_options={}, arguments=tuple(line.split()))
        try:
            running.start()
            yield running
        finally:
            running.stop()


def test_every_draft_is_recorded_and_no_answer_changes(
    server: RunningServer, reference: Reference, arguments: str
) -> None:
    traces = traces_of(server, reference)
    for trace in traces:
        assert rows_from(trace) == 0
    assert any(branches(trace) for trace in traces) == (CHAIN not in arguments)


def test_what_was_answered_before_is_drafted_and_its_rows_stay_in_place(
    server: RunningServer, reference: Reference
) -> None:
    """Now a table of n-grams has something to say, and the prefix cache has the prompts."""
    traces = traces_of(server, reference)
    assert any(bool(trace.nodes.accepted.any()) for trace in traces)
    for trace in traces:
        assert 20 <= rows_from(trace) < trace.prompt_len, "the cache did not have the prompt"
    assert server.report().num_faults == 0


def traces_of(server: RunningServer, reference: Reference) -> list[Trace]:
    """Return the traces of the same three requests, looked at as far as they do not differ."""
    prompts = [prompt(seed, 24) for seed in (1, 2, 3)]
    answers = server.generate_all(prompts, 48)
    traces = []
    for one, answer in zip(prompts, answers, strict=True):
        assert answer["output_ids"] == reference.greedy(one, 48)
        trace = server.trace_of(answer["meta_info"]["id"])
        assert set(trace.steps.version.tolist()) == {NO_DRAFTER}
        assert not bool(trace.nodes.accepted.all())
        assert int((trace.rows.node >= 0).sum()) == int((~trace.nodes.accepted).sum())
        assert reference.largest_error(trace, num_nodes=12) < TOLERANCE
        stats = {one.request_id: one for one in server.finished(0)}[trace.trace_id]
        assert stats.num_steps == answer["meta_info"]["spec_verify_ct"]
        assert sum(stats.accepted_per_position) == answer["meta_info"]["spec_num_correct_drafts"]
        traces.append(trace)
    return traces


def test_a_version_waits_for_a_restart(server: RunningServer) -> None:
    assert server.backend.provides.hot_swap == "restart"
    version = server.publish(1)
    with pytest.raises(BackendError, match=r"only when it starts.*'backend.arguments=\[\]'"):
        server.swap(version)
    assert server.status().live_version == NO_DRAFTER


def rows_from(trace: Trace) -> int:
    """Return the first position with a row; all behind it have one, but perhaps the last."""
    positions = sorted(trace.rows.position[trace.rows.position >= 0].tolist())
    assert positions == list(range(positions[0], positions[-1] + 1))
    # An accepted draft that ends the answer has been read, a token that was only sampled has not.
    num_tokens = trace.token_ids.numel()
    assert positions[-1] in (num_tokens - 2, num_tokens - 1)
    return int(positions[0])


def branches(trace: Trace) -> bool:
    """Return whether a node has two children, which never have the same token."""
    pairs = list(zip(trace.nodes.step.tolist(), trace.nodes.parent.tolist(), strict=True))
    triples = list(zip(pairs, trace.nodes.token.tolist(), strict=True))
    assert len(set(triples)) == len(triples)
    return len(set(pairs)) < len(pairs)
