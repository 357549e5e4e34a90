"""A real vLLM engine in this process, stepped by hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from aurora_backend_vllm.engine.settings import EngineSettings
from aurora_core.records import NO_DRAFTER, DraftVersion, Needs, RequestStats, Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.trace_file import read_trace
from aurora_core.versions import VersionStore
from aurora_core.wire import from_dict
from plugins.backend_vllm.engine_tests.drafters import AUX_LAYERS, write_drafter

WORKER = "aurora_backend_vllm.engine.worker.AuroraWorker"
NUM_SPECULATIVE_TOKENS = 3


@dataclass
class Answer:
    """One request, as its client saw it."""

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    per_step_accepted: list[int] = field(default_factory=list)
    per_step_drafted: list[int] = field(default_factory=list)


class RunningEngine:
    """vLLM with Aurora's worker on a tiny random target."""

    def __init__(
        self,
        folder: Path,
        method: str,
        *,
        start_version: bool = True,
        speculation: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """
        Args:
            folder: for target, versions and traces.
            method: vLLM's speculative method.
            start_version: whether the drafter it starts with is version 1, or a placeholder.
            speculation: further fields of vLLM's `speculative_config`.
            arguments: further arguments of vLLM.
        """
        path = make_tiny_target(
            folder / "target", vocab_size=320, hidden_size=128, num_layers=4, seed=3
        )
        self.target = read_target_spec(path, name="tiny")
        self.head = TargetWeights(path).lm_head
        self.method, self.folder = method, folder
        self.store = VersionStore(folder / "versions")
        first = self.publish(seed=1)
        features = {"last_hidden_state", "target_logsumexp"}
        if method == "eagle3":
            features.add("aux_hidden_states")
        settings = EngineSettings(
            target=self.target,
            needs=Needs(
                features=frozenset(features), aux_layers=AUX_LAYERS if method == "eagle3" else ()
            ),
            versions_dir=str(self.store.path),
            initial_version=first.version if start_version else NO_DRAFTER,
            initial_checksum=first.checksum if start_version else "",
            sink="spool",
            sink_options={"path": str(folder / "spool"), "queue_traces": 1000},
            feature_dtype="float32",
        )
        values: dict[str, Any] = {
            "model": str(path),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 256,
            "max_num_seqs": 8,
            "block_size": 32,
            "seed": 0,
            "distributed_executor_backend": "uni",
            "worker_cls": WORKER,
            "additional_config": settings.to_config(),
            "speculative_config": {
                "method": method,
                "model": first.path,
                "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
                **(speculation or {}),
            },
            "per_request_spec_decode_metrics": "detailed",
            "disable_log_stats": True,
        }
        self.engine = LLMEngine.from_engine_args(EngineArgs(**{**values, **arguments}))
        self.answers: dict[str, Answer] = {}

    def publish(self, *, seed: int) -> DraftVersion:
        """Publish a random drafter."""
        return self.store.stage(
            self.store.next_version(),
            lambda path: write_drafter(self.method, path, self.target, self.head, seed=seed),
            parent=None,
            speculator=self.method,
            target_fingerprint=self.target.fingerprint,
            global_step=seed,
            num_tokens_trained=seed,
        )

    def add(self, name: str, prompt: Sequence[int], **parameters: Any) -> None:
        """Send one request."""
        self.answers[name] = Answer(prompt=list(prompt))
        values = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **parameters}
        self.engine.add_request(name, {"prompt_token_ids": list(prompt)}, SamplingParams(**values))

    def abort(self, name: str) -> None:
        """Give up a request, as a client that goes away does."""
        self.engine.abort_request([name])

    def step(self) -> None:
        """Run one step and take in what came of it."""
        for output in self.engine.step():
            answer, completion = self.answers[output.request_id], output.outputs[0]
            answer.token_ids = list(completion.token_ids)
            answer.finish_reason = completion.finish_reason
            if metrics := completion.spec_decode_metrics:
                answer.per_step_accepted = list(metrics.per_step_accepted)
                answer.per_step_drafted = list(metrics.per_step_drafted)

    def run(self, between: Callable[[int], None] = lambda number: None) -> None:
        """Step until nothing is left, calling `between` after every step."""
        number = 0
        while self.engine.has_unfinished_requests():
            self.step()
            number += 1
            between(number)
        self.step()  # tells the worker about the last ones that finished

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the worker, between two steps."""
        return self.engine.collective_rpc(method, args=arguments)[0]

    def swap(self, draft: DraftVersion | None) -> Mapping[str, Any]:
        """Do what the control route does."""
        if draft is None:
            return dict(self.call("aurora_swap", NO_DRAFTER))
        self.call("aurora_stage", draft.version, draft.checksum)
        while (staged := self.call("aurora_staged", draft.version))["state"] == "loading":
            pass
        if staged["state"] == "refused":
            return {"refused": staged["reason"]}
        return dict(self.call("aurora_swap", draft.version))

    def statistics(self) -> list[RequestStats]:
        """Return what the recorder counted for each finished request."""
        return [from_dict(RequestStats, one) for one in self.call("aurora_finished", -1)]

    def traces(self) -> dict[str, Trace]:
        """End the engine and return its traces by the name of their request."""
        self.call("shutdown")
        files = sorted((self.folder / "spool" / "traces").glob("*.safetensors"))
        found = [read_trace(file) for file in files]
        return {trace.trace_id.rpartition("-")[0]: trace for trace in found}

    @property
    def worker(self) -> Any:
        """The worker itself."""
        return self.engine.model_executor.driver_worker.worker


def fresh_folder(path: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def random_prompt(generator: torch.Generator, length: int) -> list[int]:
    """Return tokens of the tiny target, without its special ones."""
    return torch.randint(3, 320, (length,), generator=generator).tolist()
