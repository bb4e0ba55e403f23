"""How long one call may wait for the database, and the threads that such calls run in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar
from uuid import UUID

import anyio
import anyio.to_thread

from threefold.errors import Unavailable
from threefold_server.storage.engine.shares import Shares

T = TypeVar("T")

CALL_SECONDS = 10.0
LONG_SECONDS = 60.0
"""Calls that touch much: forget, list, import, and those with a large body."""
SNAPSHOT_SECONDS = 600.0
"""An export or a check of the whole audit."""
SLACK_SECONDS = 1.0
"""The driver gives up first: it knows whether the call had begun."""
CLOSE_SECONDS = 2.0
"""What calls in flight still have when the service ends."""

allowed: ContextVar[float] = ContextVar("threefold_database_seconds", default=CALL_SECONDS)
"""Seconds that each database call of the current request may take."""


class Deadline:
    """The moment at which a call must be over. Another thread may bring it forward."""

    __slots__ = ("at",)

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    def shorten(self, seconds: float) -> None:
        """Leave the call at most `seconds` from now."""
        self.at = min(self.at, time.monotonic() + seconds)


current: ContextVar[Deadline | None] = ContextVar("threefold_database_deadline", default=None)
"""The deadline of the call that runs in this thread; commands on a store run without one."""


def check_in_time() -> None:
    """Raise `Unavailable` if the call that runs in this thread is late or given up: for loops that ask no database."""
    deadline = current.get()
    if deadline is not None and deadline.passed:
        raise not_in_time(unknown=False)


def not_in_time(*, unknown: bool) -> Unavailable:
    """The error of a call that the database did not answer in time.

    Args:
        unknown: The call was a write that had begun, so it may or may not be stored.
    """
    if unknown:
        return Unavailable(
            "the database stopped answering during this write, which may or may not be stored; "
            "repeat it with the same ids",
            {"outcome": "unknown", "retry_after": 1},
        )
    return Unavailable("the database did not answer in time; nothing was stored, try again", {"retry_after": 1})


class Lane:
    """A few threads for one kind of call. A call that was given up keeps its thread until the driver returns."""

    def __init__(self, threads: int, *, share: int | None = None) -> None:
        """`share` is how many of the threads one owner may hold; all by default."""
        self._pool = ThreadPoolExecutor(threads, "threefold-database")
        self._shares = None if share is None else Shares(share)
        self._running: set[Deadline] = set()

    async def run(
        self, seconds: float, work: Callable[[], T], *, owner: UUID | None = None, writing: bool = False
    ) -> T:
        """Run `work` in a thread and return its result.

        Raises `Unavailable` when the call is not over after `seconds`, the wait for a thread included, or when `owner`
        holds its share of the threads for so long. A cancelled read is given up; a write that has begun is awaited, as
        its caller must learn whether it was stored.
        """
        deadline = Deadline(seconds)
        if self._shares is not None and owner is not None:
            await self._shares.take(owner, seconds)
        future = self._pool.submit(copy_context().run, self._within, deadline, work)
        try:
            with anyio.CancelScope(shield=writing, deadline=anyio.current_time() + seconds + SLACK_SECONDS):
                return await asyncio.wrap_future(future)
            raise not_in_time(unknown=_has_begun(future) and writing)
        finally:
            if not future.done():
                future.cancel()
                deadline.shorten(0)
            if self._shares is not None and owner is not None:
                self._shares.give_back(owner, future)

    def _within(self, deadline: Deadline, work: Callable[[], T]) -> T:
        if deadline.passed:
            raise not_in_time(unknown=False)
        current.set(deadline)
        self._running.add(deadline)
        try:
            return work()
        finally:
            self._running.discard(deadline)

    async def aclose(self) -> None:
        """Wait for the calls in flight, but not for long."""
        for deadline in self._running.copy():
            deadline.shorten(CLOSE_SECONDS)
        stop = partial(self._pool.shutdown, wait=True, cancel_futures=True)
        with anyio.move_on_after(2 * CLOSE_SECONDS + SLACK_SECONDS, shield=True):
            await anyio.to_thread.run_sync(stop, abandon_on_cancel=True)

    def close(self) -> None:
        """Let the threads end once their calls are over."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _has_begun(future: Future[T]) -> bool:
    return not future.cancel()
