"""The plugin that docs/plugins/index.md writes works as it stands there."""

from __future__ import annotations

import sys
import tomllib

import pytest

from aurora_core.components import build_component, check_component
from aurora_core.config import ComponentSection
from aurora_core.errors import ConfigError
from aurora_core.plugins import Plugins
from aurora_core.records import DraftVersion, Evidence


@pytest.fixture
def installed(pages, tmp_path, monkeypatch) -> Plugins:
    """Write the three files of the page, lay them out as pip would, and load the plugin."""
    page = pages["docs/plugins/index.md"]
    [project_text] = page.blocks("toml")
    plugin_text, policy_text = page.blocks("python")
    project = tomllib.loads(project_text)["project"]
    package = tmp_path / "aurora_patient"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(plugin_text)
    (package / "policy.py").write_text(policy_text)
    dist_info = tmp_path / f"aurora_patient-{project['version']}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    [(group, entries)] = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (dist_info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = Plugins()
    plugins.load(["patient"])
    yield plugins
    for name in [name for name in sys.modules if name.partition(".")[0] == "aurora_patient"]:
        del sys.modules[name]


def version(number: int) -> DraftVersion:
    return DraftVersion(
        version=number,
        path="/nowhere",
        parent=None,
        speculator="eagle3",
        target_fingerprint="f",
        global_step=1,
        num_tokens_trained=1,
        created=0.0,
        checksum="c",
    )


def evidence(live: DraftVersion | None, num_requests: int) -> Evidence:
    return Evidence(
        candidate=version(2),
        live=live,
        previous=None,
        serving=(),
        num_requests_since_swap=num_requests,
        seconds_since_swap=1.0,
    )


def test_it_loads_without_importing_its_component(installed):
    assert installed.loaded["patient"].distribution == "aurora-patient"
    assert "aurora_patient.policy" not in sys.modules


def test_it_judges_as_the_page_says(installed):
    section = ComponentSection.model_validate({"name": "patient", "min_requests": 50})
    policy = build_component(installed, "swap_policies", section)
    assert policy.decide(evidence(None, 0)).action == "promote"
    assert policy.decide(evidence(version(1), 49)).action == "hold"
    assert policy.decide(evidence(version(1), 50)).action == "promote"


def test_its_options_are_checked_at_the_users_path(installed):
    section = ComponentSection.model_validate({"name": "patient", "min_request": 50})
    with pytest.raises(
        ConfigError, match=r"swap_policy\.min_request: unknown option; did you mean"
    ):
        check_component(installed, "swap_policies", section)
