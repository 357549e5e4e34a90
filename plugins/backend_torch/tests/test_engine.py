"""The engine core on tiny targets, in this process: outputs and traces against Hugging Face."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from aurora_backend_torch.build import build_engine
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.engine import Engine
from aurora_backend_torch.generation import GenerationRequest, QueueFull, StepOutput
from aurora_core.errors import BackendError
from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.records import NO_DRAFTER, Needs, Sampling, Trace
from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.toy_run import install_toy
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator
from aurora_core.trace_validation import validate_trace
from aurora_core.versions import VersionStore
from plugins.backend_torch.tests.conftest import plan_for

PROMPTS = [[5, 9, 11], [7, 3, 3, 8, 20, 31, 2], list(range(40, 170)), [4]]
NUM_TOKENS = 20


class Outputs:
    """Collects what a request streams."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.steps: list[StepOutput] = []
        self.done = threading.Event()

    def __call__(self, output: StepOutput) -> None:
        self.steps.append(output)
        self.token_ids += output.token_ids
        if output.finish_reason is not None:
            self.done.set()


def request(name: str, prompt: Sequence[int], **changes: object) -> GenerationRequest:
    greedy = GenerationRequest(
        request_id=name,
        prompt_token_ids=list(prompt),
        max_tokens=NUM_TOKENS,
        sampling=Sampling(),
        stop_token_ids=frozenset(),
        num_logprobs=None,
        drafter="live",
        record=True,
        request_key=name,
        tenant="",
        route="",
        arrived=time.time(),
    )
    return replace(greedy, **changes)


def generate(
    engine: Engine, requests: Sequence[GenerationRequest], *, at_once: bool = True
) -> list[list[int]]:
    collected = [Outputs() for _ in requests]
    for one, outputs in zip(requests, collected, strict=True):
        engine.submit(one, outputs)
        if not at_once:
            assert outputs.done.wait(60)
    for outputs in collected:
        assert outputs.done.wait(60)
    return [outputs.token_ids for outputs in collected]


class Served:
    """An engine with two published toy drafters and the folder of its run."""

    def __init__(self, directory: Path, run_dir: Path, **options: object) -> None:
        self.target = read_target_spec(directory)
        needs = Needs(
            features=frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"}),
            aux_layers=(1, 2, 4),
        )
        self.plan = replace(plan_for(self.target, run_dir), needs=needs)
        speculator = ToySpeculator(ToyOptions(), self.target)
        store = VersionStore(run_dir / "versions")
        torch.manual_seed(0)
        for version in (1, 2):
            module = speculator.build_module(TargetWeights(self.target), [])
            store.stage(
                version,
                lambda path, module=module: speculator.save(module, path),
                parent=None,
                speculator="toy",
                target_fingerprint=self.target.fingerprint,
                global_step=0,
                num_tokens_trained=0,
            )
        settings = {"num_threads": 1, "max_running_requests": 3, "dtype": "float32"} | options
        self.engine = build_engine(self.plan, TorchBackendOptions.model_validate(settings))
        self.engine.start()

    def traces(self) -> dict[str, Trace]:
        """Stop the engine and read what it recorded."""
        self.engine.shutdown()
        reader = open_reader(SpoolOptions(path=Path(self.plan.run_dir) / "spool").url)
        reader.poll()
        return {trace.trace_id: trace for trace in reader.iterate()}


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(
        tmp_path_factory.mktemp("target"), request.param, vocab_size=256, num_layers=4
    )


@pytest.fixture
def served(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    directory = make_tiny_target(tmp_path_factory.mktemp("target"), vocab_size=256, num_layers=4)
    monkeypatch.syspath_prepend(str(install_toy(tmp_path / "toy")))
    # These drafters are hardly ever right, and every step is to have drafts all the same.
    one = Served(
        directory, tmp_path, max_verification_rows=60, max_draft_nodes=19, draft_patience=0
    )
    yield one
    one.engine.shutdown()


def test_greedy_output_is_hugging_faces_with_and_without_a_drafter(
    family: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install_toy(tmp_path / "toy")))
    served = Served(family, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(family, dtype=torch.float32)
    expected = [
        reference.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]
    plain = generate(served.engine, [request(f"a{i}", ids) for i, ids in enumerate(PROMPTS)])
    assert plain == expected
    served.engine.swap(1, "")
    drafted = generate(served.engine, [request(f"b{i}", ids) for i, ids in enumerate(PROMPTS)])
    assert drafted == expected
    assert all(stats.num_drafted for stats in served.engine.finished(len(PROMPTS)))
    served.engine.shutdown()


def test_sampled_output_does_not_depend_on_the_drafter_or_the_batch(served: Served) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=11, rule="point_mass")
    plain = generate(
        served.engine,
        [request(f"a{i}", ids, sampling=sampling) for i, ids in enumerate(PROMPTS)],
    )
    served.engine.swap(1, "")
    drafted = generate(
        served.engine,
        [request(f"b{i}", ids, sampling=sampling) for i, ids in enumerate(PROMPTS)],
        at_once=False,
    )
    assert drafted == plain
    assert len({tuple(output) for output in plain}) == len(plain)


def test_traces_are_sound_and_their_rows_are_hugging_faces(served: Served) -> None:
    served.engine.swap(1, "")
    outputs = generate(served.engine, [request(f"r{i}", ids) for i, ids in enumerate(PROMPTS)])
    traces = served.traces()
    reference = AutoModelForCausalLM.from_pretrained(served.target.path, dtype=torch.float32)
    for index, prompt in enumerate(PROMPTS):
        trace = traces[f"r{index}"]
        validate_trace(trace)
        assert trace.token_ids.tolist() == prompt + outputs[index]
        assert set(trace.steps.version.tolist()) <= {1, NO_DRAFTER} and 1 in trace.steps.version
        # Every committed position but the last has a row, and every rejected node too.
        committed = trace.rows.position[trace.rows.position >= 0].sort().values
        assert committed.tolist() == list(range(len(trace.token_ids) - 1))
        rejected = (~trace.nodes.accepted).nonzero().flatten()
        assert trace.rows.node[trace.rows.node >= 0].sort().values.tolist() == rejected.tolist()
        compare_rows(trace, reference)


def compare_rows(trace: Trace, reference: torch.nn.Module) -> None:
    """Run every row's own token path through the reference and compare its features."""
    seen = {}
    for row, (position, node) in enumerate(
        zip(trace.rows.position.tolist(), trace.rows.node.tolist(), strict=True)
    ):
        if node < 0:
            path = trace.token_ids[: position + 1].tolist()
        else:
            drafts = []
            while node >= 0:
                drafts.append(int(trace.nodes.token[node]))
                step, node = int(trace.nodes.step[node]), int(trace.nodes.parent[node])
            path = trace.token_ids[: int(trace.steps.root[step]) + 1].tolist() + drafts[::-1]
        if len(path) > 40 and row % 10:
            continue
        key = tuple(path)
        if key not in seen:
            with torch.no_grad():
                seen[key] = reference(torch.tensor([path]), output_hidden_states=True)
        output = seen[key]
        aux = torch.cat([output.hidden_states[layer][0, -1] for layer in (1, 2)])
        found = trace.features["aux_hidden_states"][row].float()[: len(aux)]
        torch.testing.assert_close(found, aux, rtol=1e-2, atol=1e-2)  # rows are stored in bfloat16
        last = output.hidden_states[-1][0, -1]
        torch.testing.assert_close(
            trace.features["last_hidden_state"][row].float(), last, rtol=1e-2, atol=1e-2
        )
        if len(path) >= trace.prompt_len:
            torch.testing.assert_close(
                trace.features["target_logsumexp"][row],
                output.logits[0, -1].logsumexp(-1),
                rtol=1e-4,
                atol=1e-4,
            )


def test_a_swap_reaches_running_requests_and_stamps_their_steps(served: Served) -> None:
    outputs = Outputs()
    first_step = threading.Event()

    def on_output(output: StepOutput) -> None:
        outputs(output)
        first_step.set()

    served.engine.submit(request("long", PROMPTS[0], max_tokens=120), on_output)
    assert first_step.wait(60)
    receipt = served.engine.swap(2, "")
    assert receipt.version == 2 and receipt.stall_ms < 50
    assert outputs.done.wait(60)
    plain = generate(served.engine, [request("again", PROMPTS[0], max_tokens=120, drafter="none")])
    assert outputs.token_ids == plain[0]
    versions = served.traces()["long"].steps.version.tolist()
    first = versions.index(2)
    assert set(versions[:first]) == {NO_DRAFTER}
    # The last token of a request is never worth a draft.
    assert set(versions[first:-1]) == {2}


def test_stop_tokens_and_limits_cut_a_step_exactly(served: Served) -> None:
    [plain] = generate(served.engine, [request("a", PROMPTS[1])])
    served.engine.swap(1, "")
    stop = plain[9]
    first = plain.index(stop) + 1
    [stopped] = generate(
        served.engine, [request("b", PROMPTS[1], stop_token_ids=frozenset({stop}))]
    )
    assert stopped == plain[:first]
    for limit in (1, 2, 3, 5):
        [cut] = generate(served.engine, [request(f"c{limit}", PROMPTS[1], max_tokens=limit)])
        assert cut == plain[:limit]
    reasons = [stats.finish_reason for stats in served.engine.finished(1)]
    assert reasons == ["stop"] + ["length"] * 4
    for trace in served.traces().values():
        validate_trace(trace)


def test_logprobs_are_the_targets(served: Served) -> None:
    outputs = Outputs()
    served.engine.submit(request("a", PROMPTS[1], num_logprobs=2), outputs)
    assert outputs.done.wait(60)
    reference = AutoModelForCausalLM.from_pretrained(served.target.path, dtype=torch.float32)
    path = PROMPTS[1] + outputs.token_ids
    with torch.no_grad():
        expected = reference(torch.tensor([path])).logits[0].log_softmax(-1)
    given = [entry for step in outputs.steps for entry in step.logprobs or []]
    assert [entry.token_id for entry in given] == outputs.token_ids
    for offset, entry in enumerate(given):
        row = expected[len(PROMPTS[1]) - 1 + offset]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-3)
        assert [token for token, _ in entry.top] == row.topk(2).indices.tolist()


def test_an_ended_request_frees_its_place_and_leaves_an_aborted_trace(served: Served) -> None:
    outputs = Outputs()
    served.engine.submit(request("a", PROMPTS[0], max_tokens=300), outputs)
    while not outputs.token_ids:
        time.sleep(0.005)
    served.engine.end("a", reason="abort")
    assert outputs.done.wait(60)
    assert outputs.steps[-1].finish_reason == "abort"
    assert served.engine.status().num_running == 0
    trace = served.traces()["a"]
    assert trace.finish_reason == "abort"
    validate_trace(trace)


@pytest.mark.parametrize(("rows", "depth"), [(1, 0), (2, 1), (3, 2), (50, 3)])
def test_a_limit_on_verification_rows_shortens_drafts_and_then_ends_them(
    tmp_path: Path, family: Path, monkeypatch: pytest.MonkeyPatch, rows: int, depth: int
) -> None:
    monkeypatch.syspath_prepend(str(install_toy(tmp_path / "toy")))
    served = Served(family, tmp_path, max_verification_rows=rows)
    served.engine.swap(1, "")
    generate(served.engine, [request("a", PROMPTS[0])])
    [stats] = served.engine.finished(0)
    assert len(stats.accepted_per_position) == depth
    served.engine.shutdown()


def test_a_full_queue_refuses_and_says_when_to_come_back(served: Served) -> None:
    served.engine._options = served.engine._options.model_copy(
        update={"max_running_requests": 1, "max_waiting_requests": 1}
    )
    collected = [Outputs() for _ in range(2)]
    served.engine.submit(request("a", PROMPTS[0], max_tokens=200), collected[0])
    while not collected[0].token_ids:
        time.sleep(0.005)
    served.engine.submit(request("b", PROMPTS[0]), collected[1])
    with pytest.raises(QueueFull) as refused:
        served.engine.submit(request("c", PROMPTS[0]), Outputs())
    assert refused.value.retry_after_s >= 1
    for outputs in collected:
        assert outputs.done.wait(60)


@pytest.mark.parametrize(
    "proposal",
    [
        RuntimeError("planted"),
        Proposal(token_ids=[1] * 9, parents=list(range(-1, 8)), log_probs=[0.0] * 9),
        Proposal(token_ids=[10**6], parents=[-1], log_probs=[0.0]),
        Proposal(token_ids=[1, 2], parents=[1, -1], log_probs=[0.0, 0.0]),
        Proposal(token_ids=[1, 2], parents=[-1, 0], log_probs=[0.0]),
    ],
    ids=["raises", "too long", "unknown token", "child before parent", "missing probability"],
)
def test_a_drafter_that_misbehaves_is_put_aside_and_serving_goes_on(
    served: Served, proposal: Proposal | Exception
) -> None:
    [plain] = generate(served.engine, [request("a", PROMPTS[0])])
    served.engine.swap(1, "")
    drafter = served.engine._residents.get(1)
    assert drafter is not None

    def misbehave(requests: Sequence[DraftRequest]) -> list[Proposal]:
        if isinstance(proposal, Exception):
            raise proposal
        return [proposal for _ in requests]

    drafter.propose = misbehave  # type: ignore[method-assign]
    [output] = generate(served.engine, [request("b", PROMPTS[0])])
    assert output == plain
    assert served.engine.live_version == NO_DRAFTER


def test_a_drafter_that_proposes_nothing_serves_the_request_and_answers_for_it(
    served: Served,
) -> None:
    """Whoever judges it must see that its requests make one token per step."""
    [plain] = generate(served.engine, [request("a", PROMPTS[0])])
    served.engine.swap(1, "")
    drafter = served.engine._residents.get(1)
    assert drafter is not None
    nothing = Proposal(token_ids=[], parents=[], log_probs=[])
    drafter.propose = lambda requests: [nothing for _ in requests]  # type: ignore[method-assign]
    [output] = generate(served.engine, [request("b", PROMPTS[0])])
    assert output == plain
    without, with_it = served.engine.finished(0)
    assert (without.min_draft_version, without.max_draft_version) == (NO_DRAFTER, NO_DRAFTER)
    assert (with_it.min_draft_version, with_it.max_draft_version) == (1, 1)
    assert (with_it.num_speculative_steps, with_it.num_drafted) == (0, 0)


DECOYS = 2


def tree_towards(outputs: dict[str, list[int]], request: DraftRequest) -> Proposal:
    """Return a tree that holds the next tokens of a known output among wrong ones, and more."""
    name = request.request_id[1:]
    prompt, output = PROMPTS[int(name)], outputs[name]
    ahead = output[request.start + len(request.token_ids) - len(prompt) :]
    token_ids: list[int] = []
    parents: list[int] = []
    node = -1
    for depth, token in enumerate(ahead[: request.num_speculative_tokens]):
        wrong = [(token + 1 + number) % 256 for number in range(DECOYS)]
        # The right token is first, in the middle or last among its siblings.
        siblings = [*wrong[: depth % 3], token, *wrong[depth % 3 :]]
        first = len(token_ids)
        token_ids += siblings
        parents += [node] * len(siblings)
        node = first + siblings.index(token)
    if request.num_speculative_tokens > 1:  # branches below wrong tokens
        parents += [DECOYS] * (request.max_nodes - len(token_ids))
        token_ids += range(request.max_nodes - len(token_ids))
    return Proposal(
        token_ids=token_ids, parents=parents, log_probs=[-1.0 - 0.1 * node for node in parents]
    )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_trees_are_verified_branch_by_branch_and_change_no_output(
    served: Served, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, top_p=0.95, seed=3)
    plain = generate(
        served.engine, [request(f"a{i}", ids, sampling=sampling) for i, ids in enumerate(PROMPTS)]
    )
    served.engine.swap(1, "")
    drafter = served.engine._residents.get(1)
    assert drafter is not None
    outputs = {str(i): output for i, output in enumerate(plain)}
    drafter.propose = lambda asked: [  # type: ignore[method-assign]
        tree_towards(outputs, one) for one in asked
    ]
    drafted = generate(
        served.engine, [request(f"b{i}", ids, sampling=sampling) for i, ids in enumerate(PROMPTS)]
    )
    assert drafted == plain
    for stats in served.engine.finished(len(PROMPTS)):
        # Three deep and always right: four tokens a step, but for the first and the last steps.
        assert stats.num_steps <= 2 + (NUM_TOKENS - 1) // 4
        assert stats.accepted_per_position[0] == stats.num_speculative_steps
    traces = served.traces()
    reference = AutoModelForCausalLM.from_pretrained(served.target.path, dtype=torch.float32)
    for index in range(len(PROMPTS)):
        trace = traces[f"b{index}"]
        validate_trace(trace)
        assert int(trace.nodes.accepted.sum()) == int(trace.steps.num_accepted.sum())
        rejected = (~trace.nodes.accepted).nonzero().flatten()
        assert len(rejected) > DECOYS * int(trace.nodes.accepted.sum())
        assert trace.rows.node[trace.rows.node >= 0].sort().values.tolist() == rejected.tolist()
        compare_rows(trace, reference)


def test_naming_a_drafter_that_is_not_resident_is_refused(served: Served) -> None:
    with pytest.raises(BackendError, match="drafter version 2 is not resident; load it first"):
        served.engine.submit(request("a", PROMPTS[0], drafter=2), Outputs())
