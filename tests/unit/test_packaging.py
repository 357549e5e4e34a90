"""The three distributions fit together, and the tested versions fit what they ask for."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from aurora_core import __version__

ROOT = Path(__file__).parents[2]
PLUGINS = {path.parent.name: path for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))}
PROJECTS = {"core": ROOT / "pyproject.toml", **PLUGINS}


def project(name: str) -> dict:
    return tomllib.loads(PROJECTS[name].read_text())["project"]


def requirements(name: str) -> Iterator[Requirement]:
    described = project(name)
    groups = [described["dependencies"], *described.get("optional-dependencies", {}).values()]
    for group in groups:
        yield from map(Requirement, group)


def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pins}


@pytest.mark.parametrize("name", PROJECTS)
def test_every_requirement_has_a_tested_version_that_fits(name):
    pins = constraints()
    for requirement in requirements(name):
        pinned = canonicalize_name(requirement.name)
        if pinned == "aurora-core":
            continue
        assert pinned in pins, f"{requirement} is not in constraints.txt"
        assert requirement.specifier.contains(pins[pinned]), f"{requirement}, {pins[pinned]}"


STANDARD_LIBRARY = set(sys.stdlib_module_names)
ENGINES = {"vllm"}
"""Servers that import a plugin's in-engine half in an environment of their own."""
PACKAGES = {
    "core": ROOT / "aurora_core",
    "eagle": ROOT / "plugins" / "eagle" / "aurora_eagle",
    "backend_torch": ROOT / "plugins" / "backend_torch" / "aurora_backend_torch",
    "backend_vllm": ROOT / "plugins" / "backend_vllm" / "aurora_backend_vllm",
}


def imported_modules(package: Path) -> dict[str, Path]:
    """Return top-level module -> a file that imports it, for modules from elsewhere."""
    found = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            found |= {name.partition(".")[0]: path for name in names}
    ours = {"aurora_core", package.name}
    return {name: path for name, path in found.items() if name not in ours | STANDARD_LIBRARY | ENGINES}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_import_is_of_a_declared_requirement(name):
    declared = {canonicalize_name(requirement.name) for requirement in requirements(name)}
    providers = importlib.metadata.packages_distributions()
    undeclared = {
        f"{module} in {path.relative_to(ROOT)}"
        for module, path in imported_modules(PACKAGES[name]).items()
        if not {canonicalize_name(one) for one in providers.get(module, [module])} & declared
    }
    assert undeclared == set()


def test_constraints_name_no_local_builds():
    assert all(version.local is None for version in constraints().values())


@pytest.mark.parametrize("name", PLUGINS)
def test_plugins_take_this_core_and_register_a_module_that_exists(name):
    core = next(one for one in requirements(name) if one.name == "aurora-core")
    assert core.specifier.contains(__version__)
    assert project(name)["version"] == __version__
    for target in project(name)["entry-points"]["aurora_core.plugins"].values():
        assert importlib.import_module(target).__file__.startswith(str(ROOT))


def test_every_distribution_asks_for_the_same_python():
    assert {project(name)["requires-python"] for name in PROJECTS} == {">=3.11"}


def test_make_installs_every_plugin():
    text = (ROOT / "Makefile").read_text()
    installed = set(re.findall(r"-e \./plugins/(\w+)", text))
    assert installed == set(PLUGINS)
    assert set(re.findall(r"plugins/(\w+)/pyproject.toml", text)) == set(PLUGINS)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_machine_without_a_fit_python_is_told_in_one_sentence(tmp_path):
    for path in PROJECTS.values():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    finished = subprocess.run(
        ["make", "--no-print-directory", "install", "PYTHON=/none/python3.11"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 2
    assert finished.stderr.startswith(
        "Aurora needs Python 3.11 or newer with the module venv, and none was found; install it"
    )
    assert not (tmp_path / ".venv").exists()
