"""Real servers, one after the other, each for a module of tests.

Starting one takes half a minute on a machine that does nothing else, so tests share them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import RunningServer


@pytest.fixture(scope="session", autouse=True)
def _environment() -> None:
    if "AURORA_SGLANG_PYTHON" not in os.environ:
        pytest.exit("these tests need SGLang's environment: run them by `make test-sglang`", 2)


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The server of a test module, which says in `OPTIONS` what is special about it.

    A module may also have `SINK_OPTIONS`.
    """
    sink_options = getattr(request.module, "SINK_OPTIONS", {})
    with start_blocking_portal() as portal:
        folder = tmp_path_factory.mktemp("sglang")
        running = RunningServer(folder, portal, sink_options=sink_options, **request.module.OPTIONS)
        try:
            running.start()
            yield running
        finally:
            running.stop()


@pytest.fixture(scope="module")
def reference(server: RunningServer) -> Reference:
    """Hugging Face's model of the same target."""
    return Reference(server.target.path)
