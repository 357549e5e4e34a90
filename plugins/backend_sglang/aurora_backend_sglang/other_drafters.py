"""Drafters of SGLang's own, which a run learns from and cannot replace while they serve.

What they propose is recorded as drafts of no version, and an EAGLE-3 drafter is learned from it,
published and judged. SGLang takes up another algorithm only when it starts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from aurora_backend_sglang.config import SglangBackendOptions
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan

Algorithm = Literal["EAGLE3", "EAGLE", "NGRAM", "STANDALONE"]

ALGORITHM = "--speculative-algorithm"
_OTHERS: tuple[Algorithm, ...] = ("EAGLE", "NGRAM", "STANDALONE")
_BELONGS = "--speculative-"
"""What the arguments of an algorithm begin with."""
_TAKEN_AWAY = "what it would return is recorded and taken away again"
NOT_BESIDE = {
    "--enable-return-hidden-states": _TAKEN_AWAY,
    "--return-hidden-states-mode": _TAKEN_AWAY,
    "--enable-return-aux-hidden-states": "SGLang would not draft then",
    "--speculative-adaptive": "Aurora's half has taken that choice over",
    "--speculative-adaptive-config": "Aurora's half has taken that choice over",
}
"""Arguments that these algorithms cannot have beside Aurora's half, and why."""


def algorithm_of(arguments: Sequence[str]) -> Algorithm:
    """Return what drafts in a server with these further arguments, in SGLang's word."""
    for name, value in _pairs(arguments):
        if name == ALGORITHM:
            for other in _OTHERS:
                if value.upper() == other:
                    return other
    return "EAGLE3"


def may_name(argument: str, algorithm: Algorithm) -> bool:
    """Return whether an argument that Aurora sets itself for EAGLE-3 is the user's own here."""
    return algorithm != "EAGLE3" and argument.startswith(_BELONGS)


def check_beside(argument: str, algorithm: Algorithm) -> None:
    """Raise BackendError for an argument that does not go with recording such drafts."""
    reason = NOT_BESIDE.get(argument)
    if algorithm == "EAGLE" and reason == _TAKEN_AWAY:
        return  # its rows are where SGLang has them
    if algorithm != "EAGLE3" and reason is not None:
        raise BackendError(
            f"`backend.arguments` names {argument!r} beside {algorithm}, and {reason}; leave it out"
        )


def how_to_go_over(arguments: Sequence[str], algorithm: Algorithm) -> str:
    """Return the end of a sentence: what makes a version of EAGLE-3 live."""
    kept: list[str] = []
    belongs = False
    for argument in arguments:
        if argument.startswith("--"):
            belongs = _name(argument).startswith(_BELONGS)
        if not belongs:
            kept.append(argument)
    return (
        f"SGLang drafts by {algorithm} and takes up EAGLE-3 only when it starts, so end the run "
        f"and start it again with `--set 'backend.arguments={json.dumps(kept)}'`"
    )


def check_nothing_live(plan: ServePlan, options: SglangBackendOptions) -> None:
    """Raise BackendError if a run would have to serve a version in such a server."""
    algorithm = algorithm_of(options.arguments)
    if algorithm != "EAGLE3" and plan.initial_version is not None:
        raise BackendError(
            f"version {plan.initial_version.version} is live in this run directory, and SGLang "
            f"with {algorithm} cannot serve it; take {ALGORITHM} out of `backend.arguments`, or "
            "set another `run_dir`"
        )


def _pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return every option with its value, which may stand behind it; empty for none."""
    found = []
    for number, argument in enumerate(arguments):
        _, equals, value = argument.partition("=")
        behind = "".join(arguments[number + 1 : number + 2])
        found.append((_name(argument), value if equals else behind))
    return found


def _name(argument: str) -> str:
    return argument.partition("=")[0].replace("_", "-")
