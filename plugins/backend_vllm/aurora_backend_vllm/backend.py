"""vLLM seen from the controller: launched in an environment of its own, or attached to."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from aurora_backend_vllm.config import VllmBackendOptions
from aurora_backend_vllm.control_client import ControlClient
from aurora_backend_vllm.counters import SpeculationCounters, read_counters
from aurora_backend_vllm.engine.settings import EngineSettings
from aurora_backend_vllm.environment import examine, read_environment
from aurora_backend_vllm.server_command import (
    engine_settings,
    fits_single_process,
    server_command,
    server_environment,
)
from aurora_core.engine_process.engine_client import NoAnswer
from aurora_core.engine_process.placeholder import make_placeholder
from aurora_core.engine_process.ports import free_port
from aurora_core.engine_process.restarts import RequestNumbers, version_in_force
from aurora_core.engine_process.server import ServerProcess
from aurora_core.engine_process.supervisor import EngineSupervisor
from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend, Options, ServePlan
from aurora_core.records import (
    BackendStatus,
    DraftVersion,
    Provides,
    RequestStats,
    SwapReceipt,
)
from aurora_core.wire import from_dict

logger = logging.getLogger(__name__)

FORMATS = frozenset({"eagle3", "eagle1", "medusa"})
_SWAP_TIMEOUT_S = 360.0
"""A swap reads and checks a checkpoint first, perhaps from a slow disk."""


class VllmBackend(Backend):
    """Launches or attaches to an OpenAI-compatible vLLM server with Aurora's half in it."""

    Config: ClassVar[type[Options]] = VllmBackendOptions
    options: VllmBackendOptions

    def __init__(self, options: VllmBackendOptions) -> None:
        super().__init__(options)
        self._token = secrets.token_urlsafe(32)
        if options.token is not None:
            self._token = options.token.get_secret_value()
        self._url: str | None = None
        self._plan: ServePlan | None = None
        self._live: DraftVersion | None = None
        self._supervisor: EngineSupervisor | None = None
        self._client: ControlClient | None = None
        self._numbers = RequestNumbers()

    @property
    def provides(self) -> Provides:
        """Return what stock vLLM with Aurora's half can do."""
        return Provides(
            features=frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"}),
            branch_rows=True,
            topologies=frozenset({"chain"}),
            formats=FORMATS,
            hot_swap="live",
            verification_rules=frozenset({"greedy", "point_mass"}),
            num_resident_drafters=1,
            request_routing=True,
        )

    @property
    def url(self) -> str:
        """Return the server's address; known once it is started."""
        if self._url is None:
            raise BackendError("vLLM has no address before it is started")
        return self._url

    def check(self) -> None:
        """See that a server could be launched: its environment and its address.

        A server to attach to is left alone.

        Raises:
            BackendError: it could not.
        """
        if self.options.url is None:
            examine(self.options.python.absolute())
            free_port(self.options.host, self.options.port)

    async def start(self, plan: ServePlan) -> None:
        """Launch the server, or attach to it; return once it answers.

        Raises:
            BackendError: its environment does not fit, it does not come up, or it runs without
                Aurora's half or for another run.
        """
        self._plan, self._live = plan, plan.initial_version
        try:
            if self.options.url is not None:
                await self._attach(self.options.url.rstrip("/").removesuffix("/v1"), plan)
            else:
                await self._launch_first()
        except BaseException:
            await self.stop()
            raise

    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        """Make a version live between two steps of the engine, or switch speculation off.

        Raises:
            BackendError: refused, or the engine loaded other weights; the previous drafter serves.
        """
        body = {
            "version": None if version is None else version.version,
            "checksum": "" if version is None else version.checksum,
        }
        answer = await self._call("POST", "/aurora/swap", json=body, timeout=_SWAP_TIMEOUT_S)
        receipt = from_dict(SwapReceipt, answer)
        if version is not None and receipt.checksum != version.checksum:
            raise BackendError(
                f"vLLM reports checksum {receipt.checksum[:12]!r} for version {version.version}, "
                f"which was published with {version.checksum[:12]!r}"
            )
        self._live = version
        return receipt

    async def status(self) -> BackendStatus:
        """Return the live version, its checksum and the load, read from the engine."""
        answer = await self._call("GET", "/aurora/status")
        status = from_dict(BackendStatus, answer["status"])
        if self._plan is not None:
            versions_dir = self._plan.versions_dir
            self._live = version_in_force(self._live, status.live_version, versions_dir)
        return status

    async def recorder_figures(self) -> dict[str, Any]:
        """Return what recording cost so far: `num_steps`, `step_s`, `recording_s`, `left_out`."""
        answer: dict[str, Any] = (await self._call("GET", "/aurora/status"))["recorder"]
        return answer

    async def finished(self, after: int) -> list[RequestStats]:
        """Return requests that finished with `sequence > after`, oldest first.

        Numbers go on rising after a restart; requests that were lost with the engine are not among
        them.
        """
        return await self._numbers.finished(after, self._engine_finished)

    async def _engine_finished(self, after: int) -> list[RequestStats]:
        answer = await self._call("GET", "/aurora/requests", params={"after": after})
        return [from_dict(RequestStats, stats) for stats in answer]

    async def counters(self) -> SpeculationCounters:
        """Return vLLM's own counters of speculation since it was started."""
        if self._client is None:
            raise BackendError("vLLM is not running")
        return read_counters(await self._client.metrics())

    async def stop(self) -> None:
        """End a server that was launched, let go of one that was attached to. Callable twice."""
        supervisor, self._supervisor = self._supervisor, None
        client, self._client = self._client, None
        try:
            if supervisor is not None:
                await supervisor.stop()
        finally:
            if client is not None:
                await client.close()

    async def _launch_first(self) -> None:
        supervisor = EngineSupervisor(
            self._launch, max_restarts=self.options.max_restarts, on_end=self._note_end
        )
        self._supervisor = supervisor
        await supervisor.start()

    async def _launch(self) -> ServerProcess:
        """Start the server with the live drafter, or with a placeholder that it does not use."""
        assert self._plan is not None
        plan, options = replace(self._plan, initial_version=self._live), self.options
        # Not resolved: what a virtual environment is shows in the path of its interpreter alone.
        environment = await read_environment(options.python.absolute())
        run_dir = Path(plan.run_dir).absolute()
        drafter = await self._drafter(plan, run_dir)
        port = free_port(options.host, options.port)
        self._url = f"http://{options.host}:{port}"
        await self._replace_client()
        server = await ServerProcess.launch(
            server_command(
                plan,
                options,
                drafter=drafter,
                port=port,
                python=environment.python,
                single_process=fits_single_process(options, environment),
            ),
            name="vLLM",
            environment=server_environment(options, environment, self._token),
            log_path=run_dir / "logs" / "engine.log",
            grace_s=options.stop_timeout_s,
        )
        assert self._client is not None
        try:
            await server.wait_healthy(self._client.answers, options.start_timeout_s)
            await self._client.call("GET", "/aurora/status")
        except BaseException:
            await server.end()
            raise
        return server

    async def _drafter(self, plan: ServePlan, run_dir: Path) -> Path:
        if plan.initial_version is not None:
            return Path(plan.initial_version.path)
        return await make_placeholder(plan, run_dir / "engine" / "placeholder")

    async def _attach(self, url: str, plan: ServePlan) -> None:
        self._url = url
        await self._replace_client()
        answer = await self._call("GET", "/aurora/status")
        running = from_dict(EngineSettings, answer["settings"])
        wanted = engine_settings(plan, self.options)
        for what, has, wants in (
            ("target", running.target.fingerprint, wanted.target.fingerprint),
            ("folder of versions", running.versions_dir, wanted.versions_dir),
            ("layers to record", running.needs.aux_layers, wanted.needs.aux_layers),
            ("trace sink", running.sink, wanted.sink),
            ("options of the trace sink", running.sink_options, wanted.sink_options),
        ):
            if has != wants:
                raise BackendError(
                    f"the server at {url} was started for another run: its {what} is {has!r}, "
                    f"expected {wants!r}; start it as `aurora vllm-command` prints it"
                )
        # Requests of before are not this run's.
        self._numbers.leave_out(await self._engine_finished(0))
        status = from_dict(BackendStatus, answer["status"])
        live = plan.initial_version
        if live is None and status.live_version >= 0:
            await self.swap(None)
        elif live is not None and status.live_version != live.version:
            await self.swap(live)

    async def _replace_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        self._client = ControlClient(
            self.url, self._token, timeout_s=self.options.control_timeout_s
        )

    def _note_end(self, reason: str) -> None:
        self._numbers.engine_ended()
        logger.warning("%s; it is started again with the live drafter", reason)

    async def _call(self, method: str, path: str, **arguments: Any) -> Any:
        supervisor = self._supervisor
        if supervisor is not None:
            await supervisor.ready()
        if self._client is None:
            raise BackendError("vLLM is not running")
        try:
            return await self._client.call(method, path, **arguments)
        except NoAnswer:
            # An engine that has just died is being started again: whoever only asks may wait.
            if supervisor is None or method != "GET" or not await supervisor.noticed_end():
                raise
        await supervisor.ready()
        return await self._client.call(method, path, **arguments)
