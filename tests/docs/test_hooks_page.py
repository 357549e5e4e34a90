"""Every hook is documented with its exact signature, and its example is a working plugin."""

from __future__ import annotations

import inspect
import re
import types

import pytest

from aurora_core import hookspecs
from aurora_core.plugins import Plugins

HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if name.startswith("aurora_") and inspect.isfunction(function)
}


def section(page, hook: str) -> str:
    return re.split(rf"^### `{hook}\(", page.text, flags=re.MULTILINE)[1].split("\n### ")[0]


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_has_a_heading_with_its_signature(pages, hook):
    signature = str(inspect.signature(HOOKS[hook])).replace("'", "")
    assert f"`{hook}{signature}`" in pages["docs/plugins/hooks.md"].headings


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_has_an_example_that_registers(pages, hook):
    [example] = re.findall(
        r"```python\n(.*?)```", section(pages["docs/plugins/hooks.md"], hook), re.S
    )
    module = types.ModuleType(f"example_of_{hook}")
    exec(example, vars(module))
    plugins = Plugins()
    plugins.register(module, "example")
    assert plugins.loaded["example"].hooks == (hook,)


def test_no_hook_is_documented_that_does_not_exist(pages):
    named = set(re.findall(r"\baurora_[a-z_]+(?=\()", pages["docs/plugins/hooks.md"].text))
    assert named == set(HOOKS)
