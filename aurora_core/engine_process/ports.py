"""Addresses for servers: whether one can be listened on, and a port where none is chosen."""

from __future__ import annotations

import errno
import socket

from aurora_core.errors import BackendError


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and does not listen yet.

    Args:
        host: name or address of this machine.
        port: 0 takes a free one.

    Raises:
        BackendError: the address is in use, not ours or not resolvable.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except socket.gaierror as error:
        raise BackendError(
            f"cannot listen on {host}:{port} ({(error.strerror or str(error)).lower()}); set "
            "backend.host to an address of this machine, as 127.0.0.1"
        ) from error
    except UnicodeError as error:  # of names that are no host names, from their encoding
        raise BackendError(
            f"cannot listen on {host}:{port} (that is no host name); set backend.host to an "
            "address of this machine, as 127.0.0.1"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BackendError(
            f"cannot listen on {host}:{port} ({reason}); {_remedy(error)}"
        ) from error
    return sock


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """Return a port for a server that wants to be told one; another process may still take it.

    Args:
        host: name or address of this machine.
        port: the one that is wanted; 0 takes one on which nobody listens now.

    Raises:
        BackendError: see `bind`.
    """
    with bind(host, port) as probe:
        return int(probe.getsockname()[1])


def _remedy(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "set backend.host to an address of this machine, as 127.0.0.1"
    return "set backend.port to another port, or to 0 for a free one"
