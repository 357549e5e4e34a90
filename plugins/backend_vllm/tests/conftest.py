"""An interpreter that pretends to have vLLM, published versions, and plans to serve."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from aurora_backend_vllm.engine.settings import TOKEN_VARIABLE
from aurora_core.interfaces import ServePlan
from aurora_core.records import DraftVersion, Needs
from aurora_core.versions import VersionStore
from plugins.backend_vllm.tests.engine_records import FEATURES, engine_settings, target_spec
from plugins.backend_vllm.tests.fake_vllm import FakeEngine, application

ROOT = Path(__file__).parents[3]
TOKEN = "token-of-the-test"


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that behaves as the Python of an environment with vLLM."""
    faults = tmp_path / "faults"
    faults.mkdir()
    monkeypatch.setenv("FAKE_VLLM_FAULTS", str(faults))
    places = os.pathsep.join(map(str, (ROOT, ROOT / "plugins" / "backend_vllm")))
    script = tmp_path / "python"
    fake = Path(__file__).with_name("fake_vllm.py")
    script.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(places)} "
        f'exec {shlex.quote(sys.executable)} {shlex.quote(str(fake))} "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def fault(interpreter: Path, tmp_path: Path) -> Any:
    """Switch a fault of the fake server on."""
    return lambda name: (tmp_path / "faults" / name).touch()


def publish(versions: Path, content: bytes = b"weights") -> DraftVersion:
    """Publish a version whose weights are some bytes."""
    store = VersionStore(versions)

    def write(folder: Path) -> None:
        config = {"architectures": ["LlamaForCausalLMEagle3"]}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(content)

    return store.stage(
        store.next_version(),
        write,
        parent=None,
        speculator="eagle3",
        target_fingerprint="f" * 16,
        global_step=1,
        num_tokens_trained=1,
    )


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """Folder of published versions."""
    return tmp_path / "run" / "versions"


@pytest.fixture
def plan(tmp_path: Path, versions: Path) -> ServePlan:
    """A plan that begins with a published version, so that no placeholder has to be made."""
    return ServePlan(
        target=target_spec(),
        speculator="eagle3",
        speculator_options={},
        plugins=None,
        needs=Needs(features=FEATURES, aux_layers=(1, 2, 3)),
        num_speculative_tokens=3,
        versions_dir=str(versions),
        initial_version=publish(versions),
        sink="spool",
        sink_options={"path": str(tmp_path / "spool")},
        run_dir=str(tmp_path / "run"),
        seed=0,
    )


class ServedEngine:
    """A fake vLLM server in this process, on a free port; without an engine it is a stock one."""

    def __init__(self, engine: FakeEngine | None) -> None:
        self.engine = engine
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        config = uvicorn.Config(
            application(engine), host="127.0.0.1", port=port, log_level="warning", lifespan="off"
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def start(self) -> None:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serve fake engines; called with settings, returns a `ServedEngine`."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    started: list[ServedEngine] = []

    def start(versions: Path, *, with_half: bool = True, **changes: Any) -> ServedEngine:
        settings = engine_settings(versions, **changes)
        served = ServedEngine(FakeEngine(settings.to_config()) if with_half else None)
        served.start()
        started.append(served)
        return served

    yield start
    for served in started:
        served.stop()
