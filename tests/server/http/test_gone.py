"""A read is stopped when its client closes the connection, and only then."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request
from starlette.types import Message

from threefold.errors import NotFound, Unavailable
from threefold_server.http.gone import unless_gone

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request_until(gone: anyio.Event) -> Request:
    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


async def test_read_is_cancelled_when_its_client_goes() -> None:
    gone, ended = anyio.Event(), anyio.Event()

    async def endless() -> None:
        gone.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with pytest.raises(Unavailable, match="the client closed the connection"):
        await unless_gone(request_until(gone), endless())
    assert ended.is_set()


async def test_answer_of_a_client_that_stays_is_returned() -> None:
    async def answer() -> int:
        await anyio.lowlevel.checkpoint()
        return 1

    assert await unless_gone(request_until(anyio.Event()), answer()) == 1


async def test_error_of_a_read_comes_through_as_it_is() -> None:
    async def missing() -> None:
        await anyio.lowlevel.checkpoint()
        raise NotFound("no such session")

    with pytest.raises(NotFound):
        await unless_gone(request_until(anyio.Event()), missing())
