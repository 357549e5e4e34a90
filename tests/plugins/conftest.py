"""Distributions that are laid out as pip would: nothing of `importlib.metadata` is patched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Put folders of fake distributions on the path, as `install("good", "broken")`."""

    def add(*folders: str) -> None:
        for folder in folders:
            assert (HERE / folder).is_dir(), folder
            monkeypatch.syspath_prepend(str(HERE / folder))

    yield add
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{HERE}/"):
            del sys.modules[name]
