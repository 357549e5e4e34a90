"""The `aurora` command: its subcommands, those of plugins, and what becomes of errors.

Exit codes: 0 done, 1 crashed (with a traceback) or a run that ended badly (one sentence on stderr),
2 something the user can mend (one sentence on stderr), 130 interrupted.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from aurora_core import __version__
from aurora_core.cli import (
    comparing,
    doctor,
    experiment,
    judging,
    measure,
    plugins,
    run,
    target,
    versions,
)
from aurora_core.errors import AuroraError

_COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "check": run.check,
    "bench": measure.bench,
    "replay": measure.replay,
    "versions": versions.versions,
    "explain": judging.explain,
    "promote": judging.promote,
    "rollback": judging.rollback,
    "compare": comparing.compare,
    "export": comparing.export,
    "ui": versions.ui,
    "doctor": doctor.doctor,
}
_GROUPS: dict[str, typer.Typer] = {
    "experiment": experiment.application,
    "plugins": plugins.application,
    "target": target.application,
}
_OF_THE_MACHINE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO}
    | {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Permissions, disks that are full or fail, and paths that lead nowhere: no mistake in the code,
wherever they are met."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        create_application(arguments)(arguments, prog_name="aurora")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        return report_error(error)
    return 0


def create_application(arguments: Sequence[str]) -> typer.Typer:
    """Return the application for one command line.

    Commands of plugins are loaded only where they matter: for an unknown command and for help.
    """
    application = typer.Typer(
        name="aurora",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_root)
    for name, command in _COMMANDS.items():
        application.command(name)(command)
    for name, group in _GROUPS.items():
        application.add_typer(group, name=name)
    command_name = next((word for word in arguments if not word.startswith("-")), None)
    if command_name not in _COMMANDS and command_name not in _GROUPS:
        plugins.add_commands(application)
    return application


def report_error(error: BaseException) -> int:
    """Tell the user about an error that ended a command, and return the exit code.

    Task groups wrap errors in groups: one that holds nothing but user errors is a user error.
    """
    if isinstance(error, BaseExceptionGroup):
        interrupts, others = error.split(KeyboardInterrupt)
        if interrupts is not None and others is None:
            return 130
    if isinstance(error, KeyboardInterrupt):
        return 130
    messages = _user_messages(error)
    if messages is None:
        traceback.print_exception(error)
        return 1
    for message in dict.fromkeys(messages):
        print(f"aurora: {message}", file=sys.stderr)
    return 2


def _user_messages(error: BaseException) -> list[str] | None:
    """Return the sentences of an error that is the user's to mend, None for any other."""
    if isinstance(error, AuroraError):
        return [str(error)]
    if isinstance(error, OSError) and error.filename and error.errno in _OF_THE_MACHINE:
        return [
            f"{str(error.filename)!r} cannot be used: {error.strerror}; correct that, or use "
            "another folder"
        ]
    if not isinstance(error, BaseExceptionGroup):
        return None
    messages: list[str] = []
    for inner in error.exceptions:
        found = _user_messages(inner)
        if found is None:
            return None
        messages += found
    return messages


def _show_version(value: bool) -> None:
    if value:
        print(f"aurora {__version__}")
        raise typer.Exit


def _root(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what happens inside to stderr.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Keep the drafter of a speculative-decoding server trained on the traffic it serves."""
    # Idle OpenMP threads must not spin while the other process computes.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
