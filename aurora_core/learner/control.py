"""The learner's ends of its pipes: events out, commands in, signals."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time

from pydantic import ValidationError

from aurora_core.learner.protocol import Event, Fresh, Live, Turn, event_line, read_command

log = logging.getLogger(__name__)

_SLICE_S = 0.05


class Control:
    """What the controller wants: read from a pipe by a thread, and from signals.

    A stop command, the end of the pipe, SIGTERM and SIGINT ask for a stop, and so does an event
    that cannot be written because nobody reads any more. The request is a plain flag: a signal
    handler that took a lock, as that of `threading.Event`, could meet it in its own thread's hands.
    """

    def __init__(self, live_version: int | None = None) -> None:
        self.is_stopping = False
        """Whether the learner is to finish its step and end."""
        self.live_version = live_version
        """Version that the engine drafts with; None for none."""
        self.has_turn = True
        """Whether to train now; otherwise the machine is another learner's for a while."""
        self._fresh_until = 0.0

    @property
    def wants_fresh(self) -> bool:
        """Whether to train on new traces alone, because the traffic has changed."""
        return time.monotonic() < self._fresh_until

    def prefer_fresh(self, seconds: float) -> None:
        """Train on new traces alone for so long."""
        self._fresh_until = time.monotonic() + seconds

    def stop(self) -> None:
        """Ask the learner to stop; safe in a signal handler."""
        self.is_stopping = True

    def rest(self, seconds: float) -> None:
        """Wait, but no longer than until a stop is asked for."""
        deadline = time.monotonic() + seconds
        while not self.is_stopping and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_S))

    def listen(self, descriptor: int) -> None:
        """Start reading commands until the end of the pipe."""
        threading.Thread(target=self._read, args=(descriptor,), daemon=True).start()

    def catch_signals(self) -> None:
        """Let SIGTERM and SIGINT stop the learner; call it from the main thread.

        Lightning puts its own handlers in place when it starts, so this is called again then.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())

    def _read(self, descriptor: int) -> None:
        # Not sys.stdin: a thread that waits in its buffer blocks the interpreter's exit.
        pending = b""
        while chunk := _read_some(descriptor):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._obey(line)
        self.stop()

    def _obey(self, line: bytes) -> None:
        try:
            command = read_command(line)
        except ValidationError:
            log.warning("not a command: %r", line[:200])
            return
        match command:
            case Live(version=version):
                self.live_version = version
            case Fresh(seconds=seconds):
                self.prefer_fresh(seconds)
            case Turn(granted=granted):
                self.has_turn = granted
            case _:
                self.stop()


class EventWriter:
    """Writes events as lines, from any thread. Without a stream it drops them.

    Args:
        stream: unbuffered; None in the processes that a multi-device launcher adds.
        control: told to stop when nobody reads the events.
    """

    def __init__(self, stream: io.RawIOBase | None, control: Control) -> None:
        self._stream, self._control = stream, control
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Write one event; returns when the pipe has taken it."""
        with self._lock:
            if self._stream is None:
                return
            try:
                # A signal may cut a long write short.
                rest = memoryview(event_line(event))
                while rest:
                    rest = rest[self._stream.write(rest) :]
            except BrokenPipeError:
                self._stream = None
                self._control.stop()


def _read_some(descriptor: int) -> bytes:
    """Return what has arrived; nothing at the end of the pipe, or if it was never open."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def claim_stdout() -> io.RawIOBase:
    """Return a private stream to stdout; everybody else's prints go to stderr from now on."""
    sys.stdout.flush()
    stream = io.FileIO(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream
