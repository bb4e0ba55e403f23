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
"""For long calls: forget, list, import, background work, and calls with a large body."""
SNAPSHOT_SECONDS = 600.0
"""For an export or a check of the whole audit."""
SLACK_SECONDS = 1.0
"""Extra time for the driver to give up first: it knows whether the call had begun."""
CLOSE_SECONDS = 2.0
"""Time that running calls still get when the service stops."""

allowed: ContextVar[float] = ContextVar("threefold_database_seconds", default=CALL_SECONDS)
"""Seconds that each database call of the current request may take."""


class Deadline:
    """The time by which a call must end. Another thread may bring it forward."""

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
"""The deadline of the call that runs in this thread; None in commands, which have no deadline."""


def check_in_time() -> None:
    """Raise `Unavailable` if the call in this thread is late or abandoned. For long loops without database calls."""
    deadline = current.get()
    if deadline is not None and deadline.passed:
        raise not_in_time(unknown=False)


def not_in_time(*, unknown: bool) -> Unavailable:
    """Return the error for a call that the database did not answer in time.

    Args:
        unknown: Whether the call was a write that had begun, so that it may or may not be stored.
    """
    if unknown:
        return Unavailable(
            "the database stopped answering during this write, which may or may not be stored; "
            "repeat it with the same ids",
            {"outcome": "unknown", "retry_after": 1},
        )
    return Unavailable("the database did not answer in time; nothing was stored, try again", {"retry_after": 1})


class Lane:
    """A few threads for one kind of call. An abandoned call keeps its thread until the driver returns."""

    def __init__(self, threads: int, *, share: int | None = None) -> None:
        """Create the threads; one owner may hold `share` of them at once (default: all)."""
        self._pool = ThreadPoolExecutor(threads, "threefold-database")
        self._shares = None if share is None else Shares(share)
        self._running: set[Deadline] = set()

    async def run(
        self, seconds: float, work: Callable[[], T], *, owner: UUID | None = None, writing: bool = False
    ) -> T:
        """Run `work` in a thread and return its result.

        A cancelled read is abandoned. A write that has begun is awaited even if its caller is cancelled, because the
        caller must learn whether it was stored.

        Args:
            seconds: The most time for the call, including the wait for a thread.
            work: A function without arguments.
            owner: The owner whose share of the threads the call uses; None for none.
            writing: Whether `work` writes.

        Raises:
            Unavailable: The call did not end in time, or other calls of `owner` used its share for so long.
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
        """Wait a short time for running calls, then stop."""
        for deadline in self._running.copy():
            deadline.shorten(CLOSE_SECONDS)
        stop = partial(self._pool.shutdown, wait=True, cancel_futures=True)
        with anyio.move_on_after(2 * CLOSE_SECONDS + SLACK_SECONDS, shield=True):
            await anyio.to_thread.run_sync(stop, abandon_on_cancel=True)

    def close(self) -> None:
        """Let each thread end after its current call."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _has_begun(future: Future[T]) -> bool:
    return not future.cancel()
