"""A stand-in for an interpreter with SGLang: the same probe, command line, routes and refusals.

    fake_sglang.py -c CODE                          what is installed
    fake_sglang.py -m sglang.launch_server ...      a server over made-up answers

Of checkpoints it looks at the checksum only. Faults are files in the folder FAKE_SGLANG_FAULTS.
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
from pathlib import Path
from typing import Any

import fastapi
from fastapi.responses import JSONResponse, PlainTextResponse

INSTALLED = {
    "sglang": "0.5.23",
    "aurora-core": "0.1.0",
    "aurora-backend-sglang": "0.1.0",
    "missing": [],
}
MODEL = "tiny"
ACCEPTANCE_RATE = 0.6
EMBEDDING = "model.embed_tokens.weight"


def is_faulty(name: str) -> bool:
    """Return whether a fault is switched on."""
    folder = os.environ.get("FAKE_SGLANG_FAULTS")
    return folder is not None and (Path(folder) / name).exists()


class FakeScheduler:
    """What the scheduler knows: weights, a session, and requests that finished."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.live, self.checksum = settings.initial_version, settings.initial_checksum
        self.may_run = asyncio.Event()
        self.may_run.set()
        self.in_session = False
        self.num_checks = self.num_checks_done = 0
        self.first_checksum = self.target_checksum()
        self.acknowledged = 0
        self.requests: list[dict[str, Any]] = []
        self.calls: list[str] = []

    def report(self) -> dict[str, Any]:
        from aurora_backend_sglang.engine.status import PROTOCOL

        settings = self.settings
        return {
            "protocol": PROTOCOL + 1 if is_faulty("other_protocol") else PROTOCOL,
            "missing_hooks": ["sglang.srt.moved"] if is_faulty("missing_hook") else [],
            "target_fingerprint": settings.target.fingerprint,
            "versions_dir": settings.versions_dir,
            "aux_layers": list(settings.needs.aux_layers),
            "num_speculative_tokens": settings.num_speculative_tokens,
            "requests_without_drafts": settings.requests_without_drafts,
            "live_version": self.live,
            "checksum": self.checksum,
            "verification_rule": "greedy_always",
            "algorithm": settings.algorithm,
            "num_faults": 0,
            "last_fault": "",
            "num_running": 0,
            "num_waiting": 0,
            "memory_mib": 64.0,
            "sink": {"num_traces": 3, "num_bytes": 9, "kept": 3, "shed": {"queue": 2}},
            "target": self.target_state(),
            "finished": [one for one in self.requests if one["sequence"] > self.acknowledged],
        }

    def load(self, reference: str, selector: str) -> tuple[bool, str]:
        from aurora_backend_sglang.engine.drafter_swap import LOAD_FORMAT

        if not self.in_session:
            return False, "update_weights_from_tensor must run between begin and end"
        assert not self.may_run.is_set(), "a running server would wait for all of its requests"
        assert selector == "draft"
        named = LOAD_FORMAT.fullmatch(reference)
        assert named is not None
        weights = Path(self.settings.versions_dir) / f"v{int(named[1]):06d}" / "model.safetensors"
        try:
            found = hashlib.sha256(weights.read_bytes()).hexdigest()
        except OSError as error:
            return False, f"version {named[1]} cannot be read: {error.strerror}"
        if found != named[2]:
            return False, f"version {named[1]} was announced with checksum {named[2][:12]!r}"
        self.live, self.checksum = int(named[1]), found
        if is_faulty("other_weights"):
            self.checksum = "0" * 64
        receipt = {
            "version": self.live,
            "checksum": self.checksum,
            "load_ms": 1.5,
            "stall_ms": 2.5,
        }
        return True, f"{json.dumps(receipt)} Weight version updated to aurora-{self.live}."

    def target_state(self) -> dict[str, Any]:
        """Say how far hashing the target has come; it takes until somebody asks twice."""
        if is_faulty("not_hashed_aside"):
            return {"possible": False}
        changed = [EMBEDDING] if self.target_checksum() != self.first_checksum else []
        done, self.num_checks_done = self.num_checks_done, self.num_checks
        return {
            "possible": True,
            "num_asked": self.num_checks,
            "num_done": done,
            "num_changed": len(changed),
            "changed": changed,
            "failure": "ValueError: unreadable" if is_faulty("hashing_fails") else "",
        }

    def target_checksum(self) -> str:
        return self.checksum if is_faulty("target_changes") else "unchanged"

    async def answer(self, body: dict[str, Any], prompt: str) -> Any:
        """Answer one request, as `aurora_core.testing.fake_openai` asks for it."""
        from aurora_core.records import NO_DRAFTER
        from aurora_core.testing.fake_openai import Answer
        from aurora_core.testing.simulated_request import simulate_request
        from aurora_core.wire import to_dict

        await self.may_run.wait()
        wishes = (body.get("custom_params") or {}).get("aurora") or {}
        may = self.settings.requests_without_drafts == "allow"
        is_plain = may and wishes.get("drafter") == "none"
        request = simulate_request(
            body,
            prompt,
            version=NO_DRAFTER if is_plain else self.live,
            depth=self.settings.num_speculative_tokens,
            rate=ACCEPTANCE_RATE,
        )
        stats = request.statistics(
            sequence=len(self.requests) + 1,
            request_id=uuid.uuid4().hex,
            finished=time.time(),
            num_prompt_tokens=len(prompt.encode()),
            ttft_s=0.1,
            decode_s=0.1,
        )
        self.requests.append(to_dict(stats))
        return Answer(token_ids=request.token_ids, created=int(time.time()), stats=stats)


class Stock:
    """A server without Aurora's half; what it answers does not matter."""

    async def answer(self, body: dict[str, Any], prompt: str) -> Any:
        raise NotImplementedError


def application(scheduler: FakeScheduler | None, *, token: str = "") -> Any:
    """Return SGLang's routes; without a scheduler the server knows nothing of Aurora."""
    from aurora_core.testing.fake_openai import openai_application

    app = openai_application(scheduler or Stock(), model=MODEL, closing=lambda answer: {})
    if scheduler is not None:
        from aurora_backend_sglang.engine.answer_statistics import AnswerStatistics
        from aurora_backend_sglang.engine.request_fields import RequestFields, refusal_of_plain

        policy = scheduler.settings.requests_without_drafts
        refusal = refusal_of_plain(policy, drafts_chains=scheduler.settings.drafts_chains)
        app.add_middleware(RequestFields, statistics=AnswerStatistics(), refusal=refusal)

    def control(path: str) -> Any:
        async def check(request: fastapi.Request) -> None:
            if (
                token
                and not is_faulty("open_to_anyone")
                and request.headers.get("Authorization") != f"Bearer {token}"
            ):
                raise fastapi.HTTPException(401)
            if scheduler is not None:
                scheduler.calls.append(path.strip("/"))

        return app.post(path, dependencies=[fastapi.Depends(check)])

    def answer(success: bool, message: str = "Success") -> JSONResponse:
        body = {"success": success, "message": message}
        return JSONResponse(body, status_code=200 if success else 400)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse('sglang:spec_verify_calls_total{model_name="tiny"} 2.0\n')

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        state = {} if scheduler is None else {"aurora": scheduler.report()}
        version = "0.5.9" if is_faulty("other_version") else "0.5.23"
        return {"version": version, "speculative_eagle_topk": 1, "internal_states": [state]}

    @control("/set_internal_state")
    async def set_internal_state(body: dict[str, Any]) -> list[bool]:
        values = body["server_args"]
        if scheduler is None:
            return [False]
        if "aurora_requests_after" in values:
            scheduler.acknowledged = values["aurora_requests_after"]
        scheduler.num_checks += int(values.get("aurora_check_target", 0))
        if values.get("aurora_without_drafter"):
            scheduler.live, scheduler.checksum = -1, ""
        return [True]

    @control("/pause_generation")
    async def pause_generation(body: dict[str, Any]) -> dict[str, str]:
        assert scheduler is not None and body["mode"] in ("in_place", "retract")
        scheduler.may_run.clear()
        scheduler.calls.append(body["mode"])
        return {"status": "ok"}

    @control("/continue_generation")
    async def continue_generation() -> dict[str, str]:
        assert scheduler is not None
        scheduler.may_run.set()
        return {"status": "ok"}

    @control("/begin_weight_update")
    async def begin_weight_update(body: dict[str, Any]) -> JSONResponse:
        assert scheduler is not None and body["selector"] == "draft"
        if scheduler.in_session or is_faulty("session_open"):
            return answer(False, "a weight-update session is already open")
        scheduler.in_session = True
        return answer(True)

    @control("/update_weights_from_tensor")
    async def update_weights_from_tensor(body: dict[str, Any]) -> JSONResponse:
        assert scheduler is not None
        result = scheduler.load(body["load_format"], body["selector"])
        if is_faulty("slow_swap"):
            await asyncio.sleep(8)
        return answer(*result)

    @control("/end_weight_update")
    async def end_weight_update() -> JSONResponse:
        assert scheduler is not None
        scheduler.in_session = False
        return answer(True)

    @control("/weights_checker")
    async def weights_checker(body: dict[str, Any]) -> dict[str, Any]:
        assert scheduler is not None and body == {"action": "checksum", "selector": "target"}
        return {"ranks": [{"checksums": {EMBEDDING: scheduler.target_checksum()}}]}

    @app.post("/fake/crash")
    async def crash() -> None:
        os._exit(7)

    @app.get("/fake/calls")
    async def calls() -> list[str]:
        return [] if scheduler is None else scheduler.calls

    return app


def serve(arguments: list[str]) -> None:
    """Run the server that the command line asks for."""
    import uvicorn

    from aurora_backend_sglang.engine.settings import TOKEN_VARIABLE, find_settings

    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    known, _ = parser.parse_known_args(arguments)
    settings = find_settings()
    scheduler = None
    if settings is not None and not is_faulty("without_half"):
        scheduler = FakeScheduler(settings)
    app = application(scheduler, token=os.environ.get(TOKEN_VARIABLE, ""))
    uvicorn.run(app, host=known.host, port=known.port, log_level="warning")


def main(arguments: list[str]) -> None:
    """Behave as the interpreter of an environment with SGLang."""
    if arguments[0] == "-c":
        print(os.environ.get("FAKE_SGLANG_INSTALLED", json.dumps(INSTALLED)))
    elif is_faulty("dies_at_start"):
        sys.exit("RuntimeError: out of memory")
    else:
        assert arguments[:2] == ["-m", "sglang.launch_server"]
        serve(arguments[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
