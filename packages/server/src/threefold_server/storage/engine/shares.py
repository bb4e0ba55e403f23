"""How many threads one owner may hold at once, so that none holds those of all others."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import UUID

import anyio

from threefold.errors import Unavailable


class Shares:
    """Places in one lane of threads. Waiting callers of one owner queue here, apart from those of other owners."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._gates: dict[UUID, _Gate] = {}

    async def take(self, owner: UUID, seconds: float) -> None:
        """Take a place; raise `Unavailable` if the owner's other calls hold all of its places for `seconds`."""
        gate = self._gates.get(owner)
        if gate is None:
            gate = self._gates[owner] = _Gate(self._most)
        gate.callers += 1
        if not gate.places.locked():
            await gate.places.acquire()
            return
        try:
            with anyio.fail_after(seconds):
                await gate.places.acquire()
        except TimeoutError:
            self._leave(owner, gate)
            raise Unavailable(
                f"this owner has {self._most} database calls running already; wait for them, then try again",
                {"retry_after": 1},
            ) from None
        except BaseException:
            self._leave(owner, gate)
            raise

    def give_back(self, owner: UUID, future: Future[Any]) -> None:
        """Give the place back once the call is over, which may be after its caller has given up."""
        if future.done():
            self._release(owner)
            return
        loop = asyncio.get_running_loop()

        def over(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._release, owner)

        future.add_done_callback(over)

    def _release(self, owner: UUID) -> None:
        gate = self._gates[owner]
        gate.places.release()
        self._leave(owner, gate)

    def _leave(self, owner: UUID, gate: _Gate) -> None:
        gate.callers -= 1
        if not gate.callers:
            del self._gates[owner]


class _Gate:
    """The places of one owner, and how many callers hold one or wait for one."""

    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.callers = 0
