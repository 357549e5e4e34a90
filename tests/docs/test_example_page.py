"""What the pages say about the example plugin is so."""

from __future__ import annotations

import re

import aurora_core.kernels
from aurora_core.interfaces import Speculator


def section(pages) -> str:
    text = pages["docs/plugins/index.md"].text
    return text.partition("## Your own speculator in an hour\n")[2].partition("\n## ")[0]


def test_kernels_it_names_exist(pages):
    [names] = re.findall(r"\*\*Write the drafter\*\* with (.*?) of `aurora", section(pages), re.S)
    kernels = re.findall(r"`(\w+)`", names)
    assert len(kernels) > 3
    assert set(kernels) <= set(aurora_core.kernels.__all__)


def test_every_method_of_a_speculator_has_its_step(pages):
    assert {name for name in Speculator.__abstractmethods__ if name not in section(pages)} == set()


def test_the_example_is_as_long_as_it_says(pages, root):
    sources = (root / "examples" / "plugin_example" / "aurora_mlp_speculator").glob("*.py")
    texts = [path.read_text() for path in sources if path.name != "__init__.py"]
    words = " ".join(section(pages).split())
    [stated] = re.findall(r"about (\d+) lines in four modules", words)
    assert len(texts) == 4
    assert abs(sum(len(text.splitlines()) for text in texts) - int(stated)) < 25


def test_links_and_commands_of_its_own_readme_lead_somewhere(root):
    folder = root / "examples" / "plugin_example"
    text = (folder / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 4
    assert [link for link in links if not (folder / link).exists()] == []
    assert "pip install ./examples/plugin_example" in text
