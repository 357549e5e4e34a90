"""From YAML text and `--set` to plain values, and from validation errors to the user's paths."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from aurora_core.errors import ConfigError


class _PlainYaml(yaml.SafeLoader):
    """YAML with the scalars of version 1.2, and without silently repeated keys.

    PyYAML follows version 1.1, where `on` and `no` are booleans, `1e-4` is a string, `1:30` is 90
    and `2026-11-30` is a date. None of these is what a person means in a configuration.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is written twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            # PyYAML lets Python's own errors through, as of `!!int abc`.
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{_describe(node.value)} is no {kind}", problem_mark=node.start_mark
            ) from error


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _PlainYaml.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"^(?:{_pattern})$"),
        ["" if letter == "\0" else letter for letter in _first],
    )

_YAML_WORDS = {"None": "null", "True": "true", "False": "false"}
"""What a configuration calls what Python calls otherwise."""


def read(path: Path) -> str:
    """Return the text of a configuration file, or raise ConfigError in one sentence."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no configuration file {str(path)!r}; correct the path, or leave it out for "
            "the quickstart"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"configuration file {str(path)!r} cannot be read: {reason}") from error


def parse(text: str, source: str) -> dict[str, Any]:
    """Return the top-level mapping of a YAML text; an empty text is an empty mapping."""
    try:
        values = _load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {_place(error)}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{source} holds {_describe(values)} where a mapping of sections is expected"
        )
    return values


def override(values: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Return a copy of `values` with one `key.path=value` applied; the value is YAML."""
    path, separator, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise ConfigError(
            f"--set {assignment!r} is not of the form key.path=value, "
            "for example learner.learning_rate=3e-4"
        )
    try:
        value = _load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {assignment!r}: the value is not YAML: {_place(error)}"
        ) from error
    result = deepcopy(values)
    section = result
    for depth, key in enumerate(keys[:-1]):
        inner = section.get(key)
        if isinstance(inner, str):
            inner = {"name": inner}  # a component section written as a bare name
        elif inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"--set {assignment!r}: {'.'.join(keys[: depth + 1])} is {_describe(inner)}, "
                "not a section"
            )
        section[key] = inner
        section = inner
    section[keys[-1]] = value
    return result


def check_texts(values: object, source: str) -> None:
    """Refuse text in plain values that no path, name or address can hold.

    YAML can write it with escapes, and the system's calls would fail on it, each in its own way.

    Args:
        values: as `parse` and `override` return them.
        source: of the values, the subject of the sentence.

    Raises:
        ConfigError: a NUL character, or half of a surrogate pair.
    """
    problems = [
        f"  {path}: {problem}" for path, text in _texts(values, "") if (problem := _flaw(text))
    ]
    if problems:
        raise ConfigError("\n".join([f"{source} is not a usable configuration:", *problems]))


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path as the user wrote it, text) of every key and every text in plain values."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield path or "the top level", str(key)
            yield from _texts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{index}]")


def _flaw(text: str) -> str | None:
    if "\0" in text:
        return f"{_describe(text)} holds a NUL character, which no path or name can; remove it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{_describe(text)} holds half of a surrogate pair, which is no character; remove it"
    return None


def _load(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_PlainYaml)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error


def explain(error: ValidationError, model: type[BaseModel], source: str, *, root: str = "") -> str:
    """Return one sentence and a line for each problem, at the paths the user wrote.

    Args:
        error: what validation raised.
        model: the model that was validated, to list its options.
        source: what was validated, the subject of the sentence.
        root: path of the section in the user's file, for models that validate a part of it.
    """
    lines = [f"  {_explain_one(item, model, root)}" for item in error.errors(include_url=False)]
    return "\n".join([f"{source} is not a usable configuration:", *lines])


def _explain_one(item: ErrorDetails, model: type[BaseModel], root: str) -> str:
    location = item["loc"]
    path = root
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    if item["type"] == "extra_forbidden":
        options = list(_model_at(model, location[:-1]).model_fields)
        close = difflib.get_close_matches(str(location[-1]), options, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{path}: unknown option; {hint}options: {', '.join(options) or 'none'}"
    if item["type"] == "missing":
        return f"{path}: required, but not set"
    message = item["msg"].removeprefix("Value error, ")
    where = f"{path}: " if path else ""
    if item["type"] == "value_error":
        return f"{where}{message}"
    if expected := _expected(item, model):
        return f"{where}{expected} is expected, not {_describe(item['input'])}"
    hint = "; put the value in quotes" if item["type"] == "string_type" else ""
    return f"{where}{message[0].lower()}{message[1:]}, not {_describe(item['input'])}{hint}"


def _expected(item: ErrorDetails, model: type[BaseModel]) -> str | None:
    """Return what to write where the validator would name a class of Python's or of this code."""
    if item["type"] == "model_type":
        section = _model_at(model, item["loc"])
        return f"{'a name, or ' if 'name' in section.model_fields else ''}a mapping of options"
    return {"dict_type": "a mapping", "path_type": "a path"}.get(item["type"])


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the model of a nested section, the outermost one where the path leaves the models."""
    for part in location:
        field = model.model_fields.get(str(part))
        candidates = (field.annotation, *getattr(field.annotation, "__args__", ())) if field else ()
        nested = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not nested:
            break
        model = nested[0]
    return model


def _describe(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = _YAML_WORDS.get(str(value), repr(value)) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _place(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else str(problem)
