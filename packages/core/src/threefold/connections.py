"""Open connections on first use: one httpx client per process, or per event loop, for each memory client."""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from collections.abc import AsyncGenerator
from functools import cache

import httpx

# Shorter than the 5 s after which uvicorn closes an idle connection, so that a call does not meet a closing one.
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=4.0)


@cache
def _tls_context(is_https: bool) -> ssl.SSLContext:
    """Return a context that all clients share: loading the certificates takes 23 ms. Without https none are loaded."""
    return httpx.create_ssl_context() if is_https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Connections:
    """One `httpx.Client` per process: a forked child must neither use nor close the sockets of its parent."""

    def __init__(self, transport: httpx.BaseTransport | None, is_https: bool) -> None:
        self._transport = transport
        self._is_https = is_https
        self._clients: dict[int, httpx.Client] = {}
        weakref.finalize(self, _close_own, self._clients)  # a script that never closes must not warn at exit

    def open(self) -> httpx.Client:
        """Return the client of this process."""
        client = self._clients.get(os.getpid())
        # setdefault is atomic: if two threads get here, one client is kept and the other is dropped unused.
        return client or self._clients.setdefault(os.getpid(), self._new())

    def close(self) -> None:
        """Close the connections of this process."""
        _close_own(self._clients)

    def _new(self) -> httpx.Client:
        return httpx.Client(transport=self._transport, verify=_tls_context(self._is_https), limits=LIMITS)


def _close_own(clients: dict[int, httpx.Client]) -> None:
    client = clients.pop(os.getpid(), None)
    if client is not None:
        client.close()


_Clients = dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None]]]
_referenced: dict[int, _Clients] = {}


class AsyncConnections:
    """One `httpx.AsyncClient` per event loop: a connection works only on the loop that opened it."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None, is_https: bool) -> None:
        self._transport = transport
        self._is_https = is_https
        self._clients: _Clients = {}
        # Referenced from outside until this object is deleted. Collected in one cycle with it, idle sockets would be
        # finalized before the generator that closes them, and each socket would warn.
        _referenced[id(self._clients)] = self._clients
        weakref.finalize(self, _referenced.pop, id(self._clients))

    async def open(self) -> httpx.AsyncClient:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        opened = self._clients.get(loop)
        if opened is None:
            self._drop_closed_loops()
            client = self._new()
            opened = self._clients[loop] = client, _closing_with_loop(client)
            await anext(opened[1])
        return opened[0]

    async def close(self) -> None:
        """Close the connections of the running loop."""
        opened = self._clients.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened[1].aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self._transport, verify=_tls_context(self._is_https), limits=LIMITS)

    def _drop_closed_loops(self) -> None:
        for loop in [loop for loop in list(self._clients) if loop.is_closed()]:
            self._clients.pop(loop, None)


async def _closing_with_loop(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Close `client` when its loop ends: a loop closes every started asynchronous generator before it stops."""
    try:
        yield
    finally:
        await _Unstoppable(client.aclose())


class _Unstoppable(asyncio.Task[None]):
    """A task that ignores cancellation.

    `asyncio.run` cancels the tasks that still run, then waits for them. If `aclose` of httpx is cancelled, it closes
    one connection and leaves the others to the garbage collector, which warns for each.
    """

    def cancel(self, msg: object = None) -> bool:
        return False
