"""Why a version is live, or is not: the verdicts of a run, replayed from their logged evidence."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from aurora_core.components import build_component
from aurora_core.config import ComponentSection, RunConfig
from aurora_core.errors import ConfigError
from aurora_core.policies.guard import Guard
from aurora_core.records import Evidence, Verdict
from aurora_core.wire import from_dict

if TYPE_CHECKING:
    from aurora_core.interfaces import SwapPolicy
    from aurora_core.plugins import Plugins

_LABELS = {"swap": "went live", "engine_changed": "the engine changed by itself"}


def read_config(run_dir: Path) -> RunConfig:
    """Return the configuration that a run directory was last used with.

    Raises:
        ConfigError: there is no such run, or its `resolved.yaml` cannot be read.
    """
    path = run_dir / "resolved.yaml"
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
        return RunConfig.model_validate(document["config"])
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no run in {str(run_dir)!r} (no resolved.yaml); give the directory of a run"
        ) from error
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read as the configuration of a run; start the run once more "
            "to write it anew"
        ) from error


def build_policy(config: RunConfig, plugins: Plugins, *, name: str | None = None) -> SwapPolicy:
    """Return the judge of a run with its guard, or another one in its place.

    Args:
        config: of the run.
        plugins: loaded plugins.
        name: of a registered policy with its default options; None takes the run's own.

    Raises:
        PluginError, ConfigError: there is no such policy, or its options are bad.
    """
    section = config.swap_policy if name is None else ComponentSection(name=name)
    return Guard(build_component(plugins, "swap_policies", section), config.guard)


def explain(run_dir: Path, version: int, policy: SwapPolicy) -> str:
    """Return every decision on a version with its numbers, each one decided once more.

    Args:
        run_dir: directory of a run.
        version: number of a version.
        policy: decides again on the logged evidence.

    Raises:
        ConfigError: nothing was decided on that version.
    """
    lines = [one for one in read_verdicts(run_dir) if one.get("version") == version]
    if not lines:
        verdicts = read_verdicts(run_dir)
        known = sorted({one["version"] for one in verdicts if (one.get("version") or 0) > 0})
        raise ConfigError(
            f"nothing was decided on version {version} in {str(run_dir)!r}; there are verdicts on "
            f"{', '.join(map(str, known)) or 'no version'}"
        )
    return "\n".join(part for line in lines for part in _describe(line, policy))


def read_verdicts(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of `verdicts.jsonl`, oldest first; none where nothing was decided yet.

    Raises:
        ConfigError: the file cannot be read, or a line of it is damaged.
    """
    path = run_dir / "verdicts.jsonl"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read: {error.strerror}; give the directory of a run"
        ) from error
    found: list[dict[str, Any]] = []
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not {"kind", "time"} <= record.keys():
                raise ValueError("not a record")
            found.append(record)
        except ValueError as error:
            if not line.endswith(b"\n"):
                break  # the running controller is writing it
            raise ConfigError(
                f"line {number} of {str(path)!r} is damaged; remove that line"
            ) from error
    return found


def _describe(line: Mapping[str, Any], policy: SwapPolicy) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["time"]))
    if "verdict" not in line:
        reason = line.get("reason", "")
        label = _LABELS.get(line["kind"], line["kind"])
        return [f"{when}  {label}{f': {reason}' if reason else ''}"]
    logged = line["verdict"]
    parts = [f"{when}  {logged['action']}: {logged['reason']}"]
    parts += _numbers(logged.get("numbers", {}))
    if line["kind"] == "verdict":
        parts.append(f"    replayed: {_replay(line, policy)}")
    return parts


def _numbers(numbers: Mapping[str, float]) -> list[str]:
    width = max(map(len, numbers), default=0)
    return [f"    {name:<{width}}  {value:.6g}" for name, value in numbers.items()]


def _replay(line: Mapping[str, Any], policy: SwapPolicy) -> str:
    try:
        evidence = from_dict(Evidence, line["evidence"])
        logged = from_dict(Verdict, line["verdict"])
    except (ValidationError, KeyError):
        return "not possible: the evidence was written by another release"
    verdict = policy.decide(evidence)
    if verdict == logged:
        return "the same verdict"
    if verdict.action == logged.action:
        return f"the same action for another reason: {verdict.reason}"
    return f"DIFFERENT: {verdict.action}: {verdict.reason}"
