"""config.json of a checkpoint, read strictly: who wrote it, for which target, and its flags.

Serving engines take defaults for flags that are not there, so whoever reads a checkpoint checks
all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec

CONFIG_FILE = "config.json"
SECTION = "aurora"
"""Key of what engines do not look at."""


def describe_maker(speculator: str, schema: int, target: TargetSpec) -> dict[str, object]:
    """Return the section that `check_maker` checks; a speculator may add keys to it."""
    return {
        "schema": schema,
        "speculator": speculator,
        "target_fingerprint": target.fingerprint,
        "tokenizer_fingerprint": target.tokenizer_fingerprint,
    }


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Tell what is wrong with config.json if it cannot be read in the block.

    Args:
        path: directory of the checkpoint.

    Raises:
        CheckpointError: it is not there, no JSON, or lacks something.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{CONFIG_FILE} of checkpoint {str(path)!r} is missing, unreadable or incomplete "
            f"({type(error).__name__}: {error}); publish it again"
        ) from error


def check_maker(
    path: Path, config: Mapping[str, Any], *, speculator: str, schema: int, target: TargetSpec
) -> None:
    """Check that a checkpoint was written by a speculator, and for a target.

    Args:
        path: directory of the checkpoint.
        config: its config.json.
        speculator: registered name.
        schema: version of the layout.
        target: that is served.

    Raises:
        CheckpointError: it was not.
    """
    with readable(path):
        own = config[SECTION]
        maker = (own["speculator"], own["schema"])
        made_for = {
            "target": own["target_fingerprint"],
            "tokenizer": own["tokenizer_fingerprint"],
        }
    if maker != (speculator, schema):
        raise CheckpointError(
            f"checkpoint {str(path)!r} is of speculator {maker[0]!r}, schema {maker[1]!r}, "
            f"expected {speculator!r}, schema {schema}; use the version that wrote it"
        )
    expected = {"target": target.fingerprint, "tokenizer": target.tokenizer_fingerprint}
    for name, fingerprint in expected.items():
        if made_for[name] != fingerprint:
            raise CheckpointError(
                f"checkpoint {str(path)!r} was made for another {name} than that of "
                f"{target.name!r}; start a new drafter for this target"
            )


def check_flags(path: Path, config: Mapping[str, Any], wanted: Mapping[str, object]) -> None:
    """Check that a checkpoint says what it must, but for its own section and its precision.

    Args:
        path: directory of the checkpoint.
        config: its config.json.
        wanted: what that would be if it were written now.

    Raises:
        CheckpointError: a flag is missing or differs.
    """
    for name in sorted(wanted.keys() - {"torch_dtype", SECTION}):
        if config.get(name) != wanted[name]:
            raise CheckpointError(
                f"{CONFIG_FILE} of checkpoint {str(path)!r} has {name} = {config.get(name)!r}, "
                f"expected {wanted[name]!r}; publish it again"
            )
