"""The one writer of SQLite: a thread that commits waiting writes together, each in a savepoint of its own.

A commit waits for the disk once, however many writes it contains: with 32 clients, 2,600 instead of 1,300 writes a
second. Transactions and savepoints are sent through the driver: SQLAlchemy's own took as long as the statements of a
write.

Writes of requests come before those of background work that are up to `PATIENCE_SECONDS` older. A background write has
a transaction of its own, so that requests wait for one at most.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, NamedTuple, TypeVar

import anyio
from sqlalchemy import Connection, Engine

from threefold_server.storage.engine.deadline import SLACK_SECONDS, not_in_time
from threefold_server.storage.engine.write_lock import begin_immediate, is_busy

T = TypeVar("T")

WRITES_PER_COMMIT = 64
BUSY_SECONDS = 3.0  # wait for a lock of another process; shorter than the 5 s of a client, which so gets the error
CLOSE_SECONDS = 10.0
PATIENCE_SECONDS = 0.05


class _Write(NamedTuple):
    """A waiting write. Writes are taken in the order of their fields."""

    turn: float
    """The time of its call; for background work `PATIENCE_SECONDS` later."""
    number: int
    """Orders the writes of one moment."""
    function: Callable[[Connection], Any]
    outcome: Future[Any]
    background: bool


def _nothing(_: Connection) -> None:
    """Write nothing."""


_CLOSE = _Write(math.inf, 0, _nothing, Future(), background=False)


class GroupCommit:
    """Runs writes on the writing connection. The thread starts with the first write and ends with `close`."""

    def __init__(self, engine: Engine, translate: Callable[[], AbstractContextManager[Any]]) -> None:
        self._engine = engine
        self._translate = translate
        self._waiting: queue.PriorityQueue[_Write] = queue.PriorityQueue()
        self._numbers = count()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[Connection], T], seconds: float, *, background: bool = False) -> T:
        """Run a write and return its result once it is committed.

        If the caller is cancelled, a write that has not begun is skipped, and one that has begun continues.

        Raises:
            Unavailable: The write did not end in `seconds` and one more, including the wait for other writes. Its
                details have `outcome: unknown` if it had begun.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="threefold-writer", daemon=True)
            self._thread.start()
        outcome: Future[T] = Future()
        turn = time.monotonic() + (PATIENCE_SECONDS if background else 0.0)
        self._waiting.put(_Write(turn, next(self._numbers), function, outcome, background))
        with anyio.move_on_after(seconds + SLACK_SECONDS):
            return await asyncio.wrap_future(outcome)
        raise not_in_time(unknown=not outcome.cancel())

    def close(self) -> None:
        """Finish waiting writes and end the thread; return after 10 seconds even if the disk hangs."""
        if self._thread is not None:
            self._waiting.put(_CLOSE)
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _work(self) -> None:
        while (first := self._waiting.get()) is not _CLOSE:
            batch = [first]
            while not first.background and len(batch) < WRITES_PER_COMMIT:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if following is _CLOSE or following.background:
                    self._waiting.put(following)
                    break
                batch.append(following)
            self._commit([write for write in batch if write.outcome.set_running_or_notify_cancel()])

    def _commit(self, batch: list[_Write]) -> None:
        replies: list[Callable[[], None]] = []
        try:
            with self._translate(), self._engine.connect() as connection:
                replies = self._transaction(connection, batch)
        except Exception as error:  # noqa: BLE001 - every waiting caller must get the error
            if _is_locked(error):
                batch += self._take_waiting()  # each of them would wait as long for the same lock
            replies = [_failure(write, error) for write in batch]
        for reply in replies:
            reply()

    def _take_waiting(self) -> list[_Write]:
        found: list[_Write] = []
        for _ in range(self._waiting.qsize()):
            write = self._waiting.get()
            if write is _CLOSE:
                self._waiting.put(_CLOSE)
            elif write.outcome.set_running_or_notify_cancel():
                found.append(write)
        return found

    def _transaction(self, connection: Connection, batch: list[_Write]) -> list[Callable[[], None]]:
        """Run the writes, commit them, and return functions that answer their callers after the commit.

        A single write needs no savepoint.
        """
        driver: Any = connection.connection.driver_connection
        attempt = _run if len(batch) == 1 else self._run_in_savepoint
        background = all(write.background for write in batch)
        # Background work is repeated if a power failure undoes it, so it does not hold the lock until the disk answers.
        driver.execute(f"PRAGMA synchronous={'NORMAL' if background else 'FULL'}")
        begin_immediate(driver, BUSY_SECONDS, background=background)
        try:
            replies = [attempt(connection, write) for write in batch]
            driver.execute("COMMIT")
        except BaseException:  # of any kind: the connection must not stay in the transaction
            if driver.in_transaction:  # not if SQLite rolled back by itself, for example on a full disk
                driver.execute("ROLLBACK")
            raise
        return replies

    def _run_in_savepoint(self, connection: Connection, write: _Write) -> Callable[[], None]:
        """Run one of several writes in a savepoint, so that it can be rolled back alone."""
        driver: Any = connection.connection.driver_connection
        driver.execute("SAVEPOINT one_write")
        try:
            with self._translate():
                reply = _run(connection, write)
        except Exception as error:  # of any kind: it fails this write only
            if not driver.in_transaction:  # SQLite has rolled back all writes
                raise
            driver.execute("ROLLBACK TO one_write")
            reply = _failure(write, error)
        driver.execute("RELEASE one_write")
        return reply


def _run(connection: Connection, write: _Write) -> Callable[[], None]:
    result = write.function(connection)
    return lambda: write.outcome.set_result(result)


def _failure(write: _Write, error: BaseException) -> Callable[[], None]:
    return lambda: write.outcome.set_exception(error)


def _is_locked(error: BaseException) -> bool:
    """Return whether another process held the lock of SQLite for longer than `BUSY_SECONDS`."""
    return any(map(is_busy, (error, error.__cause__, getattr(error.__cause__, "orig", None))))
