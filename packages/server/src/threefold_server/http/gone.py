"""Work whose client has gone is given up, so that its threads serve others."""

from __future__ import annotations

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
    result: list[T] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        result.append(await work)
        group.cancel_scope.cancel()
    if not result:
        raise Unavailable("the client closed the connection before the answer was ready")
    return result[0]
