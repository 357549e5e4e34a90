"""Addresses to listen on, asked about before a server is started."""

from __future__ import annotations

import re
import socket

import pytest

from aurora_core.engine_process.ports import bind, free_port
from aurora_core.errors import BackendError


def test_a_free_port_can_be_listened_on():
    port = free_port()
    with bind("127.0.0.1", port) as sock:
        sock.listen()
        assert sock.getsockname() == ("127.0.0.1", port)


def test_a_port_that_is_wanted_is_given():
    port = free_port()
    assert free_port("localhost", port) == port


@pytest.mark.parametrize(
    "host",
    [
        "a..b",  # no host name at all
        "192.0.2.1",  # of a network that is kept for documentation: no machine has it
    ],
)
def test_a_host_that_is_not_this_machine_is_one_sentence(host):
    sentence = rf"cannot listen on {re.escape(host)}:0 \(.*\); set backend.host to an address of th"
    with pytest.raises(BackendError, match=sentence):
        free_port(host)


def test_a_host_that_nobody_knows_is_one_sentence(monkeypatch):
    def fail(*arguments, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(BackendError, match=r"nobody:0 \(name or service not known\); set b"):
        free_port("nobody")


def test_a_port_that_is_taken_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BackendError, match=r"\(address already in use\); set backend.port to"):
            free_port("127.0.0.1", port)
