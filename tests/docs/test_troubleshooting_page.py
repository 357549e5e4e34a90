"""Entries are named by words that a message really contains, and no family of errors is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

PAGE = "docs/guides/troubleshooting.md"


@pytest.fixture(scope="module")
def texts(root) -> list[str]:
    """Every constant part of every string in the source."""

    def parts() -> Iterator[str]:
        for pattern in ("aurora_core/**/*.py", "plugins/*/aurora_*/**/*.py"):
            for path in sorted(root.glob(pattern)):
                for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield node.value

    return list(parts())


def entries(pages) -> list[str]:
    return [h.strip("`") for h in pages[PAGE].headings if h.startswith("`")]


def test_every_entry_is_a_part_of_a_message(pages, texts):
    names = entries(pages)
    assert len(names) > 40
    assert [name for name in names if not any(name in text for text in texts)] == []


def test_every_entry_says_cause_and_remedy(pages):
    for part in pages[PAGE].text.split("\n### ")[1:]:
        part = part.split("\n## ")[0]
        assert part.count("**Cause.**") == 1 and part.count("**Do.**") == 1, part.splitlines()[0]


@pytest.mark.parametrize(
    ("family", "entry"),
    [
        ("ConfigError", "is not a usable configuration"),
        ("PluginError", "no plugin provides"),
        ("TargetError", "which Aurora cannot serve"),
        ("TraceError", "the trace spool"),
        ("CheckpointError", "was made for another"),
        ("BackendError", "cannot listen on"),
    ],
)
def test_every_family_of_errors_has_an_entry(pages, family, entry):
    from aurora_core import errors

    families = {cls.__name__ for cls in errors.AuroraError.__subclasses__()}
    assert family in families and len(families) == 6
    assert entry in entries(pages)
