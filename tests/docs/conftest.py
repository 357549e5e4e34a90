"""The pages of the documentation, cut into what the tests look at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Path below the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def prose(self) -> str:
        """The text without code blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        """Contents of the code blocks of a language."""
        return [body for kind, body in _FENCE.findall(self.text) if kind == language]

    @property
    def inline_code(self) -> list[str]:
        """Contents of single backticks in the prose; a line break in them counts as a space."""
        return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", self.prose)]

    @property
    def headings(self) -> list[str]:
        """Headings of every level, without the number signs."""
        return re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)

    @property
    def anchors(self) -> set[str]:
        """What a link may name after `#`, as the usual renderers make it from a heading."""
        kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in self.headings)
        return {heading.strip().replace(" ", "-") for heading in kept}


def read_pages() -> list[Page]:
    paths = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    results = ROOT / "docs" / "results"
    return [Page(path, path.read_text("utf-8")) for path in paths if results not in path.parents]


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    """Path below the repository -> page; measurements under docs/results are left out."""
    return {page.name: page for page in read_pages()}


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT
