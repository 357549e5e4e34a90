"""The page about engines follows what backends declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from aurora_core.engine_reference import capabilities, render
from aurora_core.plugins import Plugins
from aurora_core.testing.fake_backend import FakeBackend

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "engines.md"


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    plugins = Plugins()
    plugins.load()
    return plugins


def columns(page: str) -> dict[str, dict[str, str]]:
    """Return backend -> label -> value of the table in a page."""
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {
        name: {row[0]: row[index] for row in rows} for index, name in enumerate(names) if index > 0
    }


def test_the_page_says_of_every_engine_here_what_it_declares(plugins):
    written, found = columns(PAGE.read_text()), columns(render(plugins))
    assert "`torch`" in found
    for name, column in found.items():
        assert written.get(name) == column, f"{name}: run `make docs`"


def test_every_declared_capability_has_a_line():
    from dataclasses import fields

    from aurora_core.records import Provides

    backend = FakeBackend(FakeBackend.Config())
    assert len(capabilities(backend)) == len(fields(Provides))


def test_values_read_as_a_person_writes_them():
    values = capabilities(FakeBackend(FakeBackend.Config()))
    assert values["shapes of proposals"] == "`chain`, `tree`"
    assert values["drafters are swapped"] == "between two steps"
    assert values["a request can name its drafter"] == "yes"
