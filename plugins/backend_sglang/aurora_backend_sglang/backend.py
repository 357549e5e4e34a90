"""SGLang seen from the controller: launched in an environment of its own, or attached to."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.control_client import ControlClient
from aurora_backend_sglang.drafter_session import DrafterSession
from aurora_backend_sglang.engine.status import EngineReport
from aurora_backend_sglang.environment import check_environment, check_version, examine
from aurora_backend_sglang.other_drafters import (
    Algorithm,
    algorithm_of,
    check_nothing_live,
    how_to_go_over,
)
from aurora_backend_sglang.same_run import check_same_run
from aurora_backend_sglang.server_command import server_command, server_environment
from aurora_backend_sglang.start_drafter import check_layers
from aurora_backend_sglang.start_files import write_start_files
from aurora_core.engine_process.engine_client import NoAnswer
from aurora_core.engine_process.ports import free_port
from aurora_core.engine_process.restarts import RequestNumbers, version_in_force
from aurora_core.engine_process.server import ServerProcess
from aurora_core.engine_process.supervisor import EngineSupervisor
from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend, Options, ServePlan
from aurora_core.records import (
    NO_DRAFTER,
    BackendStatus,
    DraftVersion,
    Provides,
    RequestStats,
    SwapReceipt,
)

logger = logging.getLogger(__name__)

FORMATS = frozenset({"eagle3"})


class SglangBackend(Backend):
    """Launches or attaches to a stock SGLang server with Aurora's plugin in it."""

    Config: ClassVar[type[Options]] = SglangBackendOptions
    options: SglangBackendOptions

    def __init__(self, options: SglangBackendOptions) -> None:
        super().__init__(options)
        self._token = secrets.token_urlsafe(32)
        if options.token is not None:
            self._token = options.token.get_secret_value()
        self._url: str | None = None
        self._plan: ServePlan | None = None
        self._live: DraftVersion | None = None
        self._supervisor: EngineSupervisor | None = None
        self._client: ControlClient | None = None
        self._session: DrafterSession | None = None
        self._numbers = RequestNumbers()

    @property
    def provides(self) -> Provides:
        """Return what stock SGLang with Aurora's plugin can do."""
        on_cpu = self.options.device == "cpu"
        takes_plain = self.options.requests_without_drafts == "allow"
        provides = Provides(
            features=frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"}),
            branch_rows=True,
            topologies=frozenset({"chain"} if self.options.eagle_topk == 1 else {"chain", "tree"}),
            formats=FORMATS,
            hot_swap="pause",
            verification_rules=frozenset(
                {"greedy_always"} if on_cpu else {"greedy", "point_mass", "rejection"}
            ),
            num_resident_drafters=1,
            request_routing=self.options.eagle_topk == 1 and takes_plain,
        )
        if self._algorithm == "EAGLE3":
            return provides
        provides = replace(provides, hot_swap="restart", request_routing=False)
        if self._algorithm == "EAGLE":
            return provides
        # SGLang rejects by a draft's probability in its EAGLE family alone.
        rules = provides.verification_rules - {"rejection"}
        return replace(provides, verification_rules=rules)

    @property
    def to_swap(self) -> str:
        """Return how to go over from a drafter of SGLang's own to a version of EAGLE-3."""
        if self._algorithm == "EAGLE3":
            return ""
        return how_to_go_over(self.options.arguments, self._algorithm)

    @property
    def _algorithm(self) -> Algorithm:
        return algorithm_of(self.options.arguments)

    @property
    def url(self) -> str:
        """Return the server's address; known once it is started."""
        if self._url is None:
            raise BackendError("SGLang has no address before it is started")
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
        check_layers(plan)
        check_nothing_live(plan, self.options)
        self._plan, self._live = plan, plan.initial_version
        try:
            if self.options.url is not None:
                await self._attach(self.options.url.rstrip("/").removesuffix("/v1"), plan)
            else:
                self._supervisor = EngineSupervisor(
                    self._launch, max_restarts=self.options.max_restarts, on_end=self._note_end
                )
                await self._supervisor.start()
        except BaseException:
            await self.stop()
            raise

    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        """Make a version live in a pause of the engine, or switch speculation off.

        Raises:
            BackendError: refused, or the engine loaded other weights; the previous drafter serves.
        """
        client, session = await self._running()
        if self._algorithm != "EAGLE3":
            raise BackendError(self.to_swap)
        if version is None:
            await self._switch_off(client)
            self._live = None
            return SwapReceipt(version=NO_DRAFTER, checksum="", load_ms=0.0, stall_ms=0.0)
        receipt, stall_ms = await session.load(version, is_first=self._live is None)
        self._live = version
        return SwapReceipt(
            version=receipt.version,
            checksum=receipt.checksum,
            load_ms=receipt.load_ms,
            stall_ms=stall_ms,
        )

    async def status(self) -> BackendStatus:
        """Return the live version, its checksum and the load, read from the engine."""
        report = await self._report(after=None)
        return BackendStatus(
            live_version=report.live_version,
            checksum=report.checksum,
            num_running=report.num_running,
            num_waiting=report.num_waiting,
            memory_mib=report.memory_mib,
            traces_kept=report.sink.kept,
            traces_shed=sum(report.sink.shed.values()),
        )

    async def finished(self, after: int) -> list[RequestStats]:
        """Return requests that finished with `sequence > after`, oldest first.

        Numbers go on rising after a restart; requests that were lost with the engine are not among
        them.
        """
        return await self._numbers.finished(after, self._engine_finished)

    async def _engine_finished(self, after: int) -> Sequence[RequestStats]:
        return (await self._report(after=after)).finished

    async def report(self) -> EngineReport:
        """Return all that the engine's half says of itself."""
        return await self._report(after=None)

    async def metrics(self) -> str:
        """Return the text of SGLang's own Prometheus endpoint."""
        client, _ = await self._running()
        return await client.metrics()

    async def stop(self) -> None:
        """End a server that was launched, let go of one that was attached to. Callable twice."""
        supervisor, self._supervisor = self._supervisor, None
        client, self._client, self._session = self._client, None, None
        try:
            if supervisor is not None:
                await supervisor.stop()
        finally:
            if client is not None:
                await client.close()

    async def _launch(self) -> ServerProcess:
        """Start the server with the live drafter, or with a placeholder that it does not use."""
        assert self._plan is not None
        plan, options = replace(self._plan, initial_version=self._live), self.options
        # Not resolved: what a virtual environment is shows in the path of its interpreter alone.
        python = options.python.absolute()
        await check_environment(python)
        files = await write_start_files(plan, options)
        port = free_port(options.host, options.port)
        await self._connect(f"http://{options.host}:{port}")
        server = await ServerProcess.launch(
            server_command(plan, options, drafter=files.drafter, port=port, python=python),
            name="SGLang",
            environment=server_environment(
                options, settings_path=files.settings, token=self._token
            ),
            log_path=Path(plan.run_dir).absolute() / "logs" / "engine.log",
            grace_s=options.stop_timeout_s,
        )
        assert self._client is not None and self._session is not None
        try:
            await server.wait_healthy(self._client.answers, options.start_timeout_s)
            check_version((await self._client.info()).version)
            await self._client.check_guarded()
            if self._algorithm == "EAGLE3":
                await self._session.begin()
        except BaseException:
            await server.end()
            raise
        return server

    async def _attach(self, url: str, plan: ServePlan) -> None:
        await self._connect(url)
        assert self._client is not None and self._session is not None
        info = await self._client.info()
        check_version(info.version)
        check_same_run(url, info, plan, self.options)
        await self._client.check_guarded()
        if self._algorithm == "EAGLE3":
            await self._session.begin()
        self._numbers.leave_out((await self._client.report(after=0)).finished)
        live, found = plan.initial_version, info.report.live_version
        if live is None and found != NO_DRAFTER:
            await self.swap(None)
        elif live is not None and found != live.version:
            await self.swap(live)

    async def _switch_off(self, client: ControlClient) -> None:
        if self.options.eagle_topk > 1:
            raise BackendError(
                "SGLang cannot switch speculation off while it drafts trees; set "
                "`backend.eagle_topk` to 1, or start the run again without the drafter"
            )
        await client.let_go_of_drafter()

    async def _connect(self, url: str) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        self._url = url
        self._client = ControlClient(url, self._token, timeout_s=self.options.control_timeout_s)
        self._session = DrafterSession(
            self._client, pause=self.options.pause, verify_target=self.options.verify_target
        )

    def _note_end(self, reason: str) -> None:
        self._numbers.engine_ended()
        logger.warning("%s; it is started again with the live drafter", reason)

    async def _running(self) -> tuple[ControlClient, DrafterSession]:
        if self._supervisor is not None:
            await self._supervisor.ready()
        if self._client is None or self._session is None:
            raise BackendError("SGLang is not running")
        return self._client, self._session

    async def _report(self, *, after: int | None) -> EngineReport:
        client, _ = await self._running()
        try:
            report = await client.report(after=after)
        except NoAnswer:
            # An engine that has just died is being started again: whoever only asks may wait.
            if self._supervisor is None or not await self._supervisor.noticed_end():
                raise
            client, _ = await self._running()
            report = await client.report(after=None)
        if self._plan is not None:
            versions_dir = self._plan.versions_dir
            self._live = version_in_force(self._live, report.live_version, versions_dir)
        return report
