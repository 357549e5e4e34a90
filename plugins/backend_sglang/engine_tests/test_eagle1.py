"""A drafter of EAGLE-1 in a real SGLang: all rows are recorded, and it drafts as it would without.

SGLang has one field for what EAGLE-1 reads of the target and for the layers that are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import torch
from anyio.from_thread import start_blocking_portal

from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER
from plugins.backend_sglang.engine_tests.eagle1_drafter import Eagle1Drafter
from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import RunningServer
from plugins.backend_sglang.engine_tests.test_chains import TOLERANCE, prompt
from plugins.backend_sglang.engine_tests.test_other_drafters import (
    CHAIN,
    TREE,
    branches,
    rows_from,
    traces_of,
)

CHUNK = 16
"""Prompt tokens of one pass, fewer than a prompt has."""
EAGLE = (
    "--speculative-algorithm EAGLE --speculative-draft-model-path {drafter} "
    f"--chunked-prefill-size {CHUNK} --enable-return-hidden-states"
)
NEAR = 1e-3
"""Logits of the drafter this close are alike: the engine adds up in another order."""

pytestmark = pytest.mark.sglang


@dataclass(frozen=True)
class Served:
    """A server and what it drafts with."""

    server: RunningServer
    drafter: Eagle1Drafter
    num_branches: int


@pytest.fixture(
    scope="module",
    params=[pytest.param((CHAIN, 1), id="chain"), pytest.param((TREE, 2), id="tree")],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server that an operator started with a drafter of EAGLE-1."""
    shape, num_branches = request.param
    folder = tmp_path_factory.mktemp("sglang")
    line = f"{EAGLE} {shape}".format(drafter=folder / "drafter")
    with start_blocking_portal() as portal:
        running = RunningServer(folder, portal, sink_options={}, arguments=tuple(line.split()))
        reference = Reference(running.target.path)
        drafter = Eagle1Drafter(running.target, seed=5)
        prompts = [prompt(seed, 24) for seed in (1, 2, 3)]
        drafter.fit(reference, [[*one, *reference.greedy(one, 48)] for one in prompts])
        drafter.write(folder / "drafter")
        try:
            running.start()
            yield Served(running, drafter, num_branches)
        finally:
            running.stop()


@pytest.fixture(scope="module")
def server(served: Served) -> RunningServer:
    """The server alone; what is shared with other tests asks for it."""
    return served.server


def test_every_draft_is_recorded_and_no_answer_changes(
    served: Served, reference: Reference
) -> None:
    """And what is drafted first is what the drafter says on the target's rows after its norm."""
    traces = traces_of(served.server, reference)
    assert any(bool(trace.nodes.accepted.any()) for trace in traces)
    assert any(branches(trace) for trace in traces) == (served.num_branches > 1)
    for trace in traces:
        assert rows_from(trace) == 0
        logits = served.drafter.first_logits(reference, trace.token_ids.tolist())
        for step, root in enumerate(trace.steps.root.tolist()):
            is_first = (trace.nodes.step == step) & (trace.nodes.depth == 1)
            drafted = logits[root - 1][trace.nodes.token[is_first]]
            assert 1 <= drafted.numel() <= served.num_branches
            least = torch.topk(logits[root - 1], served.num_branches).values[-1]
            assert float(drafted.min()) > float(least) - NEAR, (step, root)
            assert float(drafted.max()) > float(logits[root - 1].max()) - NEAR, (step, root)


def test_what_was_answered_before_is_read_from_the_cache(
    served: Served, reference: Reference
) -> None:
    for trace in traces_of(served.server, reference):
        assert CHUNK <= rows_from(trace) < trace.prompt_len, "the cache did not have the prompt"
    assert served.server.report().num_faults == 0


def test_a_client_is_given_the_rows_that_sglang_gives(served: Served, reference: Reference) -> None:
    """The same field again: what EAGLE-1 reads is what a client may ask for."""
    served.server.flush_cache()
    one = prompt(5, 40)
    sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    body = {"input_ids": one, "sampling_params": sampling, "return_hidden_states": True}
    answer = httpx.post(f"{served.server.backend.url}/generate", json=body, timeout=300).json()
    # Of the prompt, SGLang returns the last chunk; then a row for every token it commits.
    of_prompt, *committed = (torch.tensor(each) for each in answer["meta_info"]["hidden_states"])
    given = torch.cat([of_prompt, torch.stack(committed)])
    tokens = [*one, *answer["output_ids"]]
    wanted = reference.features(tokens, (1,))["last_hidden_state"][len(one) - len(of_prompt) :]
    assert 1 <= len(of_prompt) <= CHUNK
    assert len(given) >= len(wanted) - 1
    num_rows = min(len(given), len(wanted))
    error = (given[:num_rows] - wanted[:num_rows]).abs().max()
    assert float(error) < TOLERANCE * float(wanted.abs().max())


def test_a_version_waits_for_a_restart(served: Served) -> None:
    server = served.server
    assert server.backend.provides.hot_swap == "restart"
    version = server.publish(1)
    kept = rf'"--chunked-prefill-size", "{CHUNK}", "--enable-return-hidden-states"'
    with pytest.raises(BackendError, match=rf"EAGLE and .*'backend.arguments=\[{kept}\]'"):
        server.swap(version)
    assert server.status().live_version == NO_DRAFTER
