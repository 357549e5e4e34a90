"""Loading installed plugins: what works is kept, what does not is named with its reason."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aurora_core import hookimpl
from aurora_core.errors import PluginError
from aurora_core.plugins import Plugins
from aurora_core.records import Registration

PARROT = "'parrot' (aurora-parrot 1.2.0)"


def loaded(*names: str) -> Plugins:
    plugins = Plugins()
    plugins.load(names or None)
    return plugins


def test_an_installed_plugin_is_listed_with_its_distribution_and_components(install):
    install("good")
    plugin = loaded().loaded["parrot"]
    assert (plugin.distribution, plugin.version) == ("aurora-parrot", "1.2.0")
    assert [r.name for r in plugin.components["speculators"]] == ["parrot"]
    assert "aurora_register_commands" in plugin.hooks


def test_listing_imports_no_component(install):
    install("good")
    loaded().registrations("speculators")
    assert "aurora_parrot.plugin" in sys.modules
    assert "aurora_parrot.speculator" not in sys.modules


def test_broken_plugins_are_left_out_and_explained(install):
    install("good", "broken")
    plugins = loaded()
    assert "parrot" in plugins.loaded
    reasons = {name: plugins.broken[name].reason for name in ("absent", "quitter", "typo")}
    assert reasons == {
        "absent": "plugin 'absent' (aurora-absent 0.3.0) cannot load: "
        "ModuleNotFoundError: No module named 'aurora_nowhere'",
        "quitter": "plugin 'quitter' (aurora-quitter 0.4.0) cannot load: "
        "SystemExit: this plugin needs a licence",
        "typo": "plugin 'typo' (aurora-typo 0.5.0) is broken: unknown hook "
        "'aurora_register_speculator'; did you mean 'aurora_register_speculators'?",
    }
    assert not plugins.registrations("speculators").keys() & {"typo"}


@pytest.mark.parametrize("name", ["absent", "quitter", "typo"])
def test_a_broken_plugin_that_was_named_is_an_error(install, name):
    install("broken")
    with pytest.raises(PluginError, match=f"plugin '{name}' .* (cannot load|is broken): "):
        loaded(name)


def test_only_the_named_plugins_load(install):
    install("good", "broken", "same_component")
    plugins = loaded("parrot")
    assert list(plugins.loaded) == ["core", "parrot"]
    assert not plugins.broken


def test_an_empty_list_loads_nothing_but_core(install):
    install("good", "broken")
    plugins = Plugins()
    plugins.load(())
    assert list(plugins.loaded) == ["core"] and not plugins.broken
    with pytest.raises(PluginError, match=r"no plugin provides 'parrot' .*not among those.*parrot"):
        plugins.resolve("speculators", "parrot")


def test_a_plugin_can_be_left_out(install):
    install("good", "broken", "same_component")
    plugins = loaded("no:parrot", "no:typo")
    assert "parrot" not in plugins.loaded
    assert "cockatoo" in plugins.loaded
    assert plugins.broken.keys() >= {"absent", "quitter"} and "typo" not in plugins.broken


@pytest.mark.parametrize("name", ["eagel", "no:eagel"])
def test_unknown_plugin_names_what_is_installed(install, name):
    install("good")
    with pytest.raises(PluginError, match=r"no installed plugin is named 'eagel'; .*parrot"):
        loaded(name)


def test_core_cannot_be_left_out():
    with pytest.raises(PluginError, match="'core' cannot be left out; remove 'no:core'"):
        loaded("no:core")


def test_two_distributions_with_one_plugin_name_are_both_named(install):
    install("good", "same_name")
    message = (
        "plugin name 'parrot' is taken by (aurora-parrot 1.2.0 and by parrot-fork 9.0.0"
        "|parrot-fork 9.0.0 and by aurora-parrot 1.2.0); uninstall one"
    )
    with pytest.raises(PluginError, match=message):
        loaded("parrot")
    plugins = loaded()
    assert re.search(message, plugins.broken["parrot"].reason)
    assert "parrot" not in plugins.loaded


def test_two_plugins_with_one_component_conflict_only_when_it_is_selected(install):
    install("good", "same_component")
    plugins = loaded()
    assert plugins.resolve("swap_policies", "moody").__name__ == "Moody"
    with pytest.raises(
        PluginError,
        match=r"'parrot' is registered under speculators by 'cockatoo' \(aurora-cockatoo 2.0.0\) "
        r"and by 'parrot' \(aurora-parrot 1.2.0\); uninstall one, or leave one out with "
        "`-p no:NAME`",
    ):
        plugins.resolve("speculators", "parrot")


def test_unknown_component_lists_what_exists_and_what_was_left_out(install):
    install("good", "broken")
    with pytest.raises(
        PluginError,
        match=r"no plugin provides 'eagel' under speculators; available: .*parrot; plugin 'absent'",
    ):
        loaded().resolve("speculators", "eagel")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            "speculators",
            "parrot",
            f"speculator 'parrot' of plugin {PARROT} cannot be imported: "
            "ModuleNotFoundError: No module named 'aurora_nowhere'",
        ),
        (
            "swap_policies",
            "vanished",
            f"swap_policy 'vanished' of plugin {PARROT} cannot be imported: AttributeError",
        ),
        (
            "swap_policies",
            "impostor",
            f"swap_policy 'impostor' of plugin {PARROT} is no SwapPolicy: "
            "'aurora_parrot.policy:Impostor' is not a subclass of "
            "aurora_core.interfaces.SwapPolicy",
        ),
        (
            "swap_policies",
            "unfinished",
            f"swap_policy 'unfinished' of plugin {PARROT} does not implement decide",
        ),
    ],
)
def test_an_unusable_class_is_reported_with_its_plugin(install, kind, name, message):
    install("good")
    with pytest.raises(PluginError, match=re.escape(message)):
        loaded("parrot").resolve(kind, name)


class Observer:
    """Counts swaps, and fails where it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.steps: list[int] = []

    @hookimpl
    def aurora_learner_progress(self, step):
        self.steps.append(step)
        if self.error is not None:
            raise self.error


def test_one_failing_observer_is_counted_and_does_not_stop_the_others(caplog):
    plugins = Plugins()
    first, failing, last = Observer(), Observer(RuntimeError("boom")), Observer()
    for name, observer in (("first", first), ("failing", failing), ("last", last)):
        plugins.register(observer, name)
    for step in (1, 2):
        plugins.notify("aurora_learner_progress", step=step, metrics={})
    assert first.steps == failing.steps == last.steps == [1, 2]
    assert plugins.failures == {"failing": 2}
    assert "plugin 'failing' failed in aurora_learner_progress" in caplog.text


def test_interrupts_pass_through_an_observer():
    plugins = Plugins()

    class Interrupted:
        @hookimpl
        def aurora_learner_progress(self):
            raise KeyboardInterrupt

    plugins.register(Interrupted(), "interrupted")
    with pytest.raises(KeyboardInterrupt):
        plugins.notify("aurora_learner_progress", step=1, metrics={})
    assert not plugins.failures


def test_a_notification_must_carry_every_argument_of_its_hook():
    with pytest.raises(AssertionError, match="aurora_learner_progress"):
        Plugins().notify("aurora_learner_progress", step=1)


def test_an_observer_name_is_used_once():
    plugins = Plugins()
    plugins.register(Observer(), "console")
    with pytest.raises(PluginError, match="'console' is broken: the name is taken by 'console'"):
        plugins.register(Observer(), "console")
    observer = plugins.manager.get_plugin("console")
    with pytest.raises(PluginError, match="it is the same object as plugin 'console'"):
        plugins.register(observer, "twin")


def _yields(*registrations: object) -> object:
    class Plugin:
        @hookimpl
        def aurora_register_backends(self) -> Iterator[object]:
            yield from registrations

    return Plugin()


class _Default:
    @hookimpl
    def aurora_learner_progress(self, step, metrics=None): ...


class _Async:
    @hookimpl
    async def aurora_learner_progress(self, step): ...


class _UnknownArgument:
    @hookimpl
    def aurora_learner_progress(self, loss): ...


class _Raises:
    @hookimpl
    def aurora_register_backends(self):
        raise RuntimeError("no licence")


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (_yields("torch"), "aurora_register_backends yields 'torch', which is no Registration"),
        (_yields(Registration("Torch", "a:B")), "registers 'Torch'; names are lowercase letters"),
        (_yields(Registration("torch", "a.B")), "'a.B', which is not of the form 'module:Class'"),
        (_yields(*[Registration("torch", "a:B")] * 2), "registers 'torch' twice"),
        (_Default(), "aurora_learner_progress gives 'metrics' a default"),
        (_Async(), "aurora_learner_progress is async, but hooks are synchronous"),
        (_UnknownArgument(), r"Argument\(s\) .*loss"),
        (_Raises(), "plugin 'bad' is broken: RuntimeError: no licence"),
    ],
)
def test_a_misused_hook_is_explained_and_the_plugin_not_added(plugin, message):
    plugins = Plugins()
    with pytest.raises(PluginError, match=message):
        plugins.register(plugin, "bad")
    assert list(plugins.loaded) == ["core"]
    assert plugins.manager.get_plugin("bad") is None


def test_everything_the_core_registers_exists():
    plugins = Plugins()
    names = {
        kind: {name for name in plugins.registrations(kind)}
        for kind in ("trace_sinks", "swap_policies")
    }
    assert names == {
        "trace_sinks": {"spool"},
        "swap_policies": {"always", "canary", "gate", "interval", "shadow"},
    }
    for kind, registered in names.items():
        for name in registered:
            assert plugins.resolve(kind, name).Config.model_config["extra"] == "forbid"


def test_components_of_the_core_import_no_torch():
    code = (
        "import sys\n"
        "from aurora_core.plugins import Plugins\n"
        "plugins = Plugins()\n"
        "for kind in ('trace_sinks', 'swap_policies'):\n"
        "    for name in plugins.registrations(kind):\n"
        "        plugins.resolve(kind, name)\n"
        "print({'torch', 'lightning', 'mlflow'} & sys.modules.keys() or 'none')\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert output.stdout.strip() == "none"
