"""What Aurora publishes and exports drafts in a stock vLLM as it drafts here.

Each case is served by vLLM without Aurora: no plugin, no worker of ours, nothing of ours imported.
What it drafts at every step is compared with what the speculator's own drafter proposes on the
hidden states of Hugging Face's model.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from aurora_core.components import build_component
from aurora_core.config import ComponentSection
from aurora_core.exporting import export_version
from aurora_core.interfaces import DraftRequest, Speculator
from aurora_core.plugins import Plugins
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.versions import VersionStore

PYTHON = os.environ.get("AURORA_TEST_VLLM", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="needs vLLM's environment: run `make test-vllm`"),
]
NUM_SPECULATIVE_TOKENS = 3
LAYOUTS = ("eagle3", "speculators")
PROMPTS = [[5, 6, 7, 8 + number] for number in range(4)]
NUM_TOKENS = 24

STOCK = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    target, speculation, prompts, num_tokens = map(json.loads, sys.argv[1:])
    llm = LLM(
        **target, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=2,
        distributed_executor_backend="uni", speculative_config=speculation,
        per_request_spec_decode_metrics="detailed", disable_log_stats=False,
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    propose, drafts = runner.propose_draft_token_ids, []

    def recorded(*arguments, **options):
        proposed = propose(*arguments, **options)
        drafts.append([int(token) for token in proposed[0]])
        return proposed

    runner.propose_draft_token_ids = recorded
    answers = []
    for prompt in prompts:
        drafts.clear()
        parameters = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        [output] = llm.generate([{"prompt_token_ids": prompt}], parameters)
        accepted = output.outputs[0].spec_decode_metrics.per_step_accepted
        answers.append((list(output.outputs[0].token_ids), list(drafts), list(accepted)))
    method = runner.speculative_config.method
    print(json.dumps([answers, method, "aurora_core" in sys.modules]))
"""


@dataclass(frozen=True)
class Answer:
    """One greedy answer of a stock vLLM."""

    prompt: list[int]
    token_ids: list[int]
    drafts: list[list[int]]
    """What was proposed after each step, the first one being the prompt's."""
    accepted: list[int]
    """Of each but the last."""


def serve(speculation: dict[str, Any], **target: str) -> list[Answer]:
    """Let a stock vLLM answer the prompts, one after the other."""
    arguments = [target, speculation, PROMPTS, NUM_TOKENS]
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_PLUGINS": "",
        "PYTHONPATH": "",
    }
    finished = subprocess.run(
        [PYTHON, "-c", STOCK, *map(json.dumps, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    answers, method, has_aurora = json.loads(finished.stdout.splitlines()[-1])
    assert (method, has_aurora) == (speculation.get("method", "eagle3"), False)
    return [Answer(prompt, *answer) for prompt, answer in zip(PROMPTS, answers, strict=True)]


class Published:
    """A tiny target, and drafters of it as a run publishes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Its heads are as large as vLLM's kernels for CPUs take.
        path = make_tiny_target(
            folder / "target", vocab_size=320, hidden_size=128, num_layers=4, seed=3
        )
        self.target = read_target_spec(path, name="tiny")
        self.weights = TargetWeights(self.target)
        self._plugins = Plugins()
        self._plugins.load()
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def speculator(self, name: str, **options: object) -> Speculator:
        section = ComponentSection.model_validate({"name": name, **options})
        return build_component(self._plugins, "speculators", section, target=self.target)

    def publish(
        self, name: str, speculator: Speculator, *, shape: dict[str, object]
    ) -> VersionStore:
        """Publish a drafter with noise in all its matrices as version 1, and return its store."""
        torch.manual_seed(0)
        module = speculator.build_module(self.weights, ())
        if shape:
            module.shape = dataclasses.replace(module.shape, **shape)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.dim() == 2:
                    parameter.add_(0.02 * torch.randn_like(parameter))
        store = VersionStore(self.folder / name)
        store.stage(
            1,
            lambda path: speculator.save(module, path),
            parent=None,
            speculator=name,
            target_fingerprint=self.target.fingerprint,
            global_step=0,
            num_tokens_trained=0,
        )
        return store

    def export(self, store: VersionStore, speculator: Speculator, layout: str) -> str:
        """Do what `aurora export` does; return the folder."""
        folder = store.path.with_name(f"{store.path.name}-{layout}")

        def convert(checkpoint: Path, to: Path) -> None:
            speculator.export(
                checkpoint, to, layout=layout, num_speculative_tokens=NUM_SPECULATIVE_TOKENS
            )

        export_version(
            store,
            1,
            folder,
            formats=speculator.formats,
            wanted=layout,
            converters={layout: convert} if layout in speculator.export_formats else {},
        )
        return str(folder)

    @cache  # noqa: B019 - one instance, and as long-lived as the module
    def features(self, token_ids: tuple[int, ...], layers: tuple[int, ...]) -> dict[str, Any]:
        """Return what the target computes at every position."""
        with torch.inference_mode():
            out = self._model(torch.tensor([token_ids]), output_hidden_states=True)
        found = {"last_hidden_state": out.hidden_states[-1][0]}
        if layers:
            found["aux_hidden_states"] = torch.cat(
                [out.hidden_states[layer][0] for layer in layers], -1
            )
        return found

    def propose(self, speculator: Speculator, module: Any, answer: Answer) -> list[list[int]]:
        """Return what the speculator's own drafter proposes where vLLM drafted."""
        drafter = speculator.drafter(module, dtype=torch.float32, device=torch.device("cpu"))
        tokens = (*answer.prompt, *answer.token_ids)
        features = self.features(tokens, speculator.needs.aux_layers)
        roots = [len(answer.prompt)]
        for accepted in answer.accepted:
            roots.append(roots[-1] + accepted + 1)
        proposals, start = [], 0
        for root in roots:
            if root >= len(tokens) - 1:
                break
            request = DraftRequest(
                request_id="one",
                start=start,
                token_ids=torch.tensor(tokens[start : root + 1]),
                features={name: rows[start:root] for name, rows in features.items()},
                num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
                max_nodes=NUM_SPECULATIVE_TOKENS,
            )
            proposals.append(list(drafter.propose([request])[0].token_ids))
            start = root
        return proposals

    def require_equal_drafts(self, speculator: Speculator, path: str, found: list[Answer]) -> None:
        module = speculator.load(Path(path), self.weights)
        self.require_proposals(speculator, module, found)

    def require_proposals(self, speculator: Speculator, module: Any, found: list[Answer]) -> None:
        """See that vLLM drafted what our drafter does, and that this says something."""
        seen = set()
        for answer in found:
            proposals = self.propose(speculator, module, answer)
            assert len(proposals) >= 5
            assert answer.drafts[: len(proposals)] == proposals
            seen |= {token for proposal in proposals for token in proposal}
        assert len(seen) > 10


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("formats"))


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_eagle3_drafts_the_same_from_each_of_its_layouts(
    published: Published, norm_before_residual: bool
) -> None:
    speculator = published.speculator("eagle3", draft_vocab_size=128, min_confidence=0)
    shape = {"norm_before_residual": norm_before_residual}
    store = published.publish(f"eagle3-{norm_before_residual}", speculator, shape=shape)
    folders = {layout: published.export(store, speculator, layout) for layout in LAYOUTS}
    depth = {"num_speculative_tokens": NUM_SPECULATIVE_TOKENS}
    native = serve(
        {"method": "eagle3", "model": folders["eagle3"], **depth}, model=published.target.path
    )
    other = serve({"model": folders["speculators"], **depth}, model=published.target.path)
    assert other == native
    assert sum(sum(answer.accepted) for answer in native) > 0
    published.require_equal_drafts(speculator, folders["eagle3"], native)
    starting = published.speculator("eagle3", start_from=folders["speculators"], min_confidence=0)
    module = starting.build_module(published.weights, ())
    published.require_proposals(starting, module, native)


@pytest.mark.parametrize(
    "options",
    [
        {"own_heads": False, "draft_vocab_size": 128},
        {"own_heads": True, "draft_vocab_size": 320, "num_blocks": 2},
    ],
    ids=["shared head, cut vocabulary", "own heads, whole vocabulary"],
)
def test_medusa_drafts_the_same_from_what_it_publishes(
    published: Published, options: dict[str, object]
) -> None:
    speculator = published.speculator(
        "medusa", num_heads=NUM_SPECULATIVE_TOKENS, tree="chain", min_reach=0, **options
    )
    store = published.publish(f"medusa-{options['own_heads']}", speculator, shape={})
    folder = published.export(store, speculator, "medusa")
    depth = {"num_speculative_tokens": NUM_SPECULATIVE_TOKENS}
    found = serve({"method": "medusa", "model": folder, **depth}, model=published.target.path)
    assert sum(sum(answer.accepted) for answer in found) > 0
    published.require_equal_drafts(speculator, folder, found)
