"""Medusa in the embedded engine: an answer is served, learned by heart, and drafted whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from aurora_backend_torch.build import build_engine
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.engine import Engine
from aurora_core.interfaces import ServePlan
from aurora_core.records import Trace
from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.trace_validation import validate_trace
from aurora_core.versions import VersionStore
from aurora_medusa.config import MedusaOptions
from aurora_medusa.speculator import MedusaSpeculator
from tests.integration.test_overfit_served import DEPTH, NUM_TOKENS, generate

LEARNING = {
    "draft_vocab_size": 96,
    "num_heads": DEPTH,
    "own_heads": True,
    "greedy_teacher": "argmax",
    "export_dtype": "float32",
}
BY_HEART = [DEPTH] * 9 + [(NUM_TOKENS - 1) - 9 * (DEPTH + 1) - 1]
"""Accepted per step: the first token comes from the prompt, the others in steps of four."""


class Learned:
    """A served answer, and a version that has learned it by heart."""

    def __init__(self, run_dir: Path) -> None:
        torch.set_num_threads(1)
        self.run_dir = run_dir
        self.target = read_target_spec(make_tiny_target(run_dir / "target"))
        with self.engine() as engine:
            self.plain = generate(engine, "plain")
        [trace] = self.traces().values()
        weights = TargetWeights(self.target)
        speculator = MedusaSpeculator(MedusaOptions.model_validate(LEARNING), self.target)
        drafter = speculator.build_module(weights, [trace])
        batch = speculator.collate([trace])
        optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-2)
        for _ in range(150):
            output = speculator.loss(drafter, batch)
            optimizer.zero_grad()
            (output.loss_sum / output.weight_sum).backward()
            optimizer.step()
        VersionStore(run_dir / "versions").stage(
            1,
            lambda path: speculator.save(drafter, path),
            parent=None,
            speculator="medusa",
            target_fingerprint=self.target.fingerprint,
            global_step=150,
            num_tokens_trained=0,
        )

    @contextmanager
    def engine(self, **options: object) -> Iterator[Engine]:
        drafting = LEARNING | options
        plan = ServePlan(
            target=self.target,
            speculator="medusa",
            speculator_options=drafting,
            plugins=("medusa",),
            needs=MedusaSpeculator(MedusaOptions.model_validate(drafting), self.target).needs,
            num_speculative_tokens=DEPTH,
            versions_dir=str(self.run_dir / "versions"),
            initial_version=None,
            sink="spool",
            sink_options={"path": str(self.run_dir / "spool")},
            run_dir=str(self.run_dir),
            seed=0,
        )
        settings = {"num_threads": 1, "dtype": "float32", "max_verification_rows": 32}
        engine = build_engine(plan, TorchBackendOptions.model_validate(settings))
        engine.start()
        try:
            yield engine
        finally:
            engine.shutdown()

    def traces(self) -> dict[str, Trace]:
        """Read what stopped engines recorded."""
        reader = open_reader(SpoolOptions(path=self.run_dir / "spool").url)
        reader.poll()
        return {trace.trace_id: trace for trace in reader.iterate()}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    return Learned(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("tree", ["chain", "static"])
def test_an_answer_learned_by_heart_is_accepted_to_full_depth(learned: Learned, tree: str) -> None:
    assert len(set(learned.plain)) > 10  # not one token over and over
    with learned.engine(tree=tree, tree_nodes=12) as engine:
        engine.swap(1, "")
        assert generate(engine, tree) == learned.plain
    trace = learned.traces()[tree]
    validate_trace(trace)
    assert trace.steps.num_accepted.tolist() == BY_HEART
    assert torch.bincount(trace.nodes.step).max() == (DEPTH if tree == "chain" else 12)


def test_an_adaptive_tree_becomes_the_chain_that_is_always_right(learned: Learned) -> None:
    names = [f"adaptive {index}" for index in range(12)]
    with learned.engine(tree="adaptive") as engine:
        engine.swap(1, "")
        assert all(generate(engine, name) == learned.plain for name in names)
    traces = learned.traces()
    first, last = traces[names[0]], traces[names[-1]]
    validate_trace(last)
    # Nothing is known of the heads at first: depth is not worth its cost, breadth is.
    assert len(first.steps.root) > len(BY_HEART)
    assert not bool(first.nodes.accepted.all())
    assert last.steps.num_accepted.tolist() == BY_HEART
    assert bool(last.nodes.accepted.all())
