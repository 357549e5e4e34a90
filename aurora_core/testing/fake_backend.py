"""A serving engine without a model: the real `Backend` contract, in process and in milliseconds.

    client --HTTP--> FastAPI on a free loopback port --> simulated decoding --> RequestStats
                                                              ^
    controller: start, swap, status, finished, stop ----------+

The text of an answer is a function of the prompt alone, as losslessness demands; only the number
of verification steps depends on the drafter. Better versions accept more, so a run on this engine
shows the whole loop at work: acceptance rises with every swap. Weights that say that they are noise
accept nothing. Time is simulated: a verification step lasts `step_ms`, and `draft_ms` more with
drafts.

Failures on purpose: swaps that are refused, a drafter or an engine that dies, versions that change
the output.
Needs no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import Field

from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend, Options, ServePlan
from aurora_core.lineage_view import LineageView
from aurora_core.lineages import choose_lineage, internal_name
from aurora_core.records import (
    NO_DRAFTER,
    BackendStatus,
    DraftVersion,
    Provides,
    RequestStats,
    Route,
    ShadowStats,
    SwapReceipt,
)
from aurora_core.testing.fake_openai import Answer, openai_application
from aurora_core.testing.simulated_request import (
    draw,
    per_position,
    simulate_request,
    simulate_steps,
)

NOISE = b"noise"
"""Weights that begin so accept nothing, or the share that follows, whatever their number."""


class FakeBackendOptions(Options):
    """How the simulated engine behaves, and where it fails."""

    port: int = Field(0, ge=0, le=65535, description="0 takes a free port.")
    step_ms: float = Field(0.2, ge=0, description="Simulated time of one verification step.")
    draft_ms: float = Field(0.0, ge=0, description="Additional time of a step with drafts.")
    max_answer_tokens: int = Field(24, gt=0, description="Longest answer the target would give.")
    acceptance_per_version: float = Field(
        0.25, ge=0, description="Acceptance rate that one version number adds, up to 0.95."
    )
    wait_for_swaps: dict[int, int] = Field(
        {},
        description="Requests -> attempted swaps before which no further one is answered; "
        "makes a run the same however fast its learner is.",
    )
    wait_for_lineages: dict[int, tuple[str, ...]] = Field(
        {},
        description="Requests -> lineages that must have swapped before a further one is "
        "answered; the default one's name is empty.",
    )
    fail_swaps_to: tuple[int, ...] = Field((), description="Versions the engine refuses to load.")
    fail_swap_attempts: tuple[int, ...] = Field(
        (), description="Swaps that fail, counted from 1, whatever the version."
    )
    lossy_versions: tuple[int, ...] = Field((), description="Versions that change the output.")
    drop_drafter_after_requests: int | None = Field(
        None, gt=0, description="Requests before the live drafter fails and is let go of."
    )
    die_after_requests: int | None = Field(None, gt=0, description="Requests before it dies.")


class FakeBackend(Backend):
    """Answers OpenAI requests with made-up text; acceptance depends on the live version."""

    Config = FakeBackendOptions
    options: FakeBackendOptions

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.started_with: ServePlan | None = None
        self.receipts: list[SwapReceipt] = []
        self.num_swap_attempts = 0
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._plan: ServePlan | None = None
        self._url = ""
        self._live_of: dict[str, DraftVersion | None] = {}
        self._noise: dict[tuple[str, int], float] = {}
        self._swapped: set[str] = set()
        self._routes_of: dict[str, tuple[Route, ...]] = {}
        self._requests: list[RequestStats] = []
        self._running = 0
        self._failure = ""

    @property
    def provides(self) -> Provides:
        return Provides(
            features=frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"}),
            branch_rows=True,
            topologies=frozenset({"chain", "tree"}),
            formats=frozenset({"module"}),
            hot_swap="live",
            verification_rules=frozenset({"greedy", "point_mass"}),
            num_resident_drafters=2,
            request_routing=True,
            holds_lineages=True,
            shadow_drafting=True,
        )

    @property
    def url(self) -> str:
        if not self._url:
            raise BackendError("the fake engine has no address before it is started")
        return self._url

    async def start(self, plan: ServePlan) -> None:
        self._plan = self.started_with = plan
        self._live_of = {"": plan.initial_version}
        self._live_of |= {one.rule.name: one.initial_version for one in plan.lineages}
        for lineage, version in self._live_of.items():
            if version is not None and _weights_of(version).is_file():
                self._look_for_noise(_weights_of(version).read_bytes(), version, lineage)
        self._failure = ""
        config = uvicorn.Config(
            openai_application(self),
            host="127.0.0.1",
            port=self.options.port,
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        try:
            listener = config.bind_socket()
        except SystemExit as error:  # uvicorn's answer to a port that is taken
            raise BackendError(
                f"port {self.options.port} on 127.0.0.1 is in use; choose another backend.port"
            ) from error
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))
        while not self._server.started:
            await asyncio.sleep(0.005)

    def lineage(self, name: str) -> Backend:
        return LineageView(self, name)

    async def swap(self, version: DraftVersion | None, *, lineage: str = "") -> SwapReceipt:
        self._check_alive()
        self.num_swap_attempts += 1
        if self.num_swap_attempts in self.options.fail_swap_attempts:
            raise BackendError(f"the engine refused swap {self.num_swap_attempts}, as configured")
        if version is not None:
            self._load(version, lineage)
        self._live_of[lineage] = version
        self._swapped.add(lineage)
        receipt = SwapReceipt(
            version=NO_DRAFTER if version is None else version.version,
            checksum="" if version is None else version.checksum,
            load_ms=1.0,
            stall_ms=self.options.step_ms,
        )
        self.receipts.append(receipt)
        return receipt

    async def route(self, routes: Sequence[Route], *, lineage: str = "") -> None:
        self._check_alive()
        for route in routes:
            if route.draft is not None:
                self._load(route.draft, lineage)
        self._routes_of[lineage] = tuple(routes)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The default lineage's."""
        return self._routes_of.get("", ())

    def _load(self, version: DraftVersion, lineage: str) -> None:
        if version.version in self.options.fail_swaps_to:
            raise BackendError(f"the engine refused version {version.version}, as configured")
        weights = _weights_of(version)
        if not weights.is_file():
            raise BackendError(f"version {version.version} has no weights at {str(weights)!r}")
        content = weights.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != version.checksum:
            raise BackendError(
                f"version {version.version} was published with checksum "
                f"{version.checksum[:12]} but its weights have {found[:12]}"
            )
        self._look_for_noise(content, version, lineage)

    def _look_for_noise(self, content: bytes, version: DraftVersion, lineage: str) -> None:
        if content.startswith(NOISE):
            self._noise[lineage, version.version] = float(content.removeprefix(NOISE) or 0)

    async def status(self, *, lineage: str = "") -> BackendStatus:
        self._check_alive()
        live = self._live_of.get(lineage)
        return BackendStatus(
            live_version=NO_DRAFTER if live is None else live.version,
            checksum="" if live is None else live.checksum,
            num_running=self._running,
            num_waiting=0,
            memory_mib=64.0,
            traces_kept=len(self._requests),
            traces_shed=0,
        )

    async def finished(self, after: int) -> list[RequestStats]:
        self._check_alive()
        return [request for request in self._requests if request.sequence > after]

    async def stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None and self._server is not None:
            self._server.should_exit = True
            await serving

    def drop_drafter(self) -> None:
        """Go on without a drafter, as an engine whose drafter raised."""
        self._live = None

    def die(self) -> None:
        """Stop answering at once, as a killed engine would."""
        self._failure = "the fake engine died"
        if self._server is not None:
            self._server.force_exit = self._server.should_exit = True

    @property
    def _live(self) -> DraftVersion | None:
        """What the default lineage serves."""
        return self._live_of.get("")

    @_live.setter
    def _live(self, draft: DraftVersion | None) -> None:
        self._live_of[""] = draft

    @property
    def live_version(self) -> int:
        """Number of the default lineage's live version, `NO_DRAFTER` without one."""
        return self._live_version("")

    def _live_version(self, lineage: str) -> int:
        live = self._live_of.get(lineage)
        return NO_DRAFTER if live is None else live.version

    def _check_alive(self) -> None:
        if self._failure or self._serving is None:
            raise BackendError(self._failure or "the fake engine is not running")

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        """Simulate one request."""
        assert self._plan is not None
        while self._waits_for_swap():
            await asyncio.sleep(0.005)
        extension = body.get("aurora") or {}
        lineage = self._lineage_of(extension, prompt)
        drafter = extension.get("drafter") or self._routed(prompt, lineage)
        named: dict[str | int, int] = {"live": self._live_version(lineage), "none": NO_DRAFTER}
        version = named[drafter] if drafter in named else int(drafter)
        request = simulate_request(
            body,
            prompt,
            version=version,
            depth=self._plan.num_speculative_tokens,
            rate=self._acceptance_rate(lineage, version),
            max_answer_tokens=self.options.max_answer_tokens,
            is_lossy=version in self.options.lossy_versions,
        )
        arrived = time.time()
        self._running += 1
        draft_ms = 0.0 if version == NO_DRAFTER else self.options.draft_ms
        decode_s = len(request.accepted) * (self.options.step_ms + draft_ms) / 1000
        try:
            await asyncio.sleep(decode_s)
        finally:
            self._running -= 1
        stats = request.statistics(
            sequence=len(self._requests) + 1,
            request_id=uuid.uuid4().hex,
            finished=time.time(),
            num_prompt_tokens=len(prompt.encode()),
            ttft_s=self.options.step_ms / 1000,
            decode_s=max(decode_s, 1e-6),
            tenant=extension.get("tenant", ""),
            route=extension.get("route", ""),
            batch_size=1.0 + self._running,
            lineage=lineage,
            shadow=self._shadow(prompt, lineage, len(request.token_ids)),
        )
        self._requests.append(stats)
        if self.options.drop_drafter_after_requests == len(self._requests):
            self.drop_drafter()
        if self.options.die_after_requests == len(self._requests):
            asyncio.get_running_loop().call_later(0.05, self.die)
        return Answer(token_ids=request.token_ids, created=int(arrived), stats=stats)

    def _lineage_of(self, extension: dict[str, Any], prompt: str) -> str:
        assert self._plan is not None
        if named := extension.get("lineage", ""):
            return internal_name(named, self._live_of) or ""
        return choose_lineage(
            [one.rule for one in self._plan.lineages],
            tenant=extension.get("tenant", ""),
            route=extension.get("route", ""),
            request_key=hashlib.sha256(prompt.encode()).hexdigest()[:16],
        )

    def _routed(self, prompt: str, lineage: str) -> str | int:
        """Draw who answers a request that names no drafter: its own share, or the live one."""
        place = draw(prompt, "route", str(len(self._requests))) % 10_000 / 10_000
        for route in self._routes_of.get(lineage, ()):
            if not route.shadow:
                place -= route.share
                if place < 0:
                    return "none" if route.draft is None else route.draft.version
        return "live"

    def _shadow(self, prompt: str, lineage: str, num_tokens: int) -> ShadowStats | None:
        """Simulate the version that drafts beside a request, if the request is of its share."""
        place = draw(prompt, "shadow", str(len(self._requests))) % 10_000 / 10_000
        for route in self._routes_of.get(lineage, ()):
            if route.shadow and route.draft is not None:
                place -= route.share
                if place < 0:
                    version = route.draft.version
                    return self._shadowed(prompt, lineage, version, num_tokens)
        return None

    def _shadowed(self, prompt: str, lineage: str, version: int, num_tokens: int) -> ShadowStats:
        assert self._plan is not None
        depth, rate = self._plan.num_speculative_tokens, self._acceptance_rate(lineage, version)
        accepted = simulate_steps(
            prompt, version=version, depth=depth, rate=rate, num_tokens=num_tokens
        )
        return ShadowStats(
            version=version,
            num_steps=len(accepted),
            num_drafted=len(accepted) * depth,
            accepted_per_position=per_position(accepted, depth),
            draft_s=len(accepted) * self.options.draft_ms / 1000,
        )

    def _waits_for_swap(self) -> bool:
        num_requests = len(self._requests) + self._running
        wanted = [s for count, s in self.options.wait_for_swaps.items() if num_requests >= count]
        lineages = [
            lineage
            for count, names in self.options.wait_for_lineages.items()
            for lineage in names
            if num_requests >= count
        ]
        return self.num_swap_attempts < max(wanted, default=0) or not (
            self._swapped.issuperset(lineages)
        )

    def _acceptance_rate(self, lineage: str, version: int) -> float:
        rate = min(0.95, max(0.0, self.options.acceptance_per_version * (version + 1)))
        return self._noise.get((lineage, version), rate)


def _weights_of(version: DraftVersion) -> Path:
    return Path(version.path) / "model.safetensors"


class _Server(uvicorn.Server):
    """Leaves the signals to the controller, which runs in this process too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
