"""SIGTERM, made to mean what Ctrl-C means."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, for work before the event loop takes the signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
