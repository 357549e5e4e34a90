"""Aurora keeps the drafter of a speculative-decoding server trained on the traffic it serves."""

import pluggy

__version__ = "0.1.0"

hookspec = pluggy.HookspecMarker("aurora")
hookimpl = pluggy.HookimplMarker("aurora")
"""Decorator for a plugin's hook implementations; see `aurora_core.hookspecs`."""
