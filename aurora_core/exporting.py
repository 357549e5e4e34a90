"""A version's files, where and as another engine loads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError

from aurora_core.errors import CheckpointError, ConfigError
from aurora_core.versions import VersionStore

_RECORD = "version.json"


def export_version(
    store: VersionStore,
    version: int,
    folder: Path,
    *,
    formats: Iterable[str],
    wanted: str | None,
    converters: Mapping[str, Callable[[Path, Path], None]] | None = None,
) -> str:
    """Copy a version's checkpoint, or convert it; return its format.

    What a speculator publishes is valid in all of its formats at once, so it is only copied for
    these, after the weights were checked against their checksum.

    Args:
        store: of the run.
        version: number.
        folder: is created; must be empty if it exists.
        formats: of the speculator that made the version.
        wanted: one of them or of `converters`; None takes an engine's layout before our own.
        converters: further formats, with what writes a version's directory into a folder.

    Raises:
        ConfigError: the format is none of them, or the folder cannot be filled.
        CheckpointError: the version is missing or damaged, or does not fit the format.
    """
    conversions = converters or {}
    known = sorted(formats, key=lambda name: (name == "module", name))
    chosen = known[0] if wanted is None else wanted
    if chosen not in known and chosen not in conversions:
        raise ConfigError(
            f"versions of this speculator have no format {chosen!r}; there is "
            f"{', '.join([*known, *sorted(conversions)])}"
        )
    draft = store.verify(version)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{str(folder)!r} is not empty; name a folder that is, or a new one")
        if chosen in conversions:
            conversions[chosen](Path(draft.path), folder)
            return chosen
        for file in sorted(Path(draft.path).iterdir()):
            if file.name != _RECORD and not file.name.startswith("."):
                shutil.copyfile(file, folder / file.name)
    except (OSError, SafetensorError) as error:  # the latter is how safetensors tells of a disk
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"version {version} cannot be copied to {str(folder)!r}: {reason}"
        ) from error
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"version {version} has no config.json; publish it again")
    return chosen
