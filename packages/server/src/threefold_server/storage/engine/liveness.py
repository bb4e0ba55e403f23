"""Whether Postgres answers at all: a hung server is told from a slow statement, and calls to it are refused at once.

A stopped server takes connections and acknowledges packets, since the kernel does that, so neither a TCP timeout nor
`statement_timeout` ends the wait.
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
"""A statement that takes longer makes its thread ask whether the server still answers others."""
PROBE_SECONDS = 2
"""For a new connection, the shortest that libpq knows; then as long again for one answer."""
TRIAL_SECONDS = 2.0
"""While the server hangs, one call in this time is let through to see whether it still does."""
CANCEL_SECONDS = 1.0
"""For a server to end a statement whose caller has given up; then the connection is closed."""

Probe = Callable[[], bool]


class Liveness:
    """What this process knows of its Postgres server."""

    def __init__(self) -> None:
        self._hangs = False
        self._trial_at = self._probed_at = 0.0
        self._lock = threading.Lock()
        self._probing = threading.Lock()

    def admit(self) -> None:
        """Raise `Unavailable` while the server hangs, except for a trial from time to time."""
        if not self._hangs:
            return
        with self._lock:
            now = time.monotonic()
            if self._hangs and now < self._trial_at:
                raise Unavailable("the database hangs; nothing was stored, try again", {"retry_after": 1})
            self._trial_at = now + TRIAL_SECONDS

    def note_answer(self) -> None:
        """The server has answered."""
        self._hangs = False

    def note_silence(self) -> None:
        """The server has not answered a new connection."""
        self._trial_at, self._hangs = time.monotonic() + TRIAL_SECONDS, True

    def hangs(self, probe: Probe) -> bool:
        """Whether the server answers nobody. One thread asks it, at intervals; the others take what is known."""
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
    """A connection whose waits end: at the deadline of the call, or when the server hangs."""

    liveness: Liveness
    probe: Probe

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Consume a generator of the driver, as the base class does."""
        return super().wait(self._watched(gen), *args, **options)

    def _watched(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass the driver's wait on. It is woken every 0.1 s without data, and that is when the time is looked at."""
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
    """One wait that has already taken a moment."""

    def __init__(self, connection: WatchedConnection) -> None:
        self._connection = connection
        self._deadline: Deadline | None = current.get()
        self._begun = time.monotonic()
        self._cancelled_at: float | None = None

    def check(self) -> None:
        """Raise `psycopg.OperationalError` and close the connection when it is no use to wait on."""
        now = time.monotonic()
        if self._cancelled_at is not None:
            if now - self._cancelled_at > CANCEL_SECONDS:
                self._give_up()
        elif self._deadline is not None and now >= self._deadline.at:
            self._cancel(now)
        elif now - self._begun > PATIENCE_SECONDS and self._connection.liveness.hangs(self._connection.probe):
            self._give_up()

    def _cancel(self, now: float) -> None:
        """Ask the server to end the statement, which keeps the connection."""
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
    """How an engine opens its connections, so that they are watched."""

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
    """Whether a new connection gets an answer, even if it is a refusal."""
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
