"""Errors in the JSON shape of OpenAI's API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

logger = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

_NO_SUCH_ROUTE = {
    404: "there is no route {path!r} here; GET /openapi.json lists those there are",
    405: "the route {path!r} does not take {method}; GET /openapi.json lists what it takes",
}
"""What to say where the framework says `Not Found`."""
_MAX_PATH_LENGTH = 200


class ErrorDetail(BaseModel):
    """What went wrong, for programs and for people."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Body of every answer with a status of 400 and above."""

    error: ErrorDetail


class ApiError(Exception):
    """A refusal that the client sees; the message is one sentence."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        detail = ErrorDetail(
            message=self.message,
            type=_TYPES.get(
                self.status, "invalid_request_error" if self.status < 500 else "server_error"
            ),
            param=self.param,
            code=self.code,
        )
        return ErrorBody(error=detail).model_dump()

    def response(self) -> JSONResponse:
        """Return the answer to send."""
        headers = dict(self.headers) if self.headers else None
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def crash() -> ApiError:
    """Return the answer to a request on which this server failed."""
    return ApiError(500, "the server failed on this request; its log has the cause")


def stopping() -> ApiError:
    """Return the answer to a request that the end of this server cut short."""
    return ApiError(503, "the server is stopping; the request was not completed")


def describe_validation(error: RequestValidationError, content_type: str) -> ApiError:
    """Return the first problem of a request body as one sentence that names the parameter."""
    first = error.errors()[0]
    kind, context = first["type"], first.get("ctx") or {}
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    if kind == "json_invalid":
        reason = context.get("error", "malformed")
        return ApiError(400, f"the body is not valid JSON: {reason}", code="invalid_json")
    if "json" not in content_type and not where:
        return ApiError(400, "the body must be JSON, sent with 'Content-Type: application/json'")
    if kind in ("dict_type", "model_attributes_type") and not where:
        return ApiError(400, "the body must be a JSON object, in braces")
    if kind == "missing":
        return ApiError(400, f"{where or 'body'!r} is required", param=where or None)
    if kind == "extra_forbidden":
        return ApiError(400, f"unknown parameter {where!r}", param=where, code="unknown_parameter")
    if kind == "unsupported_parameter":
        return ApiError(400, first["msg"], param=context["name"], code="unsupported_parameter")
    param = where or context.get("name")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {message}" if param else message, param=param)


def install_error_handlers(app: FastAPI, count: Callable[[int], None]) -> None:
    """Make every error of the application answer in OpenAI's shape.

    Args:
        count: called with the status of every such answer.
    """

    def answer(error: ApiError) -> JSONResponse:
        count(error.status)
        return error.response()

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JSONResponse:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(describe_validation(error, request.headers.get("content-type", "")))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        headers = getattr(error, "headers", None)
        message = str(error.detail)
        if template := _NO_SUCH_ROUTE.get(error.status_code):
            path = request.url.path[:_MAX_PATH_LENGTH]
            message = template.format(path=path, method=request.method)
        return answer(ApiError(error.status_code, message, headers=headers))

    @app.exception_handler(Exception)
    async def crashed(request: Request, error: Exception) -> JSONResponse:
        return answer(crash())
