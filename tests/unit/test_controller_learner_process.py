"""The supervisor, with small Python programs in the learner's place."""

import os
import signal
import sys
import textwrap

import anyio
import psutil
import pytest

from aurora_core.controller.learner_process import GaveUp, LearnerProcess, Restarting
from aurora_core.errors import AuroraError
from aurora_core.learner.protocol import Progress, Published, Started, Stopped

PREAMBLE = """
import json, os, signal, sys, time
def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)
def commands():
    for line in sys.stdin:
        yield json.loads(line)
"""
OBEDIENT = """
say("started", step=3, resumed=True)
for command in commands():
    if command["command"] == "stop":
        break
    version = command["version"]
    say("progress", step=4, metrics={"told": -1 if version is None else version})
say("stopped", step=5)
"""


class Harness:
    def __init__(self, tmp_path, body, **options):
        self.events = []
        self.log = tmp_path / "learner.log"
        self.learner = LearnerProcess(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(body)],
            environment={"MARK": "7"},
            log_path=self.log,
            on_event=self.events.append,
            **{"max_restarts": 2, "backoff_s": 0.01, **options},
        )

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition):
        with anyio.fail_after(20):
            while not condition():
                await anyio.sleep(0.01)


async def test_learner_hears_the_live_version_and_stops_by_itself_when_asked(tmp_path):
    harness = Harness(tmp_path, OBEDIENT)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.learner.run)
        await harness.until(lambda: harness.of(Progress))
        await harness.learner.tell_live(4)
        await harness.until(lambda: len(harness.of(Progress)) == 2)
        await harness.learner.stop()
    assert [event.metrics["told"] for event in harness.of(Progress)] == [-1, 4]
    assert harness.of(Started) and harness.of(Stopped)
    record = harness.learner.record
    assert (record.state, record.step, record.num_restarts) == ("stopped", 5, 0)


async def test_killed_learner_is_restarted_and_told_the_live_version_again(tmp_path):
    harness = Harness(tmp_path, OBEDIENT)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.learner.run)
        await harness.until(lambda: harness.of(Progress))
        await harness.learner.tell_live(4)
        os.kill(harness.learner.pid, signal.SIGKILL)
        await harness.until(lambda: len(harness.of(Started)) == 2)
        await harness.until(lambda: harness.of(Progress)[-1].metrics["told"] == 4)
        await harness.learner.stop()
    assert [event.reason for event in harness.of(Restarting)] == ["was killed by SIGKILL"]
    assert harness.learner.record.num_restarts == 1


async def test_learner_that_keeps_crashing_is_given_up_and_the_run_goes_on(tmp_path):
    harness = Harness(tmp_path, "say('started', step=0, resumed=False); sys.exit(1)")
    await harness.learner.run()
    assert len(harness.of(Restarting)) == 2 and len(harness.of(Started)) == 3
    assert "exit status 1" in harness.of(GaveUp)[0].reason
    assert harness.learner.record.state == "gave_up"


async def test_published_version_ends_a_row_of_crashes(tmp_path):
    version = {
        "version": 1, "path": "v", "parent": None, "speculator": "s", "target_fingerprint": "f",
        "global_step": 1, "num_tokens_trained": 1, "created": 0.0, "checksum": "c",
    }  # fmt: skip
    body = f"""
    count = len(open("count").read()) if os.path.exists("count") else 0
    open("count", "a").write("x")
    say("started", step=0, resumed=False)
    if count == 2:
        say("published", version={version})
    sys.exit(1)
    """
    harness = Harness(tmp_path, f"os.chdir({str(tmp_path)!r})\n" + textwrap.dedent(body))
    await harness.learner.run()
    assert len(harness.of(Published)) == 1
    assert len(harness.of(Restarting)) == 4  # two before the version, two after


async def test_learner_that_cannot_be_configured_ends_the_run_with_its_sentence(tmp_path):
    body = "print('a log line', file=sys.stderr); print('no such thing', file=sys.stderr)\nexit(2)"
    harness = Harness(tmp_path, body)
    with pytest.raises(AuroraError, match=r"^no such thing$"):
        await harness.learner.run()
    assert not harness.of(Restarting)


async def test_finished_learner_is_not_restarted(tmp_path):
    harness = Harness(tmp_path, "say('stopped', step=9)")
    await harness.learner.run()
    assert harness.learner.record.state == "finished"
    assert not harness.of(Restarting)


async def test_deaf_learner_is_killed_with_its_children_and_reaped(tmp_path):
    body = """
    import subprocess
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    say("progress", step=child.pid, metrics={})
    while True:
        time.sleep(600)
    """
    harness = Harness(tmp_path, body, grace_s=0.05)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.learner.run)
        await harness.until(lambda: harness.of(Progress))
        pid, child = harness.learner.pid, harness.of(Progress)[0].step
        with anyio.fail_after(20):
            harness.learner.kill()
            await harness.learner.stop()
    assert not psutil.pid_exists(pid)
    await harness.until(
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    )


async def test_cancelling_reaps_the_learner(tmp_path):
    harness = Harness(tmp_path, OBEDIENT)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.learner.run)
        await harness.until(lambda: harness.of(Started))
        pid = harness.learner.pid
        tasks.cancel_scope.cancel()
    assert not psutil.pid_exists(pid)


async def test_noise_on_standard_output_is_no_event(tmp_path):
    harness = Harness(tmp_path, "print('hello'); print('{}'); say('stopped', step=1)")
    await harness.learner.run()
    assert [type(event) for event in harness.events] == [Stopped]


async def test_learner_has_its_own_environment_log_and_measured_memory(tmp_path):
    body = """
    print("mark", os.environ["MARK"], file=sys.stderr)
    say("started", step=0, resumed=False)
    for command in commands():
        if command["command"] == "stop":
            break
    """
    harness = Harness(tmp_path, body)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.learner.run)
        await harness.until(lambda: harness.of(Started))
        await harness.until(lambda: harness.learner.record.peak_memory_mib > 1)
        await harness.learner.stop()
    assert harness.log.read_text() == "mark 7\n"
