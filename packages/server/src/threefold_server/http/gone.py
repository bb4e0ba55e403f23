"""Work whose client has gone is given up, so that its threads serve others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio
from starlette.requests import Request

from threefold.errors import Unavailable

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a read, cancelled as soon as the client closes its connection.

    For reads only, and once the body has been read: a write must end even if nobody waits for its answer.
    """
    scope = anyio.CancelScope()
    watcher = asyncio.create_task(_watch(request, scope))
    try:
        with scope:
            return await work
    finally:
        watcher.cancel()
    raise Unavailable("the client closed the connection before the answer was ready")


async def _watch(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
