"""The embedded engine seen from the controller. Imports no torch."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import httpx

from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.device import check_device
from aurora_backend_torch.engine_process import EngineProcess
from aurora_backend_torch.launch import TOKEN_VARIABLE, EngineLaunch, write_launch
from aurora_core.engine_process.engine_client import KEEPALIVE_S
from aurora_core.engine_process.ports import bind
from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend, Options, ServePlan
from aurora_core.lineage_view import LineageView
from aurora_core.records import (
    BackendStatus,
    DraftVersion,
    Provides,
    RequestStats,
    Route,
    SwapReceipt,
)
from aurora_core.wire import from_dict

_CONTROL_TIMEOUT_S = 30.0
_SWAP_TIMEOUT_S = 300.0
"""A swap reads and checks a checkpoint first, perhaps from a slow disk."""


class TorchBackend(Backend):
    """Launches our own torch process and talks to it over loopback HTTP."""

    Config: ClassVar[type[Options]] = TorchBackendOptions
    options: TorchBackendOptions

    def __init__(self, options: TorchBackendOptions) -> None:
        super().__init__(options)
        self._token = secrets.token_urlsafe(32)
        self._process: EngineProcess | None = None
        self._client: httpx.AsyncClient | None = None
        self._url: str | None = None

    @property
    def provides(self) -> Provides:
        """Return what the embedded engine can do."""
        return Provides(
            features=frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"}),
            branch_rows=True,
            topologies=frozenset({"chain", "tree"}),
            formats=frozenset({"module"}),
            hot_swap="live",
            verification_rules=frozenset(
                {"greedy", "rejection" if self.options.sample_drafts else "point_mass"}
            ),
            num_resident_drafters=self.options.num_resident_drafters,
            request_routing=True,
            holds_lineages=True,
            shadow_drafting=True,
        )

    @property
    def url(self) -> str:
        """Return the engine's address; known once it is started."""
        if self._url is None:
            raise BackendError("the engine has no address before it is started")
        return self._url

    def check(self) -> None:
        """See that there are the device and the address that the options name.

        Raises:
            BackendError: there are not.
        """
        bind(self.options.host, self.options.port).close()
        check_device(self.options.device)

    async def start(self, plan: ServePlan) -> None:
        """Launch the engine and return once it answers.

        Raises:
            BackendError: it does not come up; the message is the engine's own where it gave one.
        """
        run_dir = Path(plan.run_dir)
        plan_path = run_dir / "engine" / "plan.json"
        write_launch(EngineLaunch(plan=plan, options=self.options), plan_path)
        self._process = await EngineProcess.launch(
            [sys.executable, "-m", "aurora_backend_torch", str(plan_path)],
            environment=self._environment(),
            log_path=run_dir / "logs" / "engine.log",
        )
        try:
            self._url = await self._process.wait_ready(self.options.start_timeout_s)
        except BaseException:
            await self.stop()
            raise
        self._client = httpx.AsyncClient(
            base_url=self._url,
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=_CONTROL_TIMEOUT_S,
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
            trust_env=False,  # a proxy has no business between two processes of one machine
        )

    def lineage(self, name: str) -> Backend:
        """Return the engine as one lineage sees it."""
        return LineageView(self, name)

    async def swap(self, version: DraftVersion | None, *, lineage: str = "") -> SwapReceipt:
        """Make a version live between two decoding steps, or switch speculation off.

        Raises:
            BackendError: refused, or the engine loaded other weights; the previous drafter serves.
        """
        body = {
            "version": None if version is None else version.version,
            "checksum": "" if version is None else version.checksum,
            "lineage": lineage,
        }
        answer = await self._call("POST", "/aurora/swap", json=body, timeout=_SWAP_TIMEOUT_S)
        receipt = from_dict(SwapReceipt, answer)
        if version is not None and receipt.checksum != version.checksum:
            raise BackendError(
                f"the engine reports checksum {receipt.checksum[:12]!r} for version "
                f"{version.version}, which was published with {version.checksum[:12]!r}"
            )
        return receipt

    async def route(self, routes: Sequence[Route], *, lineage: str = "") -> None:
        """Give shares of the requests to other drafters, or to none.

        Raises:
            BackendError: a version cannot be loaded; the routes before stay.
        """
        body = [
            {
                "version": None if route.draft is None else route.draft.version,
                "checksum": "" if route.draft is None else route.draft.checksum,
                "share": route.share,
                "shadow": route.shadow,
            }
            for route in routes
        ]
        await self._call(
            "POST",
            "/aurora/routing",
            json={"routes": body, "lineage": lineage},
            timeout=_SWAP_TIMEOUT_S,
        )

    async def status(self, *, lineage: str = "") -> BackendStatus:
        """Return a lineage's live version and its checksum, and the load, read from the engine."""
        answer = await self._call("GET", "/aurora/status", params={"lineage": lineage})
        return from_dict(BackendStatus, answer)

    async def finished(self, after: int) -> list[RequestStats]:
        """Return requests that finished with `sequence > after`, oldest first."""
        answer = await self._call("GET", "/aurora/requests", params={"after": after})
        return [from_dict(RequestStats, stats) for stats in answer]

    async def load_resident(self, version: int) -> None:
        """Load a drafter beside the live one, for requests that name it.

        Raises:
            BackendError: refused, for example because no more fit.
        """
        await self._call(
            "POST", "/aurora/drafters", json={"version": version}, timeout=_SWAP_TIMEOUT_S
        )

    async def unload_resident(self, version: int) -> None:
        """Drop a drafter that is not live."""
        await self._call("DELETE", f"/aurora/drafters/{version}")

    async def stop(self) -> None:
        """End the engine: close its stdin, then SIGTERM, then SIGKILL. Callable twice."""
        client, self._client = self._client, None
        process, self._process = self._process, None
        try:
            if process is not None:
                await process.end(self.options.stop_timeout_s)
        finally:
            if client is not None:
                await client.aclose()

    def _environment(self) -> dict[str, str]:
        num_threads = str(self.options.resolved_num_threads())
        names = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "NUMBA")
        return {
            **{f"{name}_NUM_THREADS": num_threads for name in names},
            # Threads that spin between two kernels take the learner's cores away.
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
            TOKEN_VARIABLE: self._token,
        }

    async def _call(self, method: str, path: str, **arguments: Any) -> Any:
        if self._client is None or self._process is None:
            raise BackendError("the engine is not running")
        try:
            answer = await self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            if self._process is not None and await self._process.has_ended():
                raise BackendError(self._process.describe_end()) from error
            reason = str(error) or type(error).__name__
            raise BackendError(f"the engine does not answer {method} {path}: {reason}") from error
        if answer.is_error:
            raise BackendError(_sentence(answer))
        return answer.json()


def _sentence(answer: httpx.Response) -> str:
    """Return the message of an error response."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the engine answered {answer.request.url.path} with status {answer.status_code}"
