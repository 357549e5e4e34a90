"""Commands, options and settings that the documentation mentions exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

import click
import pytest
import typer

from aurora_core import config_source
from aurora_core.cli.application import create_application
from aurora_core.config import RunConfig


def commands(pages) -> Iterator[tuple[str, list[str]]]:
    """Yield (page, words) of every shell command, of code blocks and of single backticks."""
    for page in pages.values():
        blocks = [block.replace("\\\n", " ") for block in page.blocks("sh")]
        lines = [line for block in blocks for line in block.splitlines()]
        for line in (*lines, *page.inline_code):
            words = shlex.split(line, comments=True) if line.count("'") % 2 == 0 else []
            if words and (words[0].startswith(".venv/bin/") or words[0] in ("aurora", "make")):
                yield page.name, [words[0].removeprefix(".venv/bin/"), *words[1:]]


def aurora_commands(pages) -> list[tuple[str, list[str]]]:
    found = [(page, words[1:]) for page, words in commands(pages) if words[0] == "aurora"]
    for page, words in commands(pages):
        if words[0] == "make":
            given = [word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")]
            found += [(page, [words[1], *shlex.split(text)]) for text in given]
    assert len(found) > 30, "the documentation shows how to use the command line"
    return found


@pytest.fixture(scope="module")
def application() -> click.Command:
    # Help lists the commands of the bundled plugins as well.
    return typer.main.get_command(create_application(["--help"]))


def find(application: click.Command, words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the innermost command that some words name, and the words after it."""
    command, rest = application, list(words)
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        known = command.commands
        assert rest[0] in known, f"there is no command {rest[0]!r} in {sorted(known)}"
        command, rest = known[rest[0]], rest[1:]
    return command, rest


def test_every_command_and_option_exists(pages, application):
    for page, words in aurora_commands(pages):
        command, rest = find(application, words)
        options = {name for parameter in command.params for name in parameter.opts}
        options |= {name for parameter in command.params for name in parameter.secondary_opts}
        used = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert used <= options, f"{page}: aurora {' '.join(words)}: no option {used - options}"


def test_every_subcommand_is_documented(pages, application):
    shown = {words[0] for _, words in aurora_commands(pages) if words}
    assert set(application.commands) <= shown


def test_every_setting_given_to_set_is_usable(pages):
    checked = 0
    for _, words in aurora_commands(pages):
        assignments = [value for flag, value in pairwise(words) if flag == "--set"]
        if "swap_policy=patient" in assignments:  # the plugin that the page writes
            continue
        RunConfig.quickstart(assignments)
        checked += len(assignments)
    assert checked > 5


def test_every_make_target_exists(pages, root):
    makefile = (root / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for page, words in commands(pages):
        if words[0] == "make" and len(words) > 1:
            assert words[1] in targets, f"{page}: make {words[1]}"


def test_the_two_commands_of_the_readme_are_those_of_continuous_integration(pages, root):
    shown = {tuple(words[:2]) for page, words in commands(pages) if page == "README.md"}
    assert {("make", "run"), ("make", "test")} <= shown
    assert "make test" in (root / ".ci" / "run").read_text()


def test_every_yaml_example_is_a_usable_configuration(pages):
    examples = [(page, block) for page in pages.values() for block in page.blocks("yaml")]
    assert len(examples) >= 3
    for page, block in examples:
        values = config_source.parse(block, page.name)
        RunConfig.model_validate({"speculator": "eagle3", "backend": "torch"} | values)


NOT_SETTINGS = {
    "learner.log",
    *(f"learner.{key}" for key in ("state", "steps", "tokens_trained", "restarts", "metrics")),
}
"""A file, and keys of report.json, that begin with the name of a section."""


def test_settings_named_in_the_text_exist(pages):
    """`learner.publish_every_s` and the like, where the first word is a section."""
    known = settings_by_section(pages["docs/configuration.md"].text)
    named = re.compile(r"([a-z_]+)\.([a-z_]+)(?:: .*)?")
    found = [
        (page.name, match[1], match[2])
        for page in pages.values()
        for code in page.inline_code
        if (match := named.fullmatch(code)) and match[1] in known
    ]
    assert len(found) > 30
    unknown = {
        f"{page}: {section}.{option}"
        for page, section, option in found
        if option not in known[section] and f"{section}.{option}" not in NOT_SETTINGS
    }
    assert unknown == set()


def settings_by_section(text: str) -> dict[str, set[str]]:
    """Return section -> options, components of all names together, from the generated page."""
    found: dict[str, set[str]] = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        section = part.splitlines()[0].strip("`").partition(":")[0]
        found.setdefault(section, {"name"}).update(
            re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
        )
    return found


def test_environment_variables_are_documented(pages, root):
    sources = [*root.glob("aurora_core/**/*.py"), *root.glob("plugins/*/aurora_*/**/*.py")]
    used = {
        name
        for path in sources
        for name in re.findall(r"[\"'$](AURORA_[A-Z0-9_]+)", path.read_text("utf-8"))
    }
    text = "".join(page.text for page in pages.values())
    assert {name for name in used if name not in text} == set()
    assert len(used) >= 4
