"""The life of one engine process.

    main thread     loads the target, then runs the event loop of the HTTP server
    engine thread   decodes; started before the first request is accepted, joined at the end
    stdin thread    waits for end of file, which means that the controller is gone

Every reason to stop becomes SIGTERM to this process: while loading it ends the process at once,
while serving it ends the server, then the engine. stdout carries events and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from aurora_backend_torch.launch import (
    TOKEN_VARIABLE,
    USER_ERROR,
    EngineLaunch,
    event_line,
    read_launch,
)
from aurora_core.errors import AuroraError

if TYPE_CHECKING:
    import socket

    from aurora_backend_torch.config import TorchBackendOptions
    from aurora_backend_torch.engine import Engine
    from aurora_backend_torch.tokenizer import TargetTokenizer

logger = logging.getLogger(__name__)

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str]) -> int:
    """Serve the plan named on the command line; return the exit status."""
    events = _claim_stdout()
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    for quiet in ("httpx", "uvicorn.error"):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    for number in _STOP_SIGNALS:
        signal.signal(number, _stop_loading)
    try:
        if len(arguments) != 1:
            raise AuroraError("usage: python -m aurora_backend_torch PLAN.json")
        _stop_with_stdin()
        _serve(read_launch(Path(arguments[0])), events)
    except AuroraError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return USER_ERROR
    _write(events, event_line("stopped"))
    return 0


def _serve(launch: EngineLaunch, events: TextIO) -> None:
    from aurora_backend_torch.server import url_of
    from aurora_core.engine_process.ports import bind

    sock = bind(launch.options.host, launch.options.port)
    with sock:
        _load_and_serve(launch, events, sock, url_of(sock))


def _load_and_serve(launch: EngineLaunch, events: TextIO, sock: socket.socket, url: str) -> None:
    # Heavy imports come late: a taken port or a missing tokenizer is told within seconds.
    from aurora_backend_torch.tokenizer import TargetTokenizer

    tokenizer = TargetTokenizer.read(Path(launch.plan.target.path))

    from aurora_backend_torch.build import build_engine

    engine = build_engine(launch.plan, launch.options)
    engine.start()
    try:
        asyncio.run(
            _run_server(
                engine,
                tokenizer,
                launch.options,
                sock,
                lambda: _write(events, event_line("ready", url=url)),
            )
        )
    finally:
        for number in _STOP_SIGNALS:  # traces handed over are written before the process ends
            signal.signal(number, signal.SIG_IGN)
        engine.shutdown()
        logger.info("the engine has stopped")


async def _run_server(
    engine: Engine,
    tokenizer: TargetTokenizer,
    options: TorchBackendOptions,
    sock: socket.socket,
    on_ready: Callable[[], None],
) -> None:
    from aurora_backend_torch.server import HttpServer

    server = HttpServer(
        engine=engine,
        tokenizer=tokenizer,
        options=options,
        control_token=os.environ.get(TOKEN_VARIABLE, ""),
    )
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, server.stop)
    await server.run(sock, on_ready)


def _claim_stdout() -> TextIO:
    """Return the real stdout, and send what libraries print there to the log."""
    sys.stdout.flush()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _write(events: TextIO, line: str) -> None:
    try:
        events.write(line)
        events.flush()
    except BrokenPipeError:
        logger.info("nobody reads the events any more")


def _stop_loading(number: int, frame: object) -> None:
    raise SystemExit(0)


def _stop_with_stdin() -> None:
    def wait() -> None:
        with contextlib.suppress(OSError):  # no stdin at all is as good as a closed one
            while os.read(0, 4096):
                pass
        logger.info("the controller is gone; stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
