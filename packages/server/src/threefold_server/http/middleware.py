"""Around every request: its size is bounded, its outcome counted."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threefold.errors import TooLarge
from threefold_server.http import probes
from threefold_server.http.errors import error_response
from threefold_server.telemetry import Metrics, request_span


class BodyLimit:
    """Answer 413 to a body over the limit, stated or streamed, before it is held in memory."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if stated.isdigit() and int(stated) > self.max_bytes:
            await error_response(self._refusal())(scope, receive, send)
            return
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.max_bytes:
                raise self._refusal()
            return message

        async def answer(message: Message) -> None:
            if read <= self.max_bytes:  # FastAPI turns what is raised while it reads a body into a 400
                await send(message)

        await self.app(scope, bounded, answer)
        if read > self.max_bytes:
            await error_response(self._refusal())(scope, receive, send)

    def _refusal(self) -> TooLarge:
        return TooLarge(f"the body is over {self.max_bytes} bytes; send it in parts", {"max_bytes": self.max_bytes})


class Measure:
    """Count requests and their seconds per route; ids never become labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        watchers = scope["path"] in probes.PATHS
        with nullcontext() if watchers else request_span(scope["method"], scope["headers"]) as current:
            try:
                await self.app(scope, receive, watched)
            finally:
                route = scope.get("route")
                operation = getattr(route, "name", "unknown")
                if current is not None:
                    current.update_name(operation)
                    current.set_attributes(_told(route, status))
                self.metrics.requests.labels(operation, str(status)).inc()
                self.metrics.seconds.labels(operation).observe(time.perf_counter() - started)


def _told(route: Any, status: int) -> dict[str, str | int]:
    """What a span tells of a request: the template of its path, never the path."""
    template = {} if route is None else {"http.route": route.path_format}
    return {**template, "http.response.status_code": status}
