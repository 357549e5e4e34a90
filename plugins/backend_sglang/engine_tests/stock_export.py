"""A drafter that learned some answers by heart, exported, and a stock SGLang that serves it."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch
import yaml

from aurora_backend_sglang.server_command import CPU_ARGUMENTS
from aurora_core.cli import main
from aurora_core.config import RunConfig
from aurora_core.engine_process.ports import free_port
from aurora_core.engine_process.server import ServerProcess
from aurora_core.records import Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.reference_engine import ReferenceEngine
from aurora_core.testing.reference_target import ReferenceTarget
from aurora_core.testing.suites.material import SHARPNESS, prompt_of
from aurora_core.testing.suites.registered import registered_speculator
from aurora_core.testing.suites.speculator_fixtures import train
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.versions import VersionStore
from plugins.backend_sglang.engine_tests.running_server import NUM_SPECULATIVE_TOKENS
from tests.conformance.eagle_server import DRAFTING

NUM_TOKENS = 32
NUM_LEARNED = 4
NUM_OVERFIT_STEPS = 400
STAND_IN = str(Path(__file__).parents[1] / "tests" / "cpu_stand_in")


class StockExport:
    """What is exported, and what our own drafter makes of it."""

    def __init__(self, folder: Path) -> None:
        """Train, publish and export.

        Args:
            folder: for all files.
        """
        self._folder = folder
        path = make_tiny_target(
            folder / "target", hidden_size=64, num_layers=5, sharpness=SHARPNESS, seed=3
        )
        self.target = read_target_spec(path, name=str(path))
        self.speculator = registered_speculator("eagle3", DRAFTING, self.target)
        self._engine = ReferenceEngine(ReferenceTarget(self.target), self.speculator.needs)
        self.prompts = [list(prompt_of(seed, 9 + seed, self.target)) for seed in range(6)]
        """The answers to the first `NUM_LEARNED` are known by heart."""
        self.module = self._learn()
        self.command = self._export()
        """As `aurora export` prints it."""

    def answer(self, prompt: Sequence[int], *, layers_off_by: int = 0) -> Trace:
        """Return what our own drafter makes of a prompt, on the target that is no engine's.

        Args:
            prompt: token ids.
            layers_off_by: reads layers so much further on than those that were learned from.
        """
        drafter = self.speculator.drafter(
            self.module, dtype=torch.float32, device=torch.device("cpu")
        )
        needs = self.speculator.needs
        layers = tuple(layer + layers_off_by for layer in needs.aux_layers)
        engine = ReferenceEngine(self._engine.reference, replace(needs, aux_layers=layers))
        # Longer than SGLang's answer, whose last draft is not cut short to what is left.
        return engine.serve(
            prompt,
            drafter,
            max_tokens=NUM_TOKENS + NUM_SPECULATIVE_TOKENS + 1,
            num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
        )

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Run the printed command; yields the server's URL.

        What is added is for a machine without a GPU. Nothing of Aurora is on the path, and SGLang
        is told to load no plugin.
        """
        port = free_port("127.0.0.1")
        program, *arguments = self.command
        python = Path(os.environ["AURORA_SGLANG_PYTHON"])
        server = await ServerProcess.launch(
            [
                str(python.with_name(program)),
                *arguments,
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--device", "cpu", "--dtype", "float32", "--max-total-tokens", "2048"),
                *CPU_ARGUMENTS,
            ],
            name="SGLang",
            environment={
                "PYTHONPATH": STAND_IN,
                "SGLANG_PLUGINS": "none-of-them",
                "SGLANG_USE_CPU_ENGINE": "1",
                "TORCH_COMPILE_DISABLE": "1",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
            },
            log_path=self._folder / "stock.log",
            grace_s=20,
        )
        url = f"http://127.0.0.1:{port}"

        async def is_healthy() -> bool:
            try:
                return (await client.get("/health", timeout=10)).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                await server.wait_healthy(is_healthy, 300)
            yield url
        finally:
            await server.end()

    def _learn(self) -> Any:
        plain = [
            self._engine.serve(prompt, max_tokens=NUM_TOKENS + NUM_SPECULATIVE_TOKENS + 1)
            for prompt in self.prompts[:NUM_LEARNED]
        ]
        torch.manual_seed(0)
        module = self.speculator.build_module(TargetWeights(self.target), plain)
        batch = self.speculator.collate(plain)
        for _ in range(0, NUM_OVERFIT_STEPS, 50):
            train(self.speculator, module, batch, 50, 3e-3)
            accepted, anchors = self.speculator.acceptance(module, batch, NUM_SPECULATIVE_TOKENS)
            missing = int((anchors - accepted[:, -1]).sum())
            if missing <= NUM_LEARNED * (NUM_SPECULATIVE_TOKENS - 1):
                break
        return module

    def _export(self) -> list[str]:
        run_dir, folder = self._folder / "run", self._folder / "exported"
        VersionStore(run_dir / "versions").stage(
            1,
            lambda path: self.speculator.save(self.module, path),
            parent=None,
            speculator="eagle3",
            target_fingerprint=self.target.fingerprint,
            global_step=1,
            num_tokens_trained=1,
        )
        config = RunConfig.model_validate(
            {
                "target": self.target.path,
                "speculator": {"name": "eagle3", **DRAFTING},
                "backend": "sglang",
                "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
            }
        )
        document = {"config": config.model_dump(mode="json"), "resolved": {}}
        (run_dir / "resolved.yaml").write_text(yaml.safe_dump(document))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            arguments = ["export", "1", str(folder), "--run-dir", str(run_dir)]
            assert main([*arguments, "--format", "sglang"]) == 0
        return shlex.split(printed.getvalue().splitlines()[-1])


def accepted_per_step(trace: Trace, num_tokens: int) -> list[int]:
    """Return how many drafts were accepted in each step that an answer of so many tokens takes."""
    counts: list[int] = []
    # The prompt's own step has the first token.
    while 1 + len(counts) + sum(counts) < num_tokens:
        counts.append(int(trace.steps.num_accepted[len(counts)]))
    return counts
