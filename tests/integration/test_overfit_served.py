"""The loop in one process: an answer is served, learned by heart, and drafted whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from aurora_backend_torch.build import build_engine
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.engine import Engine
from aurora_backend_torch.generation import GenerationRequest, StepOutput
from aurora_core.interfaces import ServePlan
from aurora_core.records import RequestStats, Sampling, TargetSpec, Trace
from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.trace_validation import validate_trace
from aurora_core.versions import VersionStore
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator

PROMPT = [7, 3, 3, 8, 20, 31, 2]
NUM_TOKENS = 40
DEPTH = 3
LEARNING = {
    "draft_vocab_size": 96,
    "training_steps": DEPTH,
    "greedy_teacher": "argmax",
    "min_confidence": 0.0,
    "min_node_confidence": 0.0,
    "export_dtype": "float32",
}


def serve(
    target: TargetSpec,
    run_dir: Path,
    *,
    version: int | None = None,
    shadow: int | None = None,
    **options: object,
) -> tuple[list[int], RequestStats, Trace]:
    """Serve one greedy request with a version, or plainly, and return what became of it."""
    drafting = LEARNING | options
    plan = ServePlan(
        target=target,
        speculator="eagle3",
        speculator_options=drafting,
        plugins=("eagle",),
        needs=Eagle3Speculator(Eagle3Options.model_validate(drafting), target).needs,
        num_speculative_tokens=DEPTH,
        versions_dir=str(run_dir / "versions"),
        initial_version=None,
        sink="spool",
        sink_options={"path": str(run_dir / "spool")},
        run_dir=str(run_dir),
        seed=0,
    )
    settings = {"num_threads": 1, "dtype": "float32", "max_verification_rows": 32}
    engine = build_engine(plan, TorchBackendOptions.model_validate(settings))
    engine.start()
    try:
        if version is not None:
            engine.swap(version, "")
        if shadow is not None:
            engine.load_resident(shadow)
        name = f"{version} {shadow} {options}"
        output = generate(engine, name, shadow)
        [stats] = engine.finished(0)
    finally:
        engine.shutdown()
    reader = open_reader(SpoolOptions(path=run_dir / "spool").url)
    reader.poll()
    [trace] = [trace for trace in reader.iterate() if trace.trace_id == name]
    validate_trace(trace)
    return output, stats, trace


def generate(engine: Engine, name: str, shadow: int | None = None) -> list[int]:
    token_ids: list[int] = []
    done = threading.Event()

    def on_output(output: StepOutput) -> None:
        token_ids.extend(output.token_ids)
        if output.finish_reason is not None:
            done.set()

    request = GenerationRequest(
        request_id=name,
        prompt_token_ids=PROMPT,
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
        shadow=shadow,
    )
    engine.submit(request, on_output)
    assert done.wait(60)
    return token_ids


def learn(
    speculator: Eagle3Speculator, drafter: nn.Module, trace: Trace, *, num_steps: int
) -> None:
    batch = speculator.collate([trace])
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    for _ in range(num_steps):
        output = speculator.loss(drafter, batch)
        optimizer.zero_grad()
        (output.loss_sum / output.weight_sum).backward()
        optimizer.step()


class Learned:
    """A served answer, and versions that have learned it: 1 a little, 2 by heart."""

    def __init__(self, run_dir: Path) -> None:
        torch.set_num_threads(1)
        self.run_dir = run_dir
        self.target = read_target_spec(make_tiny_target(run_dir / "target"))
        self.plain, _, trace = serve(self.target, run_dir)
        weights = TargetWeights(self.target)
        speculator = Eagle3Speculator(Eagle3Options.model_validate(LEARNING), self.target)
        torch.manual_seed(0)
        drafter = speculator.build_module(weights, [trace])
        store = VersionStore(run_dir / "versions")
        for version, num_steps in ((1, 12), (2, 120)):
            learn(speculator, drafter, trace, num_steps=num_steps)
            store.stage(
                version,
                lambda path: speculator.save(drafter, path),
                parent=None,
                speculator="eagle3",
                target_fingerprint=self.target.fingerprint,
                global_step=num_steps,
                num_tokens_trained=0,
            )

    def serve(self, version: int | None, **options: object) -> tuple[RequestStats, Trace]:
        """Serve the same prompt with a version; the answer must be the same."""
        output, stats, trace = serve(self.target, self.run_dir, version=version, **options)
        assert output == self.plain
        return stats, trace


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learned]:
    yield Learned(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("tree_width", [1, 2, 3])
def test_an_answer_learned_by_heart_is_accepted_to_full_depth(
    learned: Learned, tree_width: int
) -> None:
    assert len(set(learned.plain)) > 10  # not one token over and over
    stats, trace = learned.serve(2, tree_width=tree_width)
    # The first token comes from the prompt, the others in steps of four and what is left.
    accepted = trace.steps.num_accepted.tolist()
    assert accepted == [DEPTH] * 9 + [(NUM_TOKENS - 1) - 9 * (DEPTH + 1) - 1]
    assert stats.num_steps == 10
    nodes_per_step = torch.bincount(trace.nodes.step)
    if tree_width == 1:
        assert bool(trace.nodes.accepted.all())
        assert nodes_per_step.max() == DEPTH
    else:
        assert nodes_per_step.max() == min(16, tree_width + (DEPTH - 1) * tree_width**2)


def test_a_tree_is_accepted_further_than_the_chain_in_it(learned: Learned) -> None:
    chain, _ = learned.serve(1)
    tree, trace = learned.serve(1, tree_width=3, tree_nodes=21)
    assert DEPTH * chain.num_steps > sum(chain.accepted_per_position) > 0
    assert tree.num_steps < chain.num_steps
    # In some steps the target's token was not the drafter's first choice.
    places = list(zip(trace.nodes.step.tolist(), trace.nodes.parent.tolist(), strict=True))
    assert any(
        place in places[:node]
        for node, place in enumerate(places)
        if bool(trace.nodes.accepted[node])
    )


@pytest.mark.parametrize("tree_width", [1, 3])
@pytest.mark.parametrize("version", [1, 2])
def test_in_the_shadow_a_drafter_takes_the_steps_it_takes_when_it_serves(
    learned: Learned, version: int, tree_width: int
) -> None:
    served, _ = learned.serve(version, tree_width=tree_width)
    beside, _ = learned.serve(None, shadow=version, tree_width=tree_width)
    assert beside.num_drafted == 0 and beside.shadow is not None
    assert beside.shadow.num_steps == served.num_steps
    assert beside.shadow.num_drafted == served.num_drafted
    assert beside.shadow.accepted_per_position == served.accepted_per_position
