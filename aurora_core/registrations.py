"""What a registration hook may yield."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

from aurora_core.errors import PluginError
from aurora_core.records import Registration

Kind = Literal["speculators", "backends", "trace_sinks", "swap_policies"]
"""Kind of component, as in the hook `aurora_register_<kind>`."""

KINDS: tuple[Kind, ...] = get_args(Kind)

SECTIONS: dict[Kind, str] = {
    "speculators": "speculator",
    "backends": "backend",
    "trace_sinks": "trace_sink",
    "swap_policies": "swap_policy",
}
"""Kind -> section of the configuration that selects one."""

INTERFACES: dict[Kind, str] = {
    "speculators": "Speculator",
    "backends": "Backend",
    "trace_sinks": "TraceSink",
    "swap_policies": "SwapPolicy",
}
"""Kind -> class of `aurora_core.interfaces`."""

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_registrations(kind: Kind, yielded: Iterable[object]) -> tuple[Registration, ...]:
    """Return what one plugin's hook yielded, or raise PluginError with what is wrong about it."""
    hook = f"aurora_register_{kind}"
    found: dict[str, Registration] = {}
    for registration in yielded:
        if not isinstance(registration, Registration):
            raise PluginError(f"{hook} yields {registration!r}, which is no Registration")
        if not _NAME.fullmatch(registration.name):
            raise PluginError(
                f"{hook} registers {registration.name!r}; names are lowercase letters, digits, "
                "'_', '.' and '-', and begin with a letter"
            )
        if not _TARGET.fullmatch(registration.target):
            raise PluginError(
                f"{hook} registers {registration.name!r} as {registration.target!r}, which is not "
                "of the form 'module:Class'"
            )
        if registration.name in found:
            raise PluginError(f"{hook} registers {registration.name!r} twice")
        found[registration.name] = registration
    return tuple(found.values())
