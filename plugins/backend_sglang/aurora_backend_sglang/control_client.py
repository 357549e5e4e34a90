"""The controller's end of SGLang's own routes, Aurora's section in them included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
from pydantic import ValidationError

from aurora_backend_sglang.engine.status import (
    CHECK_TARGET,
    PROTOCOL,
    REQUESTS_AFTER,
    SECTION,
    WITHOUT_DRAFTER,
    EngineReport,
    TargetState,
)
from aurora_core.engine_process.engine_client import EngineClient, NoAnswer
from aurora_core.errors import BackendError
from aurora_core.wire import from_dict

_LONGEST_PAUSE_S = 0.5
"""Between two questions whether something has been done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReceipt:
    """What the engine says about a drafter it has loaded."""

    version: int
    checksum: str
    load_ms: float
    stall_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What `/server_info` says, as far as Aurora asks."""

    version: str
    """Of SGLang."""
    eagle_topk: int
    report: EngineReport


class ControlClient(EngineClient):
    """Calls one server."""

    def __init__(self, url: str, token: str, *, timeout_s: float) -> None:
        """See `EngineClient` for the arguments."""
        super().__init__(url, token, name="SGLang", timeout_s=timeout_s)

    async def info(self) -> ServerInfo:
        """Return the server's description of itself and of Aurora's half.

        Raises:
            NoAnswer: the connection failed or took too long.
            BackendError: it runs without Aurora's half, or with one of another version.
        """
        plain = (await self._ask("GET", "/server_info")).json()
        section = (plain.get("internal_states") or [{}])[0].get(SECTION)
        if section is None:
            raise BackendError(
                f"the server at {self.url} runs without Aurora's recorder: either it was started "
                "without AURORA_SGLANG_SETTINGS, or aurora-backend-sglang is not installed beside "
                "SGLang, or its log says why the plugin failed; start it as `aurora "
                "sglang-command` prints it"
            )
        if section.get("protocol") != PROTOCOL:
            raise BackendError(
                f"Aurora's half in the server at {self.url} speaks protocol "
                f"{section.get('protocol')!r}, and this one {PROTOCOL}; install the same version "
                "of aurora-backend-sglang in both environments"
            )
        try:
            report = from_dict(EngineReport, section)
        except ValidationError as error:
            raise BackendError(
                f"Aurora's half in the server at {self.url} answers what this version does not "
                f"understand ({error.errors()[0]['loc']}); install the same version of "
                "aurora-backend-sglang in both environments"
            ) from error
        if report.missing_hooks:
            raise BackendError(
                f"SGLang {plain.get('version')} at {self.url} has no "
                f"{', '.join(report.missing_hooks)}, where Aurora's recorder looks; install "
                "SGLang 0.5.23"
            )
        return ServerInfo(
            version=str(plain.get("version", "")),
            eagle_topk=int(plain.get("speculative_eagle_topk") or 0),
            report=report,
        )

    async def check_guarded(self) -> None:
        """See that the control routes refuse whoever has no token.

        Raises:
            BackendError: they do not.
        """
        body: dict[str, Any] = {"server_args": {}}
        headers = {"Authorization": ""}
        answer = await self.request("POST", "/set_internal_state", json=body, headers=headers)
        if answer.status_code not in (401, 403):
            raise BackendError(
                f"the control routes of the server at {self.url} are open to anyone: Aurora's "
                "plugin is not in place in its HTTP server, whose log says why"
            )

    async def report(self, *, after: int | None = None) -> EngineReport:
        """Return Aurora's section.

        Args:
            after: number of the last finished request that is known; None leaves it as it was.
        """
        if after is not None:
            await self._set({REQUESTS_AFTER: max(after, 0)})
        return (await self.info()).report

    async def let_go_of_drafter(self) -> None:
        """Switch speculation off; requests that run go on without."""
        await self._set({WITHOUT_DRAFTER: 1})

    async def pause(self, mode: str) -> None:
        """Stop decoding; requests that come wait."""
        await self._ask("POST", "/pause_generation", json={"mode": mode})

    async def resume(self) -> None:
        """Go on decoding."""
        await self._ask("POST", "/continue_generation", json={})

    async def begin_update(self) -> None:
        """Open a session that changes the drafter alone."""
        try:
            await self._ask("POST", "/begin_weight_update", json={"selector": "draft"})
        except NoAnswer:
            raise
        except BackendError:
            # One may be open still, from a swap whose last answer was lost.
            await self.end_update()
            await self._ask("POST", "/begin_weight_update", json={"selector": "draft"})

    async def load_version(self, version: int, checksum: str, *, flush_cache: bool) -> LoadReceipt:
        """Have a version loaded within a session.

        Raises:
            BackendError: refused; the drafter before it is in place.
        """
        body = {
            "serialized_named_tensors": [],
            "load_format": f"aurora:{version}:{checksum}",
            "selector": "draft",
            "flush_cache": flush_cache,
            "weight_version": f"aurora-{version}",
        }
        answer = await self._ask("POST", "/update_weights_from_tensor", json=body)
        message = str(answer.json().get("message", ""))
        try:
            # SGLang adds a sentence of its own behind it.
            plain, _ = json.JSONDecoder().raw_decode(message)
            return from_dict(LoadReceipt, plain)
        except (ValueError, ValidationError) as error:
            raise BackendError(
                f"the server at {self.url} took version {version} for something else "
                f"({message[:120]!r}): it runs without Aurora's half"
            ) from error

    async def end_update(self) -> None:
        """Close the session."""
        await self._ask("POST", "/end_weight_update", json={})

    async def target_checksums(self) -> Mapping[str, str]:
        """Return name -> checksum of every tensor of the target; decoding waits meanwhile."""
        answer = await self._ask(
            "POST", "/weights_checker", json={"action": "checksum", "selector": "target"}
        )
        ranks = answer.json().get("ranks") or []
        return {
            f"{rank}/{name}" if len(ranks) > 1 else name: checksum
            for rank, found in enumerate(ranks)
            for name, checksum in found["checksums"].items()
        }

    async def check_target(self) -> TargetState:
        """Have the target's weights hashed while the engine decodes; return what was found.

        Raises:
            NoAnswer: the engine does not answer any more.
            BackendError: they could not be hashed.
        """
        await self._set({CHECK_TARGET: 1})
        state = first = (await self.info()).report.target
        pause_s = 0.02
        while state.num_done < first.num_asked:
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            state = (await self.info()).report.target
        if state.failure:
            raise BackendError(
                f"the weights of the target at {self.url} could not be compared with what they "
                f"were ({state.failure}); set `backend.verify_target` to `between_steps`"
            )
        return state

    async def _set(self, values: Mapping[str, int]) -> None:
        answer = await self._ask("POST", "/set_internal_state", json={"server_args": dict(values)})
        if answer.json() != [True]:
            raise BackendError(
                f"the server at {self.url} does not know {', '.join(values)}: it runs without "
                "Aurora's recorder"
            )

    async def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        answer = await self.request(method, path, **arguments)
        if answer.is_error:
            raise BackendError(_sentence(answer))
        return answer


def _sentence(answer: httpx.Response) -> str:
    """Return the message of an error response."""
    if answer.status_code in (401, 403):
        return (
            f"SGLang refuses {answer.request.url.path}: the token is not this server's; set "
            "`backend.token` to its AURORA_CONTROL_TOKEN"
        )
    try:
        plain = answer.json()
        message = plain.get("message") or plain["error"]["message"]
        return str(message)
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"SGLang answered {answer.request.url.path} with status {answer.status_code}"
