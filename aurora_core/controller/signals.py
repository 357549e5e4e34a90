"""SIGINT and SIGTERM before the event loop takes them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Interruption:
    """Whether a signal has asked this process to stop."""

    asked: bool = False


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Raise KeyboardInterrupt on SIGINT and SIGTERM, and remember that it was raised.

    The memory is needed because the exception may arrive as another one: raised while a module is
    being imported, Python may wrap it in a RuntimeError.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruption.asked = True
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
