"""The number of threads that one owner may use at once, so that no owner blocks all others."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import UUID

import anyio

from threefold.errors import Unavailable


class Shares:
    """The shares of all owners in one lane of threads. Callers of one owner queue here, apart from other owners."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._gates: dict[UUID, _Gate] = {}

    async def take(self, owner: UUID, seconds: float) -> None:
        """Take a slot for one call.

        Raises:
            Unavailable: Other calls of the owner held all of its slots for `seconds`.
        """
        gate = self._gates.get(owner)
        if gate is None:
            gate = self._gates[owner] = _Gate(self._most)
        gate.callers += 1
        if not gate.slots.locked():
            await gate.slots.acquire()
            return
        acquired = False
        try:
            with anyio.move_on_after(seconds):
                await gate.slots.acquire()
                acquired = True
        finally:  # also if the caller was cancelled
            if not acquired:
                self._leave(owner, gate)
        if not acquired:
            raise Unavailable(
                f"this owner has {self._most} database calls running already; wait for them, then try again",
                {"retry_after": 1},
            )

    def give_back(self, owner: UUID, future: Future[Any]) -> None:
        """Give the slot back once the call ends, which may be after its caller has given up."""
        if future.done():
            self._release(owner)
            return
        loop = asyncio.get_running_loop()

        def over(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(self._release, owner)

        future.add_done_callback(over)

    def _release(self, owner: UUID) -> None:
        gate = self._gates[owner]
        gate.slots.release()
        self._leave(owner, gate)

    def _leave(self, owner: UUID, gate: _Gate) -> None:
        gate.callers -= 1
        if not gate.callers:
            del self._gates[owner]


class _Gate:
    """The slots of one owner, and the number of callers that hold or await one."""

    def __init__(self, slots: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.callers = 0
