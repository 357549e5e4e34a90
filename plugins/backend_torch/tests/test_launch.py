"""Starting and ending the engine process: every failure is one sentence, nothing stays behind."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import psutil
import pytest

from aurora_backend_torch.backend import TorchBackend
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.engine_process import EngineProcess
from aurora_backend_torch.launch import EngineLaunch, read_launch, write_launch
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.target.spec import read_target_spec
from plugins.backend_torch.tests.conftest import plan_for

pytestmark = pytest.mark.usefixtures("importable")


@pytest.fixture
def plan(tiny_directory: Path, tmp_path: Path) -> ServePlan:
    return plan_for(read_target_spec(tiny_directory), tmp_path)


def test_plan_survives_its_file(plan: ServePlan, tmp_path: Path) -> None:
    launch = EngineLaunch(plan=plan, options=TorchBackendOptions(max_running_requests=3))
    write_launch(launch, tmp_path / "deep" / "plan.json")
    assert read_launch(tmp_path / "deep" / "plan.json") == launch


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the engine's plan '.*plan.json': No such file"),
        ("{", "is not an engine's plan: file: Invalid JSON"),
        ("{}", "is not an engine's plan: plan: Field required"),
    ],
)
def test_unusable_plan_is_one_sentence(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BackendError, match=message):
        read_launch(path)


async def test_taken_port_is_told_by_the_engine_itself(plan: ServePlan) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        backend = TorchBackend(TorchBackendOptions(port=port))
        sentence = (
            rf"^cannot listen on 127\.0\.0\.1:{port} \(address already in use\); "
            r"set backend\.port to another port, or to 0 for a free one$"
        )
        with pytest.raises(BackendError, match=sentence):
            await backend.start(plan)
    assert _children() == []
    log = (Path(plan.run_dir) / "logs" / "engine.log").read_text()
    assert "Traceback" not in log


async def test_target_without_a_tokenizer_is_told_by_the_engine_itself(
    plan: ServePlan, tiny_directory: Path, tmp_path: Path
) -> None:
    target = read_target_spec(tiny_directory)
    bare = tmp_path / "bare"
    shutil.copytree(tiny_directory, bare)
    for file in bare.glob("tokenizer*"):
        file.unlink()
    backend = TorchBackend(TorchBackendOptions())
    moved = dataclasses.replace(target, path=str(bare))
    with pytest.raises(BackendError, match=r"needs a tokenizer\.json"):
        await backend.start(plan_for(moved, tmp_path))
    assert _children() == []


async def test_backend_that_is_not_started_says_so() -> None:
    backend = TorchBackend(TorchBackendOptions())
    await backend.stop()
    await backend.stop()
    with pytest.raises(BackendError, match="the engine is not running"):
        await backend.status()
    with pytest.raises(BackendError, match="no address before it is started"):
        backend.url  # noqa: B018


async def _stub(tmp_path: Path, script: str) -> EngineProcess:
    return await EngineProcess.launch(
        [sys.executable, "-c", script], environment={}, log_path=tmp_path / "logs" / "engine.log"
    )


async def test_ready_line_gives_the_address_whatever_else_is_printed(tmp_path: Path) -> None:
    process = await _stub(
        tmp_path,
        'import sys; print(\'noise\'); print(\'{"event": "ready", "url": "http://x"}\','
        " flush=True); sys.stdin.read()",
    )
    assert await process.wait_ready(20) == "http://x"
    await process.end(20)
    assert process.returncode == 0, "end of file was enough"
    await process.end(20)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.stderr.write('loading\\nno weights here\\n'); sys.exit(2)",
         r"^no weights here$"),
        ("raise RuntimeError('boom')",
         r"^the engine ended with exit status 1 \(RuntimeError: boom\); see '.*engine.log'$"),
        ("import os; os.kill(os.getpid(), 9)", r"^the engine was killed by SIGKILL; see '"),
        ("pass", r"^the engine ended with exit status 0; see '"),
    ],
)  # fmt: skip
async def test_engine_that_ends_early_is_one_sentence(
    tmp_path: Path, script: str, message: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "engine.log").write_text("the last line of an earlier run\n")
    process = await _stub(tmp_path, script)
    with pytest.raises(BackendError, match=message):
        await process.wait_ready(20)
    await process.end(1)


async def test_engine_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    process = await _stub(tmp_path, "import sys; sys.stdin.read()")
    with pytest.raises(BackendError, match=r"was not ready within 0\.1 s; see '.*' or raise"):
        await process.wait_ready(0.1)
    await process.end(20)


async def test_engine_that_ignores_everything_is_killed_even_when_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aurora_backend_torch.engine_process._TERMINATE_WAIT_S", 0.1)
    process = await _stub(
        tmp_path,
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        'print(\'{"event": "ready", "url": ""}\', flush=True); time.sleep(100)',
    )
    await process.wait_ready(20)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await process.end(0.1)
    assert process.returncode == -signal.SIGKILL


async def test_cancelled_start_leaves_nothing_running(plan: ServePlan) -> None:
    backend = TorchBackend(TorchBackendOptions())
    with anyio.move_on_after(0.3):
        await backend.start(plan)
    assert _children() == []


def test_engine_ends_when_its_controller_is_killed(plan: ServePlan, tmp_path: Path) -> None:
    """The controller gets no chance to say goodbye: its end of the pipe closes, that is all."""
    path = tmp_path / "plan.json"
    write_launch(EngineLaunch(plan=plan, options=TorchBackendOptions()), path)
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'aurora_backend_torch', {str(path)!r}],\n"
        "                         stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(child.pid, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        engine = psutil.Process(int(controller.stdout.readline()))
        controller.kill()
    deadline = time.monotonic() + 30
    while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine outlived its controller"
        time.sleep(0.05)


def test_controller_side_imports_neither_torch_nor_a_web_framework() -> None:
    heavy = ("torch", "fastapi", "uvicorn", "transformers", "numba")
    script = (
        "import sys, aurora_backend_torch.plugin, aurora_backend_torch.backend\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)
