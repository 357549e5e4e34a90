"""A person's commands to a running controller: one JSON object a line, over a UNIX socket.

    aurora promote 3 --> RUN_DIR/control.sock --> Operator --> Swapping.choose --> the engine
                     <-- one sentence --------

The socket lies in the run directory, which belongs to its owner alone: whoever may write there may
command the run. No port, no token.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import Field, TypeAdapter, ValidationError

from aurora_core.errors import AuroraError, BackendError, CheckpointError, ConfigError

SOCKET = "control.sock"
_UNFINISHED = f"{SOCKET}.partial"
_MAX_LINE_BYTES = 1 << 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Make a version live and keep it."""

    command: Literal["promote"] = "promote"
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Go back to a version, or to the previous one, and keep it."""

    command: Literal["roll_back"] = "roll_back"
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOff:
    """Serve without speculation and keep it so."""

    command: Literal["switch_off"] = "switch_off"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Let the swap policy decide again."""

    command: Literal["let_go"] = "let_go"


OperatorCommand = Annotated[Promote | RollBack | SwitchOff | LetGo, Field(discriminator="command")]
_COMMAND: TypeAdapter[Promote | RollBack | SwitchOff | LetGo] = TypeAdapter(OperatorCommand)


async def serve_commands(
    run_dir: Path, obey: Callable[[Promote | RollBack | SwitchOff | LetGo], Awaitable[str]]
) -> None:
    """Listen until cancelled; a socket that cannot be made costs the commands alone.

    Args:
        run_dir: locked for this process.
        obey: carries a command out and returns a sentence; raises AuroraError if it cannot.
    """

    async def answer(stream: SocketStream) -> None:
        async with stream:
            try:
                line = await BufferedByteReceiveStream(stream).receive_until(b"\n", _MAX_LINE_BYTES)
                reply = {"done": await obey(_COMMAND.validate_json(line))}
            except AuroraError as error:
                reply = {"error": str(error), "kind": type(error).__name__}
            except ValidationError:
                reply = {"error": "this run does not know that command", "kind": "ConfigError"}
            except (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError):
                return
            try:
                await stream.send(json.dumps(reply).encode() + b"\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                log.warning("a command was carried out, but who gave it is gone: %s", reply)

    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = _short_path(descriptor)
        unfinished = path.with_name(_UNFINISHED)
        unfinished.unlink(missing_ok=True)  # left by a controller that was killed
        listener = await anyio.create_unix_listener(unfinished, mode=0o600)
        async with listener:
            # Who sees the socket can use it, and nobody else can: it listens, and has its mode.
            unfinished.replace(path)
            await listener.serve(answer)
    except OSError as error:
        log.warning("no commands are taken: %s cannot be made: %s", run_dir / SOCKET, error)
    finally:
        for name in (SOCKET, _UNFINISHED):
            with contextlib.suppress(OSError):  # a folder of that name is not ours
                (run_dir / name).unlink()
        os.close(descriptor)


def give_command(
    run_dir: Path, command: Promote | RollBack | SwitchOff | LetGo, *, timeout_s: float = 330.0
) -> str:
    """Have a running controller carry out a command; return its sentence. Blocks.

    Raises:
        ConfigError: no run uses that directory, or it does not answer.
        CheckpointError, BackendError: it cannot do it; what served serves on.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"there is no run directory {str(run_dir)!r}; give that of a running one")
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(_short_path(descriptor)))
            connection.sendall(_COMMAND.dump_json(command) + b"\n")
            with connection.makefile("rb") as lines:
                reply = json.loads(lines.readline() or b"{}")
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ConfigError(
            f"no run is using {str(run_dir)!r}; start it with `aurora run`, then give the command "
            "again"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the run in {str(run_dir)!r} does not answer: {error or type(error).__name__}"
        ) from error
    finally:
        os.close(descriptor)
    if "done" in reply:
        return str(reply["done"])
    errors = {"BackendError": BackendError, "CheckpointError": CheckpointError}
    message = reply.get("error", "the run ended before it answered")
    raise errors.get(reply.get("kind"), ConfigError)(message)


def _short_path(directory: int) -> Path:
    """Return the socket's path through an open folder: a UNIX socket's may not exceed 107 bytes."""
    return Path(f"/proc/self/fd/{directory}/{SOCKET}")
