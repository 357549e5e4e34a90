"""`aurora run` as a child process: real processes, the fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import httpx
import psutil
import pytest

from aurora_core.errors import BackendError, ConfigError
from aurora_core.experiments import served_run
from aurora_core.experiments.arm_run import Sending, run_arm
from aurora_core.experiments.served_run import as_server, serve
from aurora_core.experiments.server_gone import ServerGone
from aurora_core.interfaces import Options
from aurora_core.plugins import Plugins
from aurora_core.testing.fake_backend import FakeBackend
from aurora_core.testing.fake_speculator import FakePlugin
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts import Prompt
from tests.unit.experiments.hand_made import make_config
from tests.unit.test_controller_run import target as make_target

target = make_target


@pytest.fixture
def plugins():
    plugins = Plugins()
    plugins.register(FakePlugin(), "fake")
    return plugins


@pytest.fixture
def config(tmp_path, target, plugins, monkeypatch):
    """Of a run without a learner, on an engine that another process finds installed."""
    installed = tmp_path / "installed"
    dist_info = installed / "aurora_fake-0.1.0.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: aurora-fake\nVersion: 0.1\n")
    (dist_info / "entry_points.txt").write_text(
        "[aurora_core.plugins]\nfake = installed_fake:plugin\n"
    )
    (installed / "installed_fake.py").write_text(
        "from aurora_core.testing.fake_speculator import FakePlugin\n\nplugin = FakePlugin()\n"
    )
    root = Path(__file__).parents[3]
    path = [str(installed), str(root), str(root / "plugins" / "ngram")]
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    config = make_config(
        tmp_path / "unused",
        target=str(target),
        speculator="ngram",
        plugins=["fake", "ngram"],
        traffic={"domains": ["sql"]},
        requests=3,
    )
    return as_server(config, plugins, run_dir=tmp_path / "runs" / "one", seed=4)


def test_server_is_told_a_port_and_nothing_that_would_end_it(config):
    assert config.backend.options["port"] > 0
    assert (config.traffic, config.requests, config.final_bench) == (None, None, None)
    assert not config.tracking.enabled and config.seed == 4


def test_backend_that_cannot_be_told_a_port_is_refused(tmp_path):
    class Portless(FakeBackend):
        Config = Options

    class Resolving:
        def resolve(self, kind, name):
            return Portless

    with pytest.raises(ConfigError, match="backend 'fake' has no option `port`; choose another"):
        as_server(make_config(tmp_path), Resolving(), run_dir=tmp_path / "run", seed=0)


async def test_run_serves_until_the_block_ends_and_leaves_no_process(config):
    async with serve(config) as url, Endpoint(url) as endpoint:
        answer = await endpoint.complete(Prompt("sql", "hello"), RequestSettings(max_tokens=8))
        assert answer.token_ids and answer.speculation is not None
        children = psutil.Process().children(recursive=True)
        assert any("aurora_core" in " ".join(one.cmdline()) for one in children)
    _, alive = psutil.wait_procs(children, timeout=0)
    assert alive == []
    assert (config.run_dir / "resolved.yaml").exists()
    log = (config.run_dir.parent / "one.log").read_text()
    assert "serving at" in log


def server_process():
    """The `aurora run` under the guard."""
    [found] = [
        one
        for one in psutil.Process().children(recursive=True)
        if one.cmdline()[1:4] == ["-m", "aurora_core", "run"]
    ]
    return found


async def test_server_that_is_killed_cancels_the_block_and_says_how_it_ended(config):
    with pytest.raises(ServerGone, match=r"ended before everything was asked, with status 137: "):
        async with serve(config):
            server_process().kill()
            await asyncio.Event().wait()


async def test_server_that_is_told_to_end_is_gone_though_it_still_winds_down(config):
    with pytest.raises(ServerGone, match=r"ended before everything was asked, with .*'.*one\.log'"):
        async with serve(config) as url, httpx.AsyncClient(trust_env=False) as client:
            server_process().terminate()
            with contextlib.suppress(httpx.HTTPError):
                while True:
                    await client.get(f"{url}/v1/models")


async def test_arm_whose_server_is_killed_is_named_and_has_no_result(config):
    killed = []

    def kill_once():
        if not killed:
            killed.append(server_process())
            killed[0].kill()

    sending = Sending(concurrency=1, max_tokens=8, reference_every=0, records=False)
    with pytest.raises(BackendError, match="; arm 'gate' of the mixed stream, seed 4, has no res"):
        await run_arm(
            config,
            [Prompt("sql", f"number {number}") for number in range(3)],
            sending,
            arm="gate",
            stream="mixed",
            seed=4,
            on_result=kill_once,
        )


async def test_error_of_the_block_itself_is_not_taken_for_the_server(config):
    with pytest.raises(TimeoutError, match="its own"):
        async with serve(config):
            raise TimeoutError("its own")


async def test_run_that_cannot_start_is_one_sentence_with_its_own(config):
    broken = config.model_copy(update={"target": "/nowhere/at/all"})
    with pytest.raises(BackendError, match=r"ended by itself with status 2: aurora: .*nowhere"):
        async with serve(broken):
            pytest.fail("it cannot come up")


async def test_run_that_does_not_come_up_in_time_is_one_sentence(config, monkeypatch):
    monkeypatch.setattr(served_run, "_START_S", -1.0)
    with pytest.raises(BackendError, match=r"does not answer at http://127.0.0.1:\d+ within"):
        async with serve(config):
            pytest.fail("there was no time")
