"""Around every request: the size and time of its body are bounded, its outcome is counted."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threefold.errors import TooLarge, Unavailable
from threefold_server.http import probes
from threefold_server.http.errors import error_response
from threefold_server.settings import Settings
from threefold_server.telemetry import Metrics, request_span

UNREAD_BYTES = 65_536
"""Of a body that nobody asked for, such as a stranger's."""
UNREAD_SECONDS = 1.0


class SlowRequest(Unavailable):
    """A request that did not arrive in time. The same code as an outage, since a retry may succeed."""

    status = 408


class BodyLimit:
    """Bound the size of a body, the pauses within it, and the time until it is there.

    The application reads a body once it knows the caller. A connection whose body was not read to its end is closed.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Incoming(scope, receive, self._settings)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not await body.is_over():
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        if body.stated > self._settings.max_body_bytes:
            await error_response(body.too_large())(scope, receive, answer)
        else:
            await self.app(scope, body.receive, answer)


class _Incoming:
    """The body of one request as it arrives."""

    def __init__(self, scope: Scope, receive: Receive, settings: Settings) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        self.stated = int(length) if length.isdecimal() else 0
        self._receive = receive
        self._settings = settings
        self._read = 0
        self._over = self.stated == 0 and "transfer-encoding" not in headers
        self._ends_at: float | None = None

    async def receive(self) -> Message:
        """The next part of the body; raises `TooLarge` and `SlowRequest`."""
        if self._over:
            return await self._receive()
        now = anyio.current_time()
        if self._ends_at is None:
            self._ends_at = now + self._settings.body_timeout
        with anyio.move_on_after(min(self._settings.header_timeout, self._ends_at - now)):
            return self._noted(await self._receive())
        raise SlowRequest("the body did not arrive in time; nothing was stored, send it again")

    async def is_over(self) -> bool:
        """Whether the body has arrived. What is left of a small one is read, so that its connection can be kept."""
        try:
            with anyio.move_on_after(UNREAD_SECONDS):
                while not self._over and max(self.stated, self._read) <= UNREAD_BYTES:
                    self._noted(await self._receive())
        except TooLarge:
            pass
        return self._over

    def too_large(self) -> TooLarge:
        """The refusal of this body."""
        most = self._settings.max_body_bytes
        return TooLarge(f"the body is over {most} bytes; send it in parts", {"max_bytes": most})

    def _noted(self, message: Message) -> Message:
        self._read += len(message.get("body", b""))
        self._over = not message.get("more_body", False)
        if self._read > self._settings.max_body_bytes:
            raise self.too_large()
        return message


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
