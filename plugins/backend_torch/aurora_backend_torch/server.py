"""The HTTP server of one engine process: the application, and its life on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from aurora_backend_torch.api_errors import install_error_handlers
from aurora_backend_torch.body_limit import BodyLimit
from aurora_backend_torch.control import control_routes, read_status
from aurora_backend_torch.generation_service import GenerationService, OutputRelay
from aurora_backend_torch.metrics import ServerMetrics
from aurora_backend_torch.routes import openai_routes
from aurora_core import __version__

if TYPE_CHECKING:
    from aurora_backend_torch.config import TorchBackendOptions
    from aurora_backend_torch.engine import Engine
    from aurora_backend_torch.tokenizer import TargetTokenizer

logger = logging.getLogger(__name__)

_DRAIN_TIMEOUT_S = 3
"""Seconds that open connections get to take their last bytes."""


def build_app(
    service: GenerationService, *, control_token: str, stop: Callable[[], None]
) -> FastAPI:
    """Return the application.

    Args:
        control_token: see `control_routes`.
        stop: called by the shutdown route.
    """
    app = FastAPI(
        title="Aurora embedded engine",
        version=__version__,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, max_body_bytes=service.options.max_body_bytes)
    install_error_handlers(app, service.metrics.refused)
    app.include_router(openai_routes(service))
    app.include_router(control_routes(service, control_token, stop))

    @app.get("/health")
    async def health() -> JSONResponse:
        """Answer 200 while the engine serves."""
        if service.is_stopping:
            return JSONResponse({"status": "stopping"}, status_code=503)
        if not service.engine.is_alive:
            return JSONResponse({"status": "the engine has stopped"}, status_code=503)
        return JSONResponse({"status": "ok", "live_version": service.engine.live_version})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return app


def url_of(sock: socket.socket) -> str:
    """Return the address of a bound socket as clients on this machine write it."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _UvicornServer(uvicorn.Server):
    """Leaves signals alone: the process has its own handlers, installed before loading."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one engine on one event loop. The engine is started and shut down by the caller."""

    def __init__(
        self,
        *,
        engine: Engine,
        tokenizer: TargetTokenizer,
        options: TorchBackendOptions,
        control_token: str,
    ) -> None:
        """Build the application; call it on the event loop that will run it."""
        self._service = service = GenerationService(
            engine=engine,
            tokenizer=tokenizer,
            options=options,
            metrics=ServerMetrics(
                lambda: read_status(service),
                {
                    name: partial(engine.status, lineage=name)
                    for name in ("", *(rule.name for rule in engine.lineage_rules))
                },
            ),
            relay=OutputRelay(asyncio.get_running_loop()),
        )
        self.app = build_app(service, control_token=control_token, stop=self.stop)
        self._server = _UvicornServer(
            uvicorn.Config(
                self.app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_DRAIN_TIMEOUT_S,
            )
        )

    async def run(self, sock: socket.socket, on_ready: Callable[[], None]) -> None:
        """Serve on a bound socket until `stop`.

        Args:
            on_ready: called once when requests are answered.
        """
        serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        if self._server.started:
            on_ready()
        await serving

    def stop(self) -> None:
        """End requests in flight, then the server. Callable twice, on the event loop."""
        if not self._service.is_stopping:
            logger.info("stopping; %d requests are in flight", len(self._service.generations))
        self._service.stop()
        self._server.should_exit = True
