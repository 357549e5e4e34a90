"""A real SGLang server behind the backend, for tests that are not coroutines themselves."""

from __future__ import annotations

import base64
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch
from anyio.from_thread import BlockingPortal
from pydantic import SecretStr
from safetensors.torch import load_file

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from aurora_core.interfaces import ServePlan
from aurora_core.records import DraftVersion, RequestStats, Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.trace_file import read_trace
from aurora_core.traffic.completion import Completion
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts import Prompt
from aurora_core.versions import VersionStore
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator

_PLUGIN = Path(__file__).parents[1]
SERVER_PATH = os.pathsep.join(
    map(str, (_PLUGIN / "tests" / "cpu_stand_in", _PLUGIN, _PLUGIN.parents[1]))
)
"""Of the server: the stand-in for SGLang's kernels, and Aurora as it stands in this checkout."""
NUM_SPECULATIVE_TOKENS = 3
TOKEN = "token-of-the-test"
_WAIT_S = 30.0


class RunningServer:
    """SGLang on a tiny random target, with a placeholder for a drafter."""

    def __init__(
        self,
        folder: Path,
        portal: BlockingPortal,
        *,
        sink_options: Mapping[str, object],
        **options: Any,
    ) -> None:
        """
        Args:
            folder: for target, versions and traces.
            portal: of the event loop that the backend's methods run in.
            sink_options: further options of the spool.
            options: further options of the backend.
        """
        self.target = read_target_spec(
            make_tiny_target(folder / "target", hidden_size=64, num_layers=5, seed=3)
        )
        self.speculator = Eagle3Speculator(
            Eagle3Options(
                draft_vocab_size=192,
                export_dtype="float32",
                min_confidence=0.0,
                min_node_confidence=0.0,
            ),
            self.target,
        )
        self.weights = TargetWeights(self.target)
        self.store = VersionStore(folder / "versions")
        self.spool = folder / "spool"
        self.backend = SglangBackend(
            SglangBackendOptions(
                python=Path(os.environ["AURORA_SGLANG_PYTHON"]),
                device="cpu",
                dtype="float32",
                feature_dtype="float32",
                token=SecretStr(TOKEN),
                max_total_tokens=4096,
                max_running_requests=8,
                environment={"PYTHONPATH": SERVER_PATH},
                **options,
            )
        )
        self._portal = portal
        self.plan = ServePlan(
            target=self.target,
            speculator="eagle3",
            speculator_options=self.speculator.options.model_dump(mode="json"),
            plugins=("core", "eagle", "sglang"),
            needs=self.speculator.needs,
            num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
            versions_dir=str(self.store.path),
            initial_version=None,
            sink="spool",
            sink_options={"path": str(self.spool), **sink_options},
            run_dir=str(folder / "run"),
            seed=0,
        )

    def start(self) -> None:
        self._portal.call(self.backend.start, self.plan)

    def stop(self) -> None:
        self._portal.call(self.backend.stop)

    def swap(self, version: DraftVersion | None) -> Any:
        return self._portal.call(self.backend.swap, version)

    def status(self) -> Any:
        return self._portal.call(self.backend.status)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Wait for a coroutine function in the backend's event loop."""
        return self._portal.call(function, *arguments)

    def report(self) -> Any:
        return self._portal.call(self.backend.report)

    def finished(self, after: int) -> list[RequestStats]:
        return self._portal.call(self.backend.finished, after)

    def publish(self, seed: int) -> DraftVersion:
        """Publish a drafter with random weights; its vocabulary is the placeholder's or not."""
        torch.manual_seed(seed)
        module = self.speculator.build_module(self.weights, ())
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() == 2:
                    parameter.add_(0.3 * torch.randn_like(parameter) / parameter.shape[1] ** 0.5)
        return self.store.stage(
            self.store.next_version(),
            lambda folder: self.speculator.save(module, folder),
            parent=None,
            speculator="eagle3",
            target_fingerprint=self.target.fingerprint,
            global_step=1,
            num_tokens_trained=1,
        )

    def generate(self, prompt: Sequence[int], num_tokens: int, **sampling: Any) -> dict[str, Any]:
        """Return SGLang's whole answer to one greedy request."""
        parameters = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
        body = {"input_ids": list(prompt), "sampling_params": {**parameters, **sampling}}
        answer = httpx.post(f"{self.backend.url}/generate", json=body, timeout=300)
        answer.raise_for_status()
        plain: dict[str, Any] = answer.json()
        return plain

    def chat(self, text: str, **settings: Any) -> Completion:
        """Return the answer to one greedy chat, streamed, as the driver of a run reads it."""
        prompt = Prompt(text=text, domain="chat")

        async def ask() -> Completion:
            async with Endpoint(self.backend.url) as endpoint:
                return await endpoint.complete(prompt, RequestSettings(**settings))

        return self._portal.call(ask)

    def attach(self, **options: Any) -> SglangBackend:
        """Return another backend beside this one, on the same server."""
        other = SglangBackend(
            SglangBackendOptions(
                url=self.backend.url, token=SecretStr(TOKEN), device="cpu", **options
            )
        )
        self._portal.call(other.start, self.plan)
        return other

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Wait for a coroutine function of a backend."""
        return self._portal.call(function, *arguments)

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the answers to several requests at once, while something else is done."""
        with ThreadPoolExecutor(len(prompts)) as executor:
            answers = [executor.submit(self.generate, one, num_tokens) for one in prompts]
            if meanwhile is not None:
                meanwhile()
            return [answer.result() for answer in answers]

    def flush_cache(self) -> None:
        """Empty the prefix cache, so that the next prompt is read whole."""
        client = self.backend._client
        assert client is not None
        self._portal.call(client.request, "POST", "/flush_cache")

    def change_target(self) -> None:
        """Change a tensor of the target by SGLang's own routes, as a swap must never do."""
        name = "model.norm.weight"
        tensors = load_file(Path(self.target.path) / "model.safetensors")
        # SGLang's own format of an update; what Aurora sends carries no tensors.
        payload = base64.b64encode(pickle.dumps([(name, 1.01 * tensors[name])])).decode()
        update = {
            "serialized_named_tensors": [payload],
            "selector": "target",
            "flush_cache": False,
        }
        client = self.backend._client
        assert client is not None
        for route, body in (
            ("pause_generation", {"mode": "in_place"}),
            ("begin_weight_update", {"selector": "target"}),
            ("update_weights_from_tensor", update),
            ("end_weight_update", {}),
            ("continue_generation", {}),
        ):
            call = partial(client.request, "POST", f"/{route}", json=body)
            answer = self._portal.call(call)
            assert answer.status_code == 200, answer.text

    def trace_of(self, request_id: str) -> Trace:
        """Return the trace of a request, once it is on the disk."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            for path in sorted((self.spool / "traces").glob("*.safetensors"), reverse=True):
                trace = read_trace(path)
                if trace.trace_id == request_id:
                    return trace
            time.sleep(0.2)
        raise AssertionError(f"no trace of {request_id} within {_WAIT_S:g} s")
