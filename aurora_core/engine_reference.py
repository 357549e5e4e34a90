"""The page that compares engines, made from the capabilities that backends declare.

`python -m aurora_core.engine_reference > docs/guides/engines.md` writes it; a test compares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aurora_core.interfaces import Backend
from aurora_core.plugins import Plugins

INTRODUCTION = """\
# Engines

What each backend declares, with its default options. A run compares it with what its speculator
needs and refuses what does not fit, before anything is loaded. The words are those of
[Concepts](../concepts.md); a rule of verification that is `greedy_always` ignores the temperature
of a request, so sampled answers are not what they would be without speculation.

An engine without several lineages serves one kind of drafter at a time: a configuration with
`lineages` is refused. [Several drafters at once](lineages.md) says what takes their place there.

"""

_SWAPS = {
    "none": "not while serving",
    "restart": "when the engine starts",
    "pause": "while all requests wait",
    "live": "between two steps",
}


def render(plugins: Plugins) -> str:
    """Return the page in Markdown, with every backend that `plugins` provides."""
    registered = plugins.registrations("backends")
    found = {name: capabilities(_default(plugins, name)) for name in sorted(registered)}
    labels = next(iter(found.values())).keys() if found else ()
    rows = [["", *(f"`{name}`" for name in found)], ["---"] * (len(found) + 1)]
    rows += [[label, *(column[label] for column in found.values())] for label in labels]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    notes = [f"* `{name}`: {registered[name][0][1].summary}." for name in found]
    return INTRODUCTION + table + "\n" + "\n".join(notes) + "\n"


def capabilities(backend: Backend) -> Mapping[str, str]:
    """Return label -> value of everything that a backend declares."""
    provides = backend.provides
    return {
        "features of committed tokens": _words(provides.features),
        "features of rejected drafts": _yes(provides.branch_rows),
        "shapes of proposals": _words(provides.topologies),
        "checkpoint formats": _words(provides.formats),
        "drafters are swapped": _SWAPS[provides.hot_swap],
        "rules of verification": _words(provides.verification_rules),
        "drafters side by side": str(provides.num_resident_drafters),
        "a request can name its drafter": _yes(provides.request_routing),
        "several lineages at once": _yes(provides.holds_lineages),
        "a drafter can draft in the shadow": _yes(provides.shadow_drafting),
    }


def _default(plugins: Plugins, name: str) -> Backend:
    component = plugins.resolve("backends", name)
    backend = component(component.Config())
    assert isinstance(backend, Backend)
    return backend


def _words(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    loaded = Plugins()
    loaded.load()
    print(render(loaded), end="")
