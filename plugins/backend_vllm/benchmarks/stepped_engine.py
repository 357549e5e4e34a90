"""Stock vLLM with Aurora's worker in this process, on a real target, stepped by hand and timed."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from aurora_backend_vllm.engine import request_fields
from aurora_backend_vllm.engine.settings import EngineSettings
from aurora_core.records import DraftVersion, Needs, RequestStats
from aurora_core.target.spec import read_target_spec
from aurora_core.traffic.prompts import generate
from aurora_core.versions import VersionStore
from aurora_core.wire import from_dict

WORKER = "aurora_backend_vllm.engine.worker.AuroraWorker"


def argument_parser(description: str) -> ArgumentParser:
    """Return a parser with the arguments that every benchmark takes."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument(
        "--versions", type=Path, required=True, help="folder `versions` of a run: its drafters"
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--num-speculative-tokens", type=int, default=2)
    parser.add_argument("--compiled", action="store_true", help="without --enforce-eager")
    return parser


@dataclass(slots=True)
class Step:
    """One step of the engine."""

    seconds: float
    num_running: int
    """Requests before it."""
    is_decoding: bool
    """Whether every one of them had its first token already and none ended."""
    num_tokens: int
    """New tokens of all of them."""


@dataclass(slots=True)
class Answer:
    """What one request got so far."""

    token_ids: list[int] = field(default_factory=list)
    ended: bool = False
    longest_gap_s: float = 0.0
    """Between two outputs, the wait for the first one left out."""
    last_output_at: float = 0.0


class SteppedEngine:
    """An engine whose steps are called one by one."""

    def __init__(self, arguments: Namespace, folder: Path, *, max_running_requests: int = 8):
        """
        Args:
            arguments: of `argument_parser`.
            folder: for traces.
            max_running_requests: decoded together.
        """
        self.store = VersionStore(arguments.versions)
        self.versions = self.store.list()
        newest = self.versions[-1]
        target = read_target_spec(arguments.target, name="target")
        settings = EngineSettings(
            target=target,
            needs=Needs(
                features=frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"}),
                aux_layers=(2, target.num_layers // 2, target.num_layers - 3),
            ),
            versions_dir=str(arguments.versions),
            initial_version=newest.version,
            initial_checksum=newest.checksum,
            sink="spool",
            sink_options={"path": str(folder / "spool")},
        )
        values: dict[str, Any] = {
            "model": str(arguments.target),
            "dtype": arguments.dtype,
            "enforce_eager": not arguments.compiled,
            "max_model_len": 1024,
            "max_num_seqs": max_running_requests,
            "seed": 0,
            "distributed_executor_backend": "uni",
            "worker_cls": WORKER,
            "additional_config": settings.to_config(),
            "speculative_config": {
                "method": "eagle3",
                "model": newest.path,
                "num_speculative_tokens": arguments.num_speculative_tokens,
            },
            "per_request_spec_decode_metrics": "detailed",
            "async_scheduling": False,
        }
        self.engine = LLMEngine.from_engine_args(EngineArgs(**values))
        self.worker: Any = self.engine.model_executor.driver_worker.worker  # type: ignore[attr-defined] # of the executor "uni"
        self.answers: dict[str, Answer] = {}
        self._num_added = 0

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        drafts: bool = True,
        record: bool = True,
        cache_salt: str | None = None,
    ) -> str:
        """Send one greedy request that runs to its last token; returns its name."""
        self._num_added += 1
        name = f"request-{self._num_added}"
        extra: dict[str, Any] = {request_fields.RECORD: int(record)}
        if not drafts:
            extra[request_fields.DRAFTER] = request_fields.NO_DRAFTS
        request: dict[str, Any] = {"prompt_token_ids": list(prompt)}
        if cache_salt is not None:
            request["cache_salt"] = cache_salt
        parameters = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra
        )
        self.answers[name] = Answer()
        self.engine.add_request(name, request, parameters)  # type: ignore[arg-type] # a prompt of tokens
        return name

    def step(self) -> Step:
        """Run one step."""
        running = {name: one for name, one in self.answers.items() if not one.ended}
        decoding = all(answer.token_ids for answer in running.values())
        num_before = sum(len(answer.token_ids) for answer in running.values())
        started = time.perf_counter()
        outputs = self.engine.step()
        ended = time.perf_counter()
        for output in outputs:
            answer = self.answers[output.request_id]
            if answer.token_ids:
                answer.longest_gap_s = max(answer.longest_gap_s, ended - answer.last_output_at)
            answer.token_ids, answer.last_output_at = list(output.outputs[0].token_ids), ended
            answer.ended = output.finished
        return Step(
            seconds=ended - started,
            num_running=len(running),
            is_decoding=decoding and not any(answer.ended for answer in running.values()),
            num_tokens=sum(len(one.token_ids) for one in running.values()) - num_before,
        )

    def run(self, between: Callable[[int], None] = lambda number: None) -> list[Step]:
        """Step until nothing is left, calling `between` with the number of steps after each."""
        steps: list[Step] = []
        while self.engine.has_unfinished_requests():
            steps.append(self.step())
            between(len(steps))
        self.engine.step()  # tells the worker about the last ones that ended
        return steps

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the worker, between two steps."""
        return self.engine.collective_rpc(method, args=arguments)[0]

    def swap(self, version: DraftVersion) -> None:
        """Read a version beside serving and make it live, as the control route does."""
        self.stage(version)
        self.go_live(version)

    def stage(self, version: DraftVersion) -> None:
        """Read and check a version."""
        self.call("aurora_stage", version.version, version.checksum)
        while (staged := self.call("aurora_staged", version.version))["state"] == "loading":
            time.sleep(0.01)
        if staged["state"] != "ready":
            raise RuntimeError(staged["reason"])

    def go_live(self, version: DraftVersion) -> None:
        """Make a staged version live."""
        receipt = self.call("aurora_swap", version.version)
        if "refused" in receipt:
            raise RuntimeError(receipt["refused"])

    def statistics(self, after: int = -1) -> list[RequestStats]:
        """Return what the recorder counted for each request that ended."""
        return [from_dict(RequestStats, one) for one in self.call("aurora_finished", after)]

    def prompts(self, number: int, *, before: str = "", seed: int = 0) -> list[list[int]]:
        """Return prompts of the built-in traffic as tokens.

        Args:
            number: of them.
            before: a system prompt that all of them share.
            seed: of the generator.
        """
        tokenizer = self.engine.get_tokenizer()
        system = [{"role": "system", "content": before}] if before else []
        return [
            list(
                tokenizer.apply_chat_template(  # type: ignore[arg-type] # a list of numbers
                    [*system, {"role": "user", "content": prompt.text}],  # type: ignore[list-item] # plain dicts
                    add_generation_prompt=True,
                    return_dict=False,
                )
            )
            for prompt in generate(["sql"], seed=seed, split="holdout", num_prompts=number)
        ]
