"""Cancel reads whose client has gone, so that their threads serve other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio
from starlette.requests import Request

from threefold.errors import Unavailable

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a read. Cancel it as soon as the client closes its connection.

    Use it for reads only, after the body has been read: a write must complete even if its client has gone.

    Raises:
        Unavailable: The client closed the connection.
    """
    cancel_scope = anyio.CancelScope()
    watcher = asyncio.create_task(_cancel_when_gone(request, cancel_scope))
    try:
        with cancel_scope:
            return await work
    finally:
        watcher.cancel()
    raise Unavailable("the client closed the connection before the answer was ready")


async def _cancel_when_gone(request: Request, cancel_scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancel_scope.cancel()
