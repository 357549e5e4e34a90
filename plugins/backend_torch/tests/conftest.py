"""A real HTTP server on loopback over a fake engine and a byte-level tokenizer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.generation import GenerationRequest
from aurora_backend_torch.server import HttpServer, url_of
from aurora_backend_torch.tokenizer import TargetTokenizer
from aurora_core.engine_process.ports import bind
from aurora_core.interfaces import ServePlan
from aurora_core.lineages import LineageRule
from aurora_core.records import Needs, TargetSpec
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.toy_run import install_toy
from plugins.backend_torch.tests.fake_engine import FakeEngine

TOKEN = "control-token-of-the-test"
MODEL = "tiny"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose tokenizer writes every byte as one token."""
    return make_tiny_target(tmp_path_factory.mktemp("target"), vocab_size=320, num_layers=2)


@pytest.fixture(scope="session")
def tokenizer(tiny_directory: Path) -> TargetTokenizer:
    return TargetTokenizer.read(tiny_directory)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let child processes import the checkout, as this one does, and find the toy plugin."""
    make_importable(monkeypatch, tmp_path / "toy")


def make_importable(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Set the module path of child processes; the toy is laid out in `folder`."""
    places = [ROOT, ROOT / "plugins" / "backend_torch", install_toy(folder)]
    patch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))


def plan_for(target: TargetSpec, run_dir: Path) -> ServePlan:
    """Return a plan to serve a target with the toy speculator and a spool."""
    return ServePlan(
        target=target,
        speculator="toy",
        speculator_options={"num_steps": 2},
        plugins=("toy",),
        needs=Needs(features=frozenset({"last_hidden_state"})),
        num_speculative_tokens=3,
        versions_dir=str(run_dir / "versions"),
        initial_version=None,
        sink="spool",
        sink_options={"path": str(run_dir / "spool")},
        run_dir=str(run_dir),
        seed=0,
    )


@dataclass
class Served:
    """A running server and everything a test wants to reach."""

    url: str
    engine: FakeEngine
    tokenizer: TargetTokenizer
    options: TorchBackendOptions
    http: httpx.Client
    """Without TLS, whose set-up would take longer than most tests."""

    def say(self, text: str, *, then_end: bool = True) -> None:
        """Make the engine answer every request with a text."""
        eos = sorted(self.tokenizer.eos_token_ids) if then_end else []
        self.engine.reply = lambda request: self.ids(text) + eos

    def ids(self, text: str) -> list[int]:
        """Return a text's tokens, one per byte."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def openai(self) -> openai.OpenAI:
        """Return the official client."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="unused", max_retries=0, http_client=self.http
        )

    def post(self, path: str, body: object, **options: object) -> httpx.Response:
        """Post JSON as it is."""
        return self.http.post(path, json=body, **options)

    def completion(self, **fields: object) -> httpx.Response:
        """Post a completion request."""
        return self.post("/v1/completions", {"model": MODEL, "prompt": "hi", **fields})

    def control(self, method: str, path: str, **options: object) -> httpx.Response:
        """Call a control route with the token."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return self.http.request(method, path, headers=headers, **options)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for ten seconds at most."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


def _options(**changes: object) -> TorchBackendOptions:
    small = {"max_running_requests": 2, "max_waiting_requests": 2, "max_body_bytes": 20_000}
    return TorchBackendOptions.model_validate(small | changes)


@pytest.fixture
def served(
    request: pytest.FixtureRequest, tiny_directory: Path, tokenizer: TargetTokenizer
) -> Iterator[Served]:
    """A server of its own; parametrize indirectly with options to change some."""
    options = _options(**getattr(request, "param", {}))
    with serving(tiny_directory, tokenizer, options) as served:
        yield served


@pytest.fixture(scope="module")
def served_once(tiny_directory: Path, tokenizer: TargetTokenizer) -> Iterator[Served]:
    """One server for tests that change nothing."""
    with serving(tiny_directory, tokenizer, _options()) as served:
        yield served


@contextlib.contextmanager
def serving(
    directory: Path,
    tokenizer: TargetTokenizer,
    options: TorchBackendOptions,
    *,
    rules: tuple[LineageRule, ...] = (),
) -> Iterator[Served]:
    """Run a server over a fake engine, with lineages of some rules beside the default one."""
    target = TargetSpec(
        name=MODEL,
        path=str(directory),
        architecture="LlamaForCausalLM",
        fingerprint="",
        tokenizer_fingerprint="",
        vocab_size=320,
        hidden_size=32,
        num_layers=2,
        max_position_embeddings=512,
    )

    def parrot(request: GenerationRequest) -> list[int]:
        return [*request.prompt_token_ids, *tokenizer.eos_token_ids]

    engine = FakeEngine(target, parrot)
    engine.lineage_rules = rules
    engine.start()
    sock = bind("127.0.0.1", 0)
    is_ready = threading.Event()
    handles: list[tuple[asyncio.AbstractEventLoop, HttpServer]] = []

    async def serve() -> None:
        server = HttpServer(
            engine=engine,  # type: ignore[arg-type]
            tokenizer=tokenizer,
            options=options,
            control_token=TOKEN,
        )
        handles.append((asyncio.get_running_loop(), server))
        await server.run(sock, is_ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_ready.wait(20)
    try:
        with httpx.Client(base_url=url_of(sock), verify=False, trust_env=False, timeout=20) as http:
            yield Served(url_of(sock), engine, tokenizer, options, http)
    finally:
        engine.may_step.set()
        loop, server = handles[0]
        with contextlib.suppress(RuntimeError):  # the test has shut it down already
            loop.call_soon_threadsafe(server.stop)
        thread.join()
        engine.shutdown()
        sock.close()
