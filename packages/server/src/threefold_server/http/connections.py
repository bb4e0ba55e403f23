"""Limits on the connections of `threefold serve`: their number, and the size and time of a request's headers.

uvicorn's fast parser has no such limits: it keeps half-sent headers for ever, and endless ones fill the memory.
"""

from __future__ import annotations

from asyncio import TimerHandle
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from threefold.errors import InvalidRequest, ServiceError, Unavailable
from threefold_server.http.errors import error_response
from threefold_server.settings import Settings

MAX_URL_BYTES = 16_384
MAX_HEAD_BYTES = 65_536
"""Limit for request line and headers together; a token alone may have 16,384."""
MAX_HEADERS = 100


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration with the limits of connections."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__("threefold_server.app:serve_app", factory=True, http=GuardedConnection, **options)
        self.header_timeout = settings.header_timeout
        self.max_connections = settings.max_connections


class _Refused(Exception):
    """Raised to stop the parser after the connection has been answered."""


class GuardedConnection(HttpToolsProtocol):
    """One connection, closed when the head of a request is too large or too slow."""

    config: ServerConfig

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: TimerHandle | None = None
        self._unfinished = 0
        """Bytes since the last complete head or piece of a body."""
        self._head_bytes = 0
        self._reads_head = self._had_request = False
        self.active_at = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        """Accept the connection. If there are too many, close the oldest idle one or answer 503."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) > self.config.max_connections and not self._make_room():
            self._answer(503, Unavailable("the service has too many connections; try again", {"retry_after": 1}))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data and check the limits."""
        if self.transport.is_closing():
            return
        self._unfinished += len(data)
        if not self._reads_head:
            self.active_at = self.loop.time()  # a slow head does not count as activity
        super().data_received(data)  # it stops parsing when a callback raises
        if self._unfinished > MAX_HEAD_BYTES:
            self._answer(431, InvalidRequest(f"headers: more than {MAX_HEAD_BYTES:,} bytes"))
        elif self._reads_head and self._timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Note that the head of a request begins."""
        super().on_message_begin()
        self._reads_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Check the length of the URL so far."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(414, InvalidRequest(f"URL: longer than {MAX_URL_BYTES:,} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Check the number and size of the headers so far."""
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS:
            self._refuse(431, InvalidRequest(f"headers: more than {MAX_HEADERS}"))
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, InvalidRequest(f"headers: more than {MAX_HEAD_BYTES:,} bytes"))

    def on_headers_complete(self) -> None:
        """Note that the head is complete, and start the request."""
        self._reads_head = False
        self._had_request = True
        self._unfinished = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note that a piece of the body is complete."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._unfinished = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to data that is not HTTP, unless the parser was stopped after an answer."""
        if not self.transport.is_closing():
            self._answer(400, InvalidRequest(msg))

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered, so that the connection may be closed."""
        return not self._had_request or self.cycle.response_complete

    def _make_room(self) -> bool:
        """Close the connection that has waited longest. Return False if every other one is answering a request."""
        waiting = (other for other in self.connections if isinstance(other, GuardedConnection) and other is not self)
        oldest = min((other for other in waiting if other.is_waiting), key=_last_active, default=None)
        if oldest is None:
            return False
        oldest.transport.close()
        return True

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.config.header_timeout, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self._reads_head:
            self._answer(
                408,
                Unavailable(f"the headers took longer than {self.config.header_timeout:g} s; send the request again"),
            )
        elif not self._had_request:
            self.transport.close()

    def _refuse(self, status: int, error: ServiceError) -> None:
        """Answer, and stop parsing."""
        self._answer(status, error)
        raise _Refused

    def _answer(self, status: int, error: ServiceError) -> None:
        """Answer in the form of the contract and close. While a request is being answered, only close."""
        if self.is_waiting and not self.transport.is_closing():
            response = error_response(error)
            head = [STATUS_LINE[status], *(b"%s: %s\r\n" % header for header in response.raw_headers)]
            self.transport.write(b"".join([*head, b"connection: close\r\n\r\n", bytes(response.body)]))
        self.transport.close()


def _last_active(connection: GuardedConnection) -> float:
    return connection.active_at
