"""The example plugin, installed by pip into a fresh environment: found, named, selectable."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from aurora_core.testing.tiny_target import make_tiny_target

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin_example"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment that has the example and what we run with."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    [packages] = folder.glob("lib/python*/site-packages")
    # What is installed here, below what will be installed there. Nothing is downloaded.
    known = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    lines = [f"import site; site.addsitedir({path!r})" for path in known]
    (packages / "outer.pth").write_text("\n".join(lines) + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    install += ["--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*install, str(EXAMPLE)], check=True)
    assert (packages / "aurora_mlp_speculator" / "plugin.py").is_file()
    return python


def aurora(python: Path, *words: str, folder: Path) -> str:
    """Run a command from a folder without sources, with nothing on the path but installations."""
    finished = subprocess.run(
        [python, "-I", "-m", "aurora_core", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_it_is_listed_with_its_speculator(environment, tmp_path):
    listing = json.loads(aurora(environment, "plugins", "--json", folder=tmp_path))
    [plugin] = [plugin for plugin in listing["loaded"] if plugin["name"] == "mlp"]
    assert plugin["distribution"] == "aurora-mlp-speculator"
    assert plugin["version"] == "0.1.0"
    [speculator] = plugin["components"]["speculators"]
    assert speculator["name"] == "mlp"


def test_a_configuration_can_select_it(environment, tmp_path):
    target = make_tiny_target(tmp_path / "target")
    settings = [f"target={target}", "speculator=mlp", "speculator.num_drafted=2", "backend=torch"]
    words = [word for setting in settings for word in ("--set", setting)]
    shown = aurora(environment, "check", *words, folder=tmp_path)
    assert "aurora_mlp_speculator.speculator:MlpSpeculator" in shown
    assert "num_drafted: 2" in shown
