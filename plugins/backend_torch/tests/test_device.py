"""The device that the engine computes on, and how it is asked about before the engine starts."""

from __future__ import annotations

import socket
import subprocess

import pydantic
import pytest
import torch

from aurora_backend_torch.backend import TorchBackend
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.device import check_device, find_device, main
from aurora_core.errors import BackendError


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("name", "count", "found"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_a_device_that_is_here_is_found(monkeypatch, name, count, found):
    with_gpus(monkeypatch, count)
    assert find_device(name) == torch.device(found)


@pytest.mark.parametrize(
    ("name", "count", "sentence"),
    [
        ("cuda", 0, "backend.device is 'cuda' and torch sees no GPU here; use `cpu` or `auto`"),
        ("cuda:7", 2, r"'cuda:7' and torch sees 2 GPU\(s\) here, the last one as `cuda:1`; use"),
    ],
)
def test_a_device_that_is_not_here_is_refused(monkeypatch, capsys, name, count, sentence):
    with_gpus(monkeypatch, count)
    with pytest.raises(BackendError, match=sentence):
        find_device(name)
    assert main([name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["foo", "cuda:", "cuda:-1", "CPU", "meta", "cuda:1:2"])
def test_what_is_no_device_is_refused_with_the_options(name):
    with pytest.raises(pydantic.ValidationError, match=f"no device '{name}'; choose `auto`"):
        TorchBackendOptions(device=name)


def test_a_check_asks_a_process_of_its_own_and_repeats_its_sentence():
    with pytest.raises(BackendError, match=r"backend.device is 'cuda:999' and torch sees "):
        TorchBackend(TorchBackendOptions(device="cuda:999")).check()


def test_a_check_of_what_is_always_there_starts_nothing(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    TorchBackend(TorchBackendOptions()).check()


def test_a_check_that_crashes_is_one_sentence(monkeypatch):
    def crash(command, **options):
        return subprocess.CompletedProcess(command, 1, b"", b"Traceback\nImportError: no torch\n")

    monkeypatch.setattr(subprocess, "run", crash)
    with pytest.raises(BackendError, match="'cuda' cannot be found out: ImportError: no torch"):
        check_device("cuda")


def test_a_check_finds_an_address_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = TorchBackendOptions(port=taken.getsockname()[1])
        with pytest.raises(BackendError, match=r"cannot listen on 127.0.0.1:.*already in use"):
            TorchBackend(options).check()
