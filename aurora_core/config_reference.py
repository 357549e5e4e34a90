"""The configuration page of the documentation, made from the fields and their descriptions.

`python -m aurora_core.config_reference > docs/configuration.md` writes it; a test compares.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from aurora_core.components import run_defaults
from aurora_core.config import ComponentSection, RunConfig, Section
from aurora_core.plugins import Plugins
from aurora_core.registrations import KINDS, SECTIONS

INTRODUCTION = """\
# Configuration

`aurora run CONFIG` reads one YAML file; without a file it runs the quickstart. Values come from the
defaults below, then the file, then `--set key.path=value` on the command line, whose values are
YAML too. Unknown keys are errors. `aurora check CONFIG` prints the result and starts nothing.

The sections `speculator`, `backend`, `trace_sink` and `swap_policy` select a component by `name`;
every other key in them is an option of that component, listed at the end of this page. A bare name
stands for a section without options: `swap_policy: gate`. Relative paths start at the working
directory. Scalars follow YAML 1.2: `on` is a word, `1e-4` a number.
"""


def render(plugins: Plugins) -> str:
    """Return the page in Markdown, with the options of every component that `plugins` provides."""
    quickstart = RunConfig.quickstart()
    parts = [INTRODUCTION, "## Top level\n", _table(RunConfig)]
    for name, section in _core_sections():
        parts += [f"## `{name}`\n", f"{inspect.getdoc(section)}\n", _table(section)]
    for kind in KINDS:
        for name in sorted(plugins.registrations(kind)):
            component = plugins.resolve(kind, name)
            summary = plugins.registrations(kind)[name][0][1].summary
            parts += [f"## `{SECTIONS[kind]}: {name}`\n", f"{summary[:1].upper()}{summary[1:]}.\n"]
            parts.append(_table(component.Config, supplied=run_defaults(quickstart, kind)))
    return "\n".join(parts)


def _core_sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in RunConfig.model_fields.items():
        for candidate in (field.annotation, *get_args(field.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, Section):
                yield name, candidate


def _table(model: type[BaseModel], supplied: Collection[str] = ()) -> str:
    if not model.model_fields:
        return "No options.\n"
    rows = [("option", "type", "default", "meaning"), ("---",) * 4]
    for name, field in model.model_fields.items():
        meaning = " ".join((field.description or "").split())
        default = "from the run" if name in supplied else _default(field)
        rows.append((f"`{name}`", _type(field), default, meaning))
    return "".join(f"| {' | '.join(_cell(text) for text in row)} |\n" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(field: FieldInfo) -> str:
    return ", ".join([_type_name(field.annotation), *_bounds(field.metadata)])


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(argument) for argument in arguments)
    if origin is Annotated:
        return ", ".join([_type_name(arguments[0]), *_bounds(arguments[1:])])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is Mapping:
        return f"{_type_name(arguments[1])} by name" if arguments[1] is not Any else "mapping"
    if origin in (tuple, list, set, frozenset):
        return f"list of {_type_name(arguments[0])}"
    if annotation is type(None):
        return "null"
    if annotation is Path:
        return "path"
    if annotation is ByteSize:
        return "bytes"
    if isinstance(annotation, type) and issubclass(annotation, ComponentSection):
        return "component"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _bounds(metadata: Sequence[object]) -> Iterator[str]:
    for bound in metadata:
        if isinstance(bound, annotated_types.Ge):
            yield f">= {bound.ge}"
        elif isinstance(bound, annotated_types.Gt):
            yield f"> {bound.gt}"
        elif isinstance(bound, annotated_types.Le):
            yield f"<= {bound.le}"
        elif isinstance(bound, annotated_types.Lt):
            yield f"< {bound.lt}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, ComponentSection):
        return f"`{value.name}`"
    if isinstance(value, Section):
        return "see below"
    if isinstance(value, ByteSize):
        return value.human_readable(separator=" ")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set | frozenset):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


if __name__ == "__main__":
    loaded = Plugins()
    loaded.load()
    print(render(loaded), end="")
