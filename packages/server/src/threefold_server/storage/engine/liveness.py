"""Detection of a Postgres server that hangs, as opposed to one slow statement. Calls to a hung server fail at once.

A stopped server process still accepts connections and acknowledges packets, because the kernel does that. So neither a
TCP timeout nor `statement_timeout` ends the wait.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
from psycopg import capabilities

from threefold.errors import Unavailable
from threefold_server.storage.engine.deadline import Deadline, current

PATIENCE_SECONDS = 1.0
"""After this time of waiting for a statement, its thread checks whether the server still answers a new connection."""
PROBE_SECONDS = 2
"""Timeout for a new connection (the shortest that libpq allows), and again for its answer to one query."""
TRIAL_SECONDS = 2.0
"""While the server hangs, one call per this time is admitted to see whether the server answers again."""
CANCEL_SECONDS = 1.0
"""Time for the server to cancel a statement that is late; after it, the connection is closed."""

Probe = Callable[[], bool]


class Liveness:
    """Whether the Postgres server of this process hangs."""

    def __init__(self) -> None:
        self._hangs = False
        self._trial_at = self._probed_at = 0.0
        self._lock = threading.Lock()
        self._probing = threading.Lock()

    def admit(self) -> None:
        """Raise `Unavailable` while the server hangs, except for one call every two seconds."""
        if not self._hangs:
            return
        with self._lock:
            now = time.monotonic()
            if self._hangs and now < self._trial_at:
                raise Unavailable("the database does not respond; nothing was stored, try again", {"retry_after": 1})
            self._trial_at = now + TRIAL_SECONDS

    def note_answer(self) -> None:
        """Record that the server answered."""
        self._hangs = False

    def note_silence(self) -> None:
        """Record that the server did not answer a new connection."""
        self._trial_at, self._hangs = time.monotonic() + TRIAL_SECONDS, True

    def hangs(self, probe: Probe) -> bool:
        """Return whether the server hangs. One thread probes it at intervals; the others use the last result."""
        if self._hangs or not self._probing.acquire(blocking=False):
            return self._hangs
        try:
            if time.monotonic() - self._probed_at >= TRIAL_SECONDS:
                answers = probe()
                self._probed_at = time.monotonic()
                if not answers:
                    self.note_silence()
            return self._hangs
        finally:
            self._probing.release()


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that stops waiting at the deadline of the call, or when the server hangs."""

    liveness: Liveness
    probe: Probe

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run a generator of the driver to its end, as the base class does."""
        return super().wait(self._watched(gen), *args, **options)

    def _watched(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Forward the driver's wait, which wakes up every 0.1 s without data, and check the time at each wake-up."""
        watch: _Watch | None = None
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready:
                    watch = watch or _Watch(self)
                    watch.check()
                state = gen.send(ready)
        except StopIteration as end:
            return end.value


class _Watch:
    """One wait of a connection that has taken at least 0.1 s."""

    def __init__(self, connection: WatchedConnection) -> None:
        self._connection = connection
        self._deadline: Deadline | None = current.get()
        self._begun = time.monotonic()
        self._cancelled_at: float | None = None

    def check(self) -> None:
        """Close the connection and raise `psycopg.OperationalError` if waiting longer is useless."""
        now = time.monotonic()
        if self._cancelled_at is not None:
            if now - self._cancelled_at > CANCEL_SECONDS:
                self._give_up()
        elif self._deadline is not None and now >= self._deadline.at:
            self._cancel(now)
        elif now - self._begun > PATIENCE_SECONDS and self._connection.liveness.hangs(self._connection.probe):
            self._give_up()

    def _cancel(self, now: float) -> None:
        """Ask the server to cancel the statement, so that the connection can be used again."""
        self._cancelled_at = now
        if not capabilities.has_cancel_safe():
            self._give_up()
        try:
            self._connection.cancel_safe(timeout=CANCEL_SECONDS)
        except psycopg.Error:
            self._give_up()

    def _give_up(self) -> None:
        self._connection.close()
        raise psycopg.OperationalError("the server did not answer in time")


def opener(liveness: Liveness) -> Callable[..., WatchedConnection]:
    """Return the function by which an engine opens watched connections."""

    def connect(_: object, __: object, dsn: list[Any], arguments: dict[str, Any]) -> WatchedConnection:
        try:
            connection = WatchedConnection.connect(*dsn, **arguments)
        except psycopg.errors.ConnectionTimeout:
            liveness.note_silence()
            raise
        connection.liveness = liveness
        connection.probe = partial(_answers, dsn, arguments | {"connect_timeout": PROBE_SECONDS})
        return connection

    return connect


def _answers(dsn: list[Any], arguments: dict[str, Any]) -> bool:
    """Return whether the server answers a new connection, even with an error."""
    try:
        connection = psycopg.connect(*dsn, **arguments)
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.Error:
        return True
    with closing(connection), selectors.DefaultSelector() as selector:
        connection.pgconn.send_query(b"SELECT 1")
        selector.register(connection.pgconn.socket, selectors.EVENT_READ)
        return bool(selector.select(PROBE_SECONDS))
