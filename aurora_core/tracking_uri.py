"""Whether MLflow knows the kind of store that a URI names, without importing MLflow.

A store that cannot be reached costs a run its metrics and nothing else. A URI that no store can
ever answer to is a mistake, and is told before the run begins.
"""

from __future__ import annotations

import difflib
import importlib.metadata
from urllib.parse import urlsplit

PLUGIN_GROUP = "mlflow.tracking_store"
"""Entry points by which other packages add schemes to MLflow."""
DATABASES = ("postgresql", "mysql", "sqlite", "mssql")
OTHERS = ("file", "http", "https", "databricks", "databricks-uc", "uc")
"""Beside paths, which have no scheme."""


def check_tracking_uri(uri: str) -> None:
    """See that MLflow has a kind of store for a URI.

    Raises:
        ValueError: it has none, or a database's driver is not installed; in a sentence.
    """
    if not uri.strip():
        raise ValueError("an empty text names no store; use null for one in the run directory")
    try:
        scheme = urlsplit(uri).scheme.lower()
    except ValueError as error:
        raise ValueError(f"this is no URI: {error}; write one as sqlite:///FILE") from error
    if not scheme and "://" not in uri:
        return  # a folder, or `databricks` and the like
    kind = scheme.partition("+")[0]
    if kind in DATABASES:
        _check_driver(uri, scheme)
        return
    known = {*OTHERS, *(one.name for one in importlib.metadata.entry_points(group=PLUGIN_GROUP))}
    if scheme not in known:
        choices = sorted({*known, *DATABASES})
        close = difflib.get_close_matches(scheme, choices, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"MLflow has no store for the scheme {uri.partition(':')[0]!r}; {hint}it knows "
            f"{', '.join(choices)}"
        )


def _check_driver(uri: str, scheme: str) -> None:
    if scheme == "sqlite":  # Python's own, and the only one that is needed often
        return
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ArgumentError as error:
        reason = "SQLAlchemy knows no such database or driver, or cannot read the address"
        raise ValueError(f"{reason}; write one as {scheme}://USER:PASSWORD@HOST/NAME") from error
    except ImportError as error:
        raise ValueError(
            f"the database driver {error.name or str(error)!r} is not installed; install it into "
            "this environment with pip, or name another one"
        ) from error
