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
from collections.abc import Callable
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
PROMPTS = [[5, 6, 7, 8 + number] for number in range(4)]
NUM_TOKENS = 24
Served = Callable[[str], list["Answer"]]


@dataclass(frozen=True)
class Answer:
    """One greedy answer of a stock vLLM."""

    prompt: list[int]
    token_ids: list[int]
    drafts: list[list[int]]
    """What was proposed after each step, the first one being the prompt's."""
    accepted: list[int]
    """Of each but the last."""


def serve(folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Let a stock vLLM draft in each of some cases; return its answers by name."""
    plan, answers = folder / "plan.json", folder / "answers.json"
    content = {"prompts": PROMPTS, "num_tokens": NUM_TOKENS, "cases": cases}
    plan.write_text(json.dumps(content))
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "PYTHONPATH": "",
    }
    script = str(Path(__file__).with_name("stock_vllm.py"))
    finished = subprocess.run(
        [PYTHON, script, str(plan), str(answers)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: dict[str, Any] = json.loads(answers.read_text())
    return found


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
        self, name: str, speculator: Speculator, *, norm_before_residual: bool = False
    ) -> VersionStore:
        """Publish a drafter with noise in all its matrices as version 1, and return its store."""
        torch.manual_seed(0)
        module: Any = speculator.build_module(self.weights, ())
        if norm_before_residual:
            module.shape = dataclasses.replace(module.shape, norm_before_residual=True)
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

    def require_equal_drafts(
        self, speculator: Speculator, module: Any, found: list[Answer]
    ) -> None:
        """See that vLLM drafted what our drafter does, and that this says something."""
        seen = set()
        for answer in found:
            proposals = self.propose(speculator, module, answer)
            assert len(proposals) >= 5
            assert answer.drafts[: len(proposals)] == proposals
            seen |= {token for proposal in proposals for token in proposal}
        assert len(seen) > 10


EAGLE3 = {"draft_vocab_size": 128, "min_confidence": 0, "min_node_confidence": 0}
# vLLM 0.32 cannot load a part of the vocabulary; a run refuses it.
MEDUSA = {
    "num_heads": NUM_SPECULATIVE_TOKENS,
    "tree": "chain",
    "min_reach": 0,
    "draft_vocab_size": 320,
}
MEDUSA_HEADS = {
    "shared head": {"own_heads": False},
    "own heads": {"own_heads": True, "num_blocks": 2},
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def folders(published: Published) -> dict[str, str]:
    """Everything that is served, by name."""
    speculator = published.speculator("eagle3", **EAGLE3)
    plain = published.publish("eagle3", speculator)
    normed = published.publish("eagle3 normed", speculator, norm_before_residual=True)
    found = {
        "native": published.export(plain, speculator, "eagle3"),
        "speculators": published.export(plain, speculator, "speculators"),
        "normed": published.export(normed, speculator, "speculators"),
    }
    for name, options in MEDUSA_HEADS.items():
        speculator = published.speculator("medusa", **MEDUSA, **options)
        store = published.publish(name, speculator)
        found[name] = published.export(store, speculator, "medusa")
    return found


@pytest.fixture(scope="module")
def served(published: Published, folders: dict[str, str]) -> Served:
    """What vLLM drafted with each."""
    cases: dict[str, dict[str, Any]] = {
        name: {
            "model": published.target.path,
            "speculative_config": {
                "method": "medusa" if name in MEDUSA_HEADS else "eagle3",
                "model": folder,
                "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
            },
        }
        for name, folder in folders.items()
    }
    # Such a folder can stand in for the model: it names its target and how many tokens to draft.
    cases["as a model"] = {"model": folders["speculators"]}
    found = serve(published.folder, cases)

    def answers(name: str) -> list[Answer]:
        assert not isinstance(found[name], str), found[name]
        return [Answer(prompt, *one) for prompt, one in zip(PROMPTS, found[name], strict=True)]

    return answers


def test_both_layouts_of_eagle3_draft_what_our_drafter_does(
    published: Published, folders: dict[str, str], served: Served
) -> None:
    native = served("native")
    assert served("speculators") == native
    assert served("as a model") == native
    speculator = published.speculator("eagle3", **EAGLE3)
    module = speculator.load(Path(folders["native"]), published.weights)
    published.require_equal_drafts(speculator, module, native)


@pytest.mark.parametrize("name", ["speculators", "normed"])
def test_a_drafter_in_the_layout_of_speculators_is_imported_as_vllm_reads_it(
    published: Published, folders: dict[str, str], served: Served, name: str
) -> None:
    speculator = published.speculator(
        "eagle3", start_from=folders[name], min_confidence=0, min_node_confidence=0
    )
    module = speculator.build_module(published.weights, ())
    published.require_equal_drafts(speculator, module, served(name))
    assert served("normed") != served("native"), "the residual makes a difference"


@pytest.mark.parametrize("name", MEDUSA_HEADS)
def test_medusa_drafts_what_our_drafter_does_from_what_it_publishes(
    published: Published, folders: dict[str, str], served: Served, name: str
) -> None:
    answers = served(name)
    assert sum(sum(answer.accepted) for answer in answers) > 0
    speculator = published.speculator("medusa", **MEDUSA, **MEDUSA_HEADS[name])
    module = speculator.load(Path(folders[name]), published.weights)
    published.require_equal_drafts(speculator, module, answers)
