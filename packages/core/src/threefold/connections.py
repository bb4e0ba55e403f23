"""Connections on first use: one httpx client per process, or per event loop, under one `MemoryClient`."""

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
    """Shared by all clients, as loading the certificates takes 23 ms; where none are needed, none are trusted."""
    return httpx.create_ssl_context() if is_https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Connections:
    """One `httpx.Client` per process: a forked child must not talk on its parent's sockets, nor close them."""

    def __init__(self, transport: httpx.BaseTransport | None, is_https: bool) -> None:
        self._transport = transport
        self._is_https = is_https
        self._clients: dict[int, httpx.Client] = {}
        weakref.finalize(self, _close_own, self._clients)  # scripts that never close must not warn at exit

    def open(self) -> httpx.Client:
        """The client of this process."""
        client = self._clients.get(os.getpid())
        # setdefault is atomic: of two threads that get here, one keeps its client and the other drops an unused one.
        return client or self._clients.setdefault(os.getpid(), self._new())

    def close(self) -> None:
        """Close this process's connections."""
        _close_own(self._clients)

    def _new(self) -> httpx.Client:
        return httpx.Client(transport=self._transport, verify=_tls_context(self._is_https), limits=LIMITS)


def _close_own(clients: dict[int, httpx.Client]) -> None:
    client = clients.pop(os.getpid(), None)
    if client is not None:
        client.close()


_Clients = dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None]]]
_held: dict[int, _Clients] = {}


class AsyncConnections:
    """One `httpx.AsyncClient` per event loop: a connection works only on the loop that opened it."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None, is_https: bool) -> None:
        self._transport = transport
        self._is_https = is_https
        self._clients: _Clients = {}
        # Held from outside until this object is gone: collected in one cycle with it, idle sockets would be finalized
        # before the generator that closes them, and each would warn.
        _held[id(self._clients)] = self._clients
        weakref.finalize(self, _held.pop, id(self._clients))

    async def open(self) -> httpx.AsyncClient:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        held = self._clients.get(loop)
        if held is None:
            self._drop_closed_loops()
            client = self._new()
            held = self._clients[loop] = client, _closing_with_loop(client)
            await anext(held[1])
        return held[0]

    async def close(self) -> None:
        """Close the connections of the running loop."""
        held = self._clients.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held[1].aclose()

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
    """`asyncio.run` cancels what still runs, then waits for it. Cancelled, httpx would close one connection and leave
    the others to the garbage collector, which warns of each."""

    def cancel(self, msg: object = None) -> bool:
        return False
