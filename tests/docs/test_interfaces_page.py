"""The interfaces page has every method with its exact signature."""

from __future__ import annotations

import inspect
import re

import pytest

from aurora_core import interfaces

CLASSES = (
    "Speculator",
    "Drafter",
    "Backend",
    "TraceSink",
    "TraceWriter",
    "TraceReader",
    "SwapPolicy",
)


def signatures(name: str) -> list[str]:
    """Return the public methods and properties of a class as headings show them."""
    found = []
    for member, value in vars(getattr(interfaces, name)).items():
        if member.startswith("_"):
            continue
        if isinstance(value, classmethod):
            value = value.__func__
        if isinstance(value, property):
            found.append(f"{member} -> {inspect.signature(value.fget).return_annotation}")
        elif inspect.isfunction(value):
            signature = re.sub(r"^\((self|cls)(, )?", "(", str(inspect.signature(value)))
            kind = "async " if inspect.iscoroutinefunction(value) else ""
            found.append(f"{kind}{member}{signature}")
    return [text.replace("'", "") for text in found]


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_has_a_heading_with_its_signature(pages, name):
    headings = pages["docs/plugins/interfaces.md"].headings
    wanted = {f"`{signature}`" for signature in signatures(name)}
    assert wanted and wanted - set(headings) == set()


def test_no_method_is_documented_that_does_not_exist(pages):
    documented = {h for h in pages["docs/plugins/interfaces.md"].headings if h.startswith("`")}
    existing = {f"`{signature}`" for name in CLASSES for signature in signatures(name)}
    assert documented - existing == set()


def test_class_attributes_of_a_speculator_are_documented(pages):
    text = pages["docs/plugins/interfaces.md"].text
    declared = set(interfaces.Speculator.__annotations__)
    assert set(re.findall(r"^\| `(\w+)` \| `", text, re.MULTILINE)) == declared


def test_every_action_of_a_verdict_is_explained(pages):
    from typing import get_args, get_type_hints

    from aurora_core.records import Verdict

    text = pages["docs/plugins/interfaces.md"].text.split("## SwapPolicy")[1]
    for action in get_args(get_type_hints(Verdict)["action"]):
        assert f"`{action}`" in text
