"""Options of components: validated by the component, reported at the path the user wrote."""

from __future__ import annotations

import re

import pytest

from aurora_core.components import build_component, check_component, run_defaults
from aurora_core.config import ComponentSection, RunConfig
from aurora_core.errors import ConfigError, PluginError
from aurora_core.plugins import Plugins


@pytest.fixture
def plugins(install) -> Plugins:
    install("good")
    plugins = Plugins()
    plugins.load(["parrot"])
    return plugins


def section(**options: object) -> ComponentSection:
    return ComponentSection(name="moody", **options)


def test_a_component_is_built_from_its_own_options(plugins):
    policy = build_component(plugins, "swap_policies", section(mood="0.25"))
    assert type(policy).__name__ == "Moody"
    assert policy.options.mood == 0.25


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"moood": 1},
            "swap_policy.moood: unknown option; did you mean 'mood'? options: mood, path",
        ),
        ({"mood": 2}, "swap_policy.mood: input should be less than or equal to 1, not 2"),
        ({"path": 3.1}, "swap_policy.path: input should be a valid string, not 3.1; put the value"),
    ],
)
def test_a_refused_option_is_reported_at_its_path(plugins, options, line):
    message = f"swap_policy 'moody' is not a usable configuration:\n  {line}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_component(plugins, "swap_policies", section(**options))


def test_the_run_supplies_options_only_where_the_user_did_not(plugins):
    defaults = {"path": "/from/the/run", "unheard_of": 1}
    _, supplied = check_component(plugins, "swap_policies", section(), defaults=defaults)
    assert supplied.path == "/from/the/run"
    _, chosen = check_component(plugins, "swap_policies", section(path="/mine"), defaults=defaults)
    assert chosen.path == "/mine"


def test_the_sink_lies_in_the_run_directory(tmp_path):
    config = RunConfig.quickstart([f"run_dir={tmp_path}", "seed=7"])
    assert run_defaults(config, "trace_sinks") == {"path": tmp_path / "spool", "seed": 7}
    assert run_defaults(config, "swap_policies") == {}


def test_an_unknown_component_is_a_plugin_error(plugins):
    with pytest.raises(
        PluginError, match=r"no plugin provides 'mody' under swap_policies; .*moody"
    ):
        build_component(plugins, "swap_policies", ComponentSection(name="mody"))
