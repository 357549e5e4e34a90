"""The command line: fast, light, one sentence for what the user can mend."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from aurora_core import __version__
from aurora_core.cli import application, main
from aurora_core.cli.run import select_plugins
from aurora_core.errors import BackendError, ConfigError

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "lightning", "mlflow", "transformers", "numba")


def aurora(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own and report which heavy modules it imported."""
    program = (
        "import atexit, sys\n"
        "def tell():\n"
        f"    print(sorted(set({HEAVY!r}) & sys.modules.keys()), file=sys.stderr)\n"
        "atexit.register(tell)\n"
        "from aurora_core.cli import main\n"
        f"sys.exit(main({list(arguments)!r}))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "--json"], ["--help"], ["-h"]])
def test_listing_and_help_import_nothing_heavy(arguments):
    finished = aurora(*arguments)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.strip() == "[]"
    assert "spool" in finished.stdout or "Usage" in finished.stdout


def test_plugins_start_at_once():
    # Half a second on a quiet machine. Processor time, so that a busy one does not matter; the
    # slack is for slow processors, and still below what importing torch alone takes on fast ones.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert aurora("plugins").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_plugins_as_json(install, capsys):
    install("good", "broken", "same_component")
    assert main(["plugins", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    loaded = {plugin["name"]: plugin for plugin in listing["loaded"]}
    assert loaded["parrot"]["distribution"] == "aurora-parrot"
    assert loaded["parrot"]["version"] == "1.2.0"
    assert loaded["parrot"]["components"]["speculators"] == [
        {
            "name": "parrot",
            "target": "aurora_parrot.speculator:Parrot",
            "summary": "repeats the last token",
        }
    ]
    broken = {plugin["name"]: plugin["reason"] for plugin in listing["broken"]}
    assert "No module named 'aurora_nowhere'" in broken["absent"]
    assert listing["conflicts"] == [
        "speculator 'parrot' is registered by 'cockatoo' (aurora-cockatoo 2.0.0) and by "
        "'parrot' (aurora-parrot 1.2.0)"
    ]


def test_plugins_as_text(install, capsys):
    install("good", "broken")
    assert main(["plugins"]) == 0
    text = capsys.readouterr().out
    assert "parrot  (aurora-parrot 1.2.0)\n  speculator   parrot       repeats the last" in text
    assert "  hook         aurora_register_commands" in text
    assert "typo  (aurora-typo 0.5.0)  BROKEN\n  plugin 'typo' (aurora-typo 0.5.0) is bro" in text


def test_a_plugin_adds_a_command(install, capsys):
    install("good", "broken")
    assert main(["squawk"]) == 0
    assert capsys.readouterr().out == "squawk\n"
    assert main(["--help"]) == 0
    assert "squawk" in capsys.readouterr().out


def test_python_dash_m_is_the_command():
    finished = subprocess.run(
        [sys.executable, "-m", "aurora_core", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert finished.stdout == f"aurora {__version__}\n"


def test_an_unknown_command_is_refused(capsys):
    assert main(["flyy"]) == 2
    assert "No such command 'flyy'" in capsys.readouterr().err


@pytest.fixture
def controller(monkeypatch):
    """Stand in for the controller, which is tested elsewhere; keep what it is called with."""
    seen = SimpleNamespace(outcome=0)

    def run(config, plugins, *, requests, duration_s, report_dir):
        seen.config, seen.plugins = config, plugins
        seen.requests, seen.duration_s, seen.report_dir = requests, duration_s, report_dir
        if isinstance(seen.outcome, BaseException):
            raise seen.outcome
        return seen.outcome

    module = SimpleNamespace(run=run)
    monkeypatch.setitem(sys.modules, "aurora_core.controller.run", module)
    return seen


def test_run_hands_over_configuration_plugins_and_limits(install, controller, tmp_path):
    install("good")
    arguments = ["run", "--set", "seed=5", "-p", "parrot", "--report", str(tmp_path)]
    assert main(arguments) == 0
    assert controller.config.seed == 5
    assert controller.config.plugins == ("parrot",)
    assert list(controller.plugins.loaded) == ["core", "parrot"]
    assert controller.requests == controller.config.requests is not None
    assert controller.report_dir == tmp_path


def test_flags_replace_the_configured_end(controller):
    assert main(["run", "--duration", "90"]) == 0
    assert (controller.requests, controller.duration_s) == (None, 90.0)
    assert controller.config.duration_s == 90.0, "the resolved configuration tells the truth"
    assert main(["run", "--requests", "7"]) == 0
    assert (controller.requests, controller.duration_s) == (7, None)


def test_the_exit_code_of_a_run_is_the_controllers(controller):
    controller.outcome = 1
    assert main(["run"]) == 1


def test_a_broken_plugin_is_mentioned_and_does_not_stop_a_run(install, controller, capsys):
    install("broken")
    assert main(["run"]) == 0
    assert "aurora: left out: plugin 'absent' (aurora-absent 0.3.0)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (ConfigError("port 8000 is in use; set backend.port"), 2, "aurora: port 8000 is in use"),
        (ExceptionGroup("tasks", [BackendError("no engine")]), 2, "aurora: no engine"),
        (
            ExceptionGroup("outer", [ExceptionGroup("inner", [BackendError("no engine")])]),
            2,
            "aurora: no engine",
        ),
        (ExceptionGroup("tasks", [BackendError("a"), ValueError("bug")]), 1, "ValueError: bug"),
        (RuntimeError("bug"), 1, "Traceback"),
        (
            PermissionError(13, "Permission denied", "runs/versions"),
            2,
            "aurora: 'runs/versions' cannot be used: Permission denied; correct that, or use ano",
        ),
        (OSError(28, "No space left on device", "runs"), 2, "'runs' cannot be used: No space left"),
        (
            NotADirectoryError(20, "Not a directory", "runs/versions"),
            2,
            "aurora: 'runs/versions' cannot be used: Not a directory; correct that",
        ),
        (OSError(40, "Too many levels of symbolic links", "loop"), 2, "aurora: 'loop' cannot be"),
        (FileNotFoundError(2, "No such file or directory", "runs"), 1, "FileNotFoundError"),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt()]), 130, ""),
    ],
)
def test_errors_become_exit_codes(controller, capsys, outcome, code, message):
    controller.outcome = outcome
    assert main(["run"]) == code
    error = capsys.readouterr().err
    assert message in error
    assert ("Traceback" in error) == (code == 1)


def test_an_error_raised_by_two_tasks_is_told_once(capsys):
    group = ExceptionGroup("tasks", [BackendError("no engine"), BackendError("no engine")])
    assert application.report_error(group) == 2
    assert capsys.readouterr().err == "aurora: no engine\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.yaml"], "there is no configuration file 'nowhere.yaml'"),
        (["run", "-p", "eagel"], "no installed plugin is named 'eagel'; installed: "),
        (["run", "--set", "learner.learning_rat=1"], "did you mean 'learning_rate'?"),
        (["check", "--set", "speculator=eagel"], "no plugin provides 'eagel' under speculators"),
        (["replay", "--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
        (["bench", "--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
        (
            ["bench", "--url", "http://127.0.0.1:1", "--variant", "a: {seed: 1}"],
            "--variant needs engines that the benchmark starts itself, so leave --url out",
        ),
        (["ui", "--run-dir", "nowhere"], "run directory 'nowhere' has no MLflow store (mlflow.db)"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence_and_exit_2(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
    assert captured.err.startswith("aurora: ") and captured.out == ""


@pytest.mark.parametrize(
    ("configured", "flags", "expected"),
    [
        (None, ["eagle"], ("eagle",)),
        (("medusa",), ["eagle", "torch"], ("eagle", "torch")),
        (("medusa", "eagle"), ["no:medusa"], ("medusa", "eagle", "no:medusa")),
        (None, ["no:medusa"], ("no:medusa",)),
        ((), ["no:medusa"], ()),
        ((), ["eagle"], ("eagle",)),
    ],
)
def test_plugin_flags_replace_and_leave_out(configured, flags, expected):
    assert select_plugins(configured, flags) == expected
