"""`aurora plugins check`: what it prints, its exit codes, and suites that a plugin brings along."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from aurora_core.cli import main

PLUGIN = """
from aurora_core import hookimpl
from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.records import Registration, Verdict


class Needy(Options):
    wanted: int


class Patient(SwapPolicy):
    def decide(self, evidence):
        return Verdict(action="hold", reason="{reason}")


class Demanding(Patient):
    Config = Needy


@hookimpl
def aurora_register_swap_policies():
    yield Registration("patient", "aurora_{name}:{policy}")
"""
SUITES = """
import pytest

from aurora_core.testing.suites import SwapPolicySuite
from aurora_{name} import Demanding, Needy


class TestDemanding(SwapPolicySuite):
    @pytest.fixture
    def policy(self):
        return Demanding(Needy(wanted=3))
"""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Lay out a plugin with one policy, as pip would."""

    def add(
        name: str, *, reason: str = "waits", policy: str = "Patient", suites: str | None = None
    ) -> None:
        folder = tmp_path / name
        dist_info = folder / f"aurora_{name}-1.0.dist-info"
        dist_info.mkdir(parents=True)
        (dist_info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: aurora-{name}\nVersion: 1.0\n"
        )
        entries = f"[aurora_core.plugins]\n{name} = aurora_{name}\n"
        if suites is not None:
            entries += f"[aurora_core.conformance]\n{name} = aurora_{name}_suites\n"
            (folder / f"aurora_{name}_suites.py").write_text(suites.format(name=name))
        (dist_info / "entry_points.txt").write_text(entries)
        source = PLUGIN.format(name=name, reason=reason, policy=policy)
        (folder / f"aurora_{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))

    return add


def test_a_sound_plugin_passes(install, capsys):
    install("sound")
    assert main(["plugins", "check", "sound"]) == 0
    printed = capsys.readouterr().out
    assert "PatientSwapPolicy" in printed
    assert "equal evidence gives an equal verdict" in printed
    assert "sound: 9 passed" in printed


def test_a_broken_promise_is_named_and_ends_in_exit_code_1(install, capsys):
    install("mute", reason="")
    assert main(["plugins", "check", "mute", "--kind", "swap_policy", "--traceback"]) == 1
    printed = capsys.readouterr().out
    assert "every verdict has a reason in one line" in printed
    assert "mute: 8 passed, 1 failed" in printed
    assert "assert reason.strip()" in printed


def test_suites_of_the_plugin_take_the_place_of_the_default_ones(install, capsys):
    install("owning", policy="Demanding", suites=SUITES)
    assert main(["plugins", "check", "owning"]) == 0
    assert "owning: 9 passed" in capsys.readouterr().out


def test_listing_plugins_still_works_without_a_subcommand(capsys):
    assert main(["plugins"]) == 0
    assert "core" in capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plugins", "check", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("aurora: ")
    return captured.err


def test_an_unknown_plugin_is_refused(capsys):
    assert "no installed plugin is named 'nope'" in refusal(capsys, "nope")


def test_an_unknown_kind_is_refused(capsys):
    message = refusal(capsys, "core", "--kind", "policy")
    assert "'policy' is no kind of component; choose one of speculator, backend" in message


def test_a_kind_that_the_plugin_does_not_provide_is_refused(install, capsys):
    install("lone")
    message = refusal(capsys, "lone", "--kind", "backend")
    assert "plugin 'lone' (aurora-lone 1.0) provides no backend; it provides swap_policy" in message


def test_options_without_defaults_are_refused(install, capsys):
    install("demanding", policy="Demanding")
    assert "swap_policy.wanted" in refusal(capsys, "demanding")


def test_a_conformance_module_without_suites_is_refused(install, capsys):
    install("hollow", suites="nothing = 1\n")
    assert "has no class named Test... that subclasses a suite" in refusal(capsys, "hollow")


def test_a_conformance_module_that_fails_is_refused(install, capsys):
    install("raising", suites="import no_such_module\n")
    assert "cannot be imported from 'aurora_raising_suites'" in refusal(capsys, "raising")


def test_without_pytest_the_extra_is_named(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pytest" else found(name)
    )
    assert "pip install 'aurora-core[testing]'" in refusal(capsys, "core")
