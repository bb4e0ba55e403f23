"""Answers to errors, in the form of the contract. Unexpected errors are logged and answered without detail."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import walk_tb
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from threefold.checks import problem
from threefold.contract import ErrorBody, ErrorDetail
from threefold.errors import Forbidden, InternalError, InvalidRequest, NotFound, ServiceError, Unauthenticated
from threefold_server.service import Refusal, Service
from threefold_server.telemetry import logger


def install(app: FastAPI) -> None:
    """Register the error handlers."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _unexpected)


def error_response(error: ServiceError) -> JSONResponse:
    """Return the answer to an error: status, body and headers."""
    body = ErrorBody(error=ErrorDetail(code=error.code, message=error.message, details=error.details))
    headers = {"Retry-After": str(error.details["retry_after"])} if "retry_after" in error.details else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body.model_dump(), error.status, headers)


async def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    return respond(request, error)


def respond(request: Request, error: ServiceError) -> JSONResponse:
    """Return the answer of a refused request, and count the refusal for the audit."""
    if isinstance(error, Forbidden | Unauthenticated):
        service: Service = request.app.state.service
        operation = getattr(request.scope.get("route"), "name", "unknown")
        service.refusals[Refusal(getattr(request.state, "caller", None), operation, error.code)] += 1
    return error_response(error)


async def _validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [{"field": _path(item["loc"]), "problem": problem(item["msg"])} for item in error.errors()]
    message = "; ".join(f"{item['field']}: {item['problem']}" for item in fields[:5])
    return error_response(InvalidRequest(message, {"fields": fields[:50]}))


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(NotFound(f"no route {request.method} {request.url.path}"))
    if error.status_code == 400:  # FastAPI raises it for a body that is not UTF-8
        return error_response(InvalidRequest("body: not JSON in UTF-8", {"field": "body"}))
    body = ErrorBody(error=ErrorDetail(code="invalid_request", message=str(error.detail)))
    return JSONResponse(body.model_dump(), error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    cause = _innermost(error)
    # Log the type and the line only: messages of database errors quote values.
    frames = list(walk_tb(cause.__traceback__))
    line = f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else "unknown"
    route = getattr(request.scope.get("route"), "path", "unknown")
    fields = {"route": route, "error": type(cause).__name__, "at_line": line}
    logger.error("unexpected error: %s at %s", type(cause).__name__, line, extra={"fields": fields})
    return error_response(InternalError("internal error; the service log has its type and line"))


def _innermost(error: BaseException) -> BaseException:
    """Return the first error inside exception groups: the tiers of a recall run in a task group."""
    return (
        _innermost(cast("BaseExceptionGroup[Any]", error).exceptions[0])
        if isinstance(error, BaseExceptionGroup)
        else error
    )


def _path(location: Sequence[Any]) -> str:
    """Return `turns.0.role` for ("body", "turns", 0, "role")."""
    return ".".join(str(part) for part in location[1:]) or str(location[0])
