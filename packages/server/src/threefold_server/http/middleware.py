"""Middleware of every request: limits on size and time of its body, metrics and a span."""

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
"""Largest body that is read to its end although the application did not read it, such as a refused caller's."""
UNREAD_SECONDS = 1.0
"""Time for reading it."""


class SlowRequest(Unavailable):
    """A request that did not arrive in time. It has the code of an outage, since a retry may succeed."""

    status = 408


class BodyLimit:
    """Limits the size of a body, the pauses within it, and the time until it has arrived.

    The application reads a body after it has identified the caller. A connection whose body was not read to its end is
    closed.
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
            if message["type"] == "http.response.start" and not await body.is_complete():
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        if body.stated > self._settings.max_body_bytes:
            await error_response(body.too_large())(scope, receive, answer)
        else:
            await self.app(scope, body.receive, answer)


class _Incoming:
    """The body of one request while it arrives."""

    def __init__(self, scope: Scope, receive: Receive, settings: Settings) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        self.stated = int(length) if length.isdecimal() else 0
        self._receive = receive
        self._settings = settings
        self._read = 0
        self._complete = self.stated == 0 and "transfer-encoding" not in headers
        self._ends_at: float | None = None

    async def receive(self) -> Message:
        """Return the next part of the body. Raise TooLarge or SlowRequest above a limit."""
        if self._complete:
            return await self._receive()
        now = anyio.current_time()
        if self._ends_at is None:
            self._ends_at = now + self._settings.body_timeout
        with anyio.move_on_after(min(self._settings.header_timeout, self._ends_at - now)):
            return self._count(await self._receive())
        raise SlowRequest("the body did not arrive in time; nothing was stored, send the request again")

    async def is_complete(self) -> bool:
        """Return whether the body has arrived. Read the rest of a small one, so that its connection can be kept."""
        try:
            with anyio.move_on_after(UNREAD_SECONDS):
                while not self._complete and max(self.stated, self._read) <= UNREAD_BYTES:
                    self._count(await self._receive())
        except TooLarge:
            pass
        return self._complete

    def too_large(self) -> TooLarge:
        """Return the error for a body above the limit."""
        limit = self._settings.max_body_bytes
        return TooLarge(f"the body has more than {limit:,} bytes; send it in parts", {"max_bytes": limit})

    def _count(self, message: Message) -> Message:
        self._read += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._read > self._settings.max_body_bytes:
            raise self.too_large()
        return message


class Measure:
    """Counts requests and their seconds per route. Ids never become labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        is_probe = scope["path"] in probes.PATHS
        with nullcontext() if is_probe else request_span(scope["method"], scope["headers"]) as current:
            try:
                await self.app(scope, receive, send_noting_status)
            finally:
                route = scope.get("route")
                operation = getattr(route, "name", "unknown")
                if current is not None:
                    current.update_name(operation)
                    current.set_attributes(_span_attributes(route, status))
                self.metrics.requests.labels(operation, str(status)).inc()
                self.metrics.seconds.labels(operation).observe(time.perf_counter() - started)


def _span_attributes(route: Any, status: int) -> dict[str, str | int]:
    """Return the attributes of a request's span: the template of its path, never the path."""
    template = {} if route is None else {"http.route": route.path_format}
    return {**template, "http.response.status_code": status}
