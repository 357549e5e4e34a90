"""The configuration page follows the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from aurora_core.config import RunConfig
from aurora_core.config_reference import render
from aurora_core.plugins import Plugins

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> str:
    plugins = Plugins()
    plugins.load()
    return render(plugins)


def test_every_core_option_is_on_the_page(page):
    for name, field in RunConfig.model_fields.items():
        assert f"| `{name}` |" in page, name
        assert field.description and field.description.split("\n")[0] in page


def test_options_of_components_are_on_the_page(page):
    assert "## `trace_sink: spool`" in page
    assert "| `path` | path | from the run |" in page
    assert "| `max_bytes` | bytes, > 0 | 1.0 GiB |" in page


def test_types_and_defaults_read_as_a_person_writes_them(page):
    assert "| `num_speculative_tokens` | int, >= 1 | `3` |" in page
    assert "| `order` | `mixed` or `ordered` | `mixed` |" in page
    assert "| `rate` | float or null, > 0 | null |" in page
    assert "| `enabled` | bool | true |" in page


def test_the_committed_page_is_current(page):
    committed = ROOT / "docs" / "configuration.md"
    if "`speculator: eagle3`" not in page or "`backend: torch`" not in page:
        pytest.skip("the bundled plugins are not installed")
    assert committed.read_text() == page, "run `make docs`"
