"""Engines, threads and transactions: how every statement reaches its database.

A transaction is one plain synchronous function that runs in one database thread. On Postgres its first statement sets
the scope of row-level security, and a transaction that loses a race with another one runs again (`races.py`). On SQLite
one thread with one connection runs all writes and commits waiting ones together (`group_commit.py`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, bindparam, create_engine, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DatabaseError, DBAPIError, DisconnectionError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from threefold.errors import Unavailable
from threefold_server.settings import BACKGROUND_THREADS, DATABASE_THREADS, sqlite_url
from threefold_server.storage.engine.deadline import LONG_SECONDS, SNAPSHOT_SECONDS, Lane, allowed, current, not_in_time
from threefold_server.storage.engine.group_commit import GroupCommit
from threefold_server.storage.engine.prepared import Pending, Prepared
from threefold_server.storage.engine.races import run_again
from threefold_server.storage.engine.write_lock import begin_immediate

if TYPE_CHECKING:
    from threefold_server.storage.engine.liveness import Liveness

__all__ = ["Connection", "Database", "RowScope", "sqlite_url"]

T = TypeVar("T")
RowScope = UUID | Literal["system"]
"""Whose rows a transaction may touch: those of one owner, or with "system" those of all owners."""

PROBES = 1  # readiness has a thread and a connection of its own
BUSY_TIMEOUT_MS = 5_000  # wait for a lock that another process holds; writes of a service wait less (group_commit)
INTERRUPT_STEPS = 20_000
"""Steps of SQLite's virtual machine between two checks of the deadline: about 1 ms."""
CHECKPOINT_TIMEOUT_MS = 200  # a checkpoint waits for readers, and all writers wait for the checkpoint
STATEMENT_TIMEOUT_MS = 30_000

POOLER = "pooler"
"""The parameter of a Postgres URL that only Threefold reads."""

SILENT_HOST = {
    "connect_timeout": 3,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""Timeouts for hosts that silently drop packets, while connecting (seconds) and afterwards (the second in milliseconds,
the others in seconds or packets). The system's own take minutes or hours. Values in the URL take precedence."""

PING_AFTER_SECONDS = 1.0  # a connection idle for longer may be broken; a ping before every use cost a round trip

_SET_SCOPE = Prepared(
    select(
        func.set_config("threefold.owner", bindparam("owner"), True),
        func.set_config("threefold.system", bindparam("system"), True),
        func.set_config("plan_cache_mode", bindparam("plans"), True),
    )
)
Plans = Literal["force_custom_plan", "auto"]
CUSTOM: Plans = "force_custom_plan"
CACHED: Plans = "auto"
"""How Postgres plans prepared statements. Searches are planned at each execution: with one plan for the average owner,
a search of a large owner took 41 instead of 3 ms. `write_at_once` keeps its plans: planning took half of its time in
the server."""


class Database:
    """The database of one deployment. It connects at the first call; `close()` closes all connections."""

    def __init__(
        self, url: str, *, threads: int = DATABASE_THREADS, background_threads: int = BACKGROUND_THREADS
    ) -> None:
        """Prepare engines and threads.

        Args:
            url: A SQLite or Postgres URL.
            threads: Threads for reads, and as many for writes. One owner may hold all but one of them, so that its
                slow calls leave a thread to all other owners.
            background_threads: Threads of background work.

        Raises:
            ValueError: The URL is of another kind of database.
        """
        self.url = _normalise(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._liveness: Liveness | None = None
        if self.is_sqlite:
            self._reader = _sqlite_engine(self.url, threads + background_threads + PROBES)
        else:
            connections = 2 * threads + background_threads + PROBES
            self._reader, self._liveness = _postgres_engine(self.url, connections, pooled=_pooled(url))
        self._writer = _sqlite_engine(self.url, 1, writes=True) if self.is_sqlite else self._reader
        self._pipeliner = self._reader.execution_options(isolation_level="AUTOCOMMIT")
        self._group = GroupCommit(self._writer, self._errors_translated) if self.is_sqlite else None
        self._readers, self._writers = Lane(threads, share=threads - 1), Lane(threads, share=threads - 1)
        self._background, self._probes = Lane(background_threads), Lane(PROBES)

    async def read(
        self,
        scope: RowScope,
        function: Callable[[Connection], T],
        *,
        pipelined: bool = False,
        snapshot: bool = False,
        background: bool = False,
    ) -> T:
        """Run `function` in a reading transaction and return its result.

        A call that is cancelled or late is abandoned.

        Args:
            scope: Whose rows the transaction may read.
            function: Gets the connection. It may run several times, so it must change nothing outside the database.
            pipelined: Send statements without waiting for earlier results: all that are sent together take one round
                trip on Postgres. `function` may then use `Prepared` statements only. No effect on SQLite.
            snapshot: All statements see the same state, as they always do on SQLite. Allows 600 seconds.
            background: Use the threads of background work and allow 60 seconds.

        Returns:
            What `function` returned.

        Raises:
            Unavailable: The database did not answer in time.
        """
        run = self._pipelined_sync if pipelined and not self.is_sqlite else self.read_sync
        run = self.snapshot_sync if snapshot else run
        if background:
            return await self._background.run(LONG_SECONDS, partial(run, scope, function))
        seconds = SNAPSHOT_SECONDS if snapshot else allowed.get()
        return await self._readers.run(seconds, partial(run, scope, function), owner=_owner(scope))

    async def probe(self, scope: RowScope, function: Callable[[Connection], T], seconds: float) -> T:
        """Run a reading transaction for a readiness check, in a thread that no other calls use."""
        return await self._probes.run(seconds, partial(self.read_sync, scope, function))

    async def write(
        self, scope: RowScope, function: Callable[[Connection], T], *, pipelined: bool = False, background: bool = False
    ) -> T:
        """Run `function` in a writing transaction and return its result once it is committed.

        Args:
            scope: Whose rows the transaction may read and write.
            function: As for `read`.
            pipelined: As for `read`.
            background: As for `read`.

        Raises:
            Unavailable: The database did not answer in time. Its details have `outcome: unknown` if the write may have
                been stored.
        """
        seconds = LONG_SECONDS if background else allowed.get()
        if self._group is not None:
            return await self._group.run(function, seconds, background=background)
        run = partial(self._pipelined_sync, writing=True) if pipelined else self.write_sync
        lane = self._background if background else self._writers
        return await lane.run(seconds, partial(run, scope, function), owner=_owner(scope), writing=True)

    async def write_at_once(self, scope: RowScope, send: Callable[[Connection], Pending[T]]) -> T | None:
        """Run a write that sends all of its statements together with the commit, which saves a round trip on Postgres.

        Args:
            scope: Whose rows the transaction may read and write.
            send: Sends the statements and returns the function that gets the result, which is called after the commit.
                They must find their rows by key, as Postgres keeps their plans whatever the number of rows (`CACHED`).

        Returns:
            The result. None on SQLite, which has no round trips: nothing was done, use `write`.

        Raises:
            Unavailable: As for `write`.
        """
        if self.is_sqlite:
            return None
        run = partial(self._pipelined_sync, scope, send, CACHED, writing=True)
        return (await self._writers.run(allowed.get(), run, owner=_owner(scope), writing=True))()

    def read_sync(self, scope: RowScope, function: Callable[[Connection], T]) -> T:
        return self._with_retries(partial(self._transaction, self._reader, scope, function))

    def write_sync(self, scope: RowScope, function: Callable[[Connection], T]) -> T:
        return self._with_retries(partial(self._transaction, self._writer, scope, function), writing=True)

    def snapshot_sync(self, scope: RowScope, function: Callable[[Connection], T]) -> T:
        """Run a reading transaction in which all statements see the same state."""
        levels = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        engine = self._reader.execution_options(**levels)
        return self._with_retries(partial(self._transaction, engine, scope, function))

    def _pipelined_sync(
        self, scope: RowScope, function: Callable[[Connection], T], plans: Plans = CUSTOM, *, writing: bool = False
    ) -> T:
        return self._with_retries(partial(self._pipeline, scope, function, plans), writing=writing)

    def _with_retries(self, run: Callable[[_Attempt], T], *, writing: bool = False) -> T:
        """Run a whole transaction, and again each time it loses a race with another one."""
        driver: Any = self._reader.dialect.loaded_dbapi
        with self._errors_translated(writing=writing) as attempt:
            return run_again(partial(run, attempt), (driver.Error,))

    def _transaction(
        self, engine: Engine, scope: RowScope, function: Callable[[Connection], T], attempt: _Attempt
    ) -> T:
        with engine.begin() as connection:
            attempt.begun = True
            self._set_scope(connection, scope)
            return function(connection)

    def _pipeline(self, scope: RowScope, function: Callable[[Connection], T], plans: Plans, attempt: _Attempt) -> T:
        with self._pipeliner.connect() as connection:
            attempt.begun = True
            driver: Any = connection.connection.driver_connection
            with driver.pipeline():
                driver.execute("BEGIN")
                try:
                    self._set_scope(connection, scope, plans)
                    result = function(connection)
                except BaseException:  # of any kind: the connection must not stay in the transaction
                    driver.execute("ROLLBACK")
                    raise
                driver.execute("COMMIT")
        return result

    async def purge(self) -> bool:
        """Remove the bytes of deleted rows from SQLite's write-ahead log, and return whether that succeeded.

        It fails while readers need the log, after a fault, and always on Postgres. The rows are deleted either way.
        """
        if not self.is_sqlite:
            return False
        try:
            return await self._background.run(LONG_SECONDS, self._checkpoint)
        except Unavailable:
            return False

    def _checkpoint(self) -> bool:
        with self._errors_translated(), self._writer.connect() as connection:
            raw: Any = connection.connection.driver_connection
            raw.execute(f"PRAGMA busy_timeout={CHECKPOINT_TIMEOUT_MS}")
            busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            return busy == 0

    async def aclose(self) -> None:
        """Wait a short time for running calls, then close."""
        for lane in self._lanes:
            await lane.aclose()
        self.close()

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        if self._group is not None:
            self._group.close()
        self._reader.dispose()
        self._writer.dispose()

    @property
    def _lanes(self) -> tuple[Lane, ...]:
        return self._readers, self._writers, self._background, self._probes

    def _set_scope(self, connection: Connection, scope: RowScope, plans: Plans = CUSTOM) -> None:
        if not self.is_sqlite:
            system = scope == "system"
            _SET_SCOPE.run(connection, owner="" if system else str(scope), system="on" if system else "", plans=plans)

    @contextmanager
    def _errors_translated(self, *, writing: bool = False) -> Generator[_Attempt]:
        """Raise `Unavailable` if the database is unreachable, full or read-only.

        Nothing was stored, unless the connection was lost during a write. Errors of the driver are caught, too, because
        `Prepared` statements run on the driver, without SQLAlchemy's wrappers.
        """
        driver: Any = self._reader.dialect.loaded_dbapi
        attempt = _Attempt(writing and not self.is_sqlite)
        try:
            if self._liveness is not None:
                self._liveness.admit()
            yield attempt
            if self._liveness is not None:
                self._liveness.note_answer()
        except PoolTimeout as error:
            raise Unavailable("all database connections are busy; try again") from error
        except (OperationalError, InternalError, driver.OperationalError, driver.InternalError) as error:
            if attempt.is_write and _is_outcome_unknown(error):
                raise not_in_time(unknown=True) from error
            hint = "" if self.is_sqlite else "; does it run, and is THREEFOLD_DATABASE_URL right?"
            raise Unavailable(f"the database did not answer: {_error_name(error)}{hint}") from error
        except DBAPIError as error:
            if error.connection_invalidated and attempt.is_write:
                raise not_in_time(unknown=True) from error
            if error.connection_invalidated:
                raise Unavailable("the database connection was lost; try again") from error
            if self.is_sqlite and type(error) is DatabaseError:
                raise Unavailable("the database file is damaged or not a SQLite database") from error
            raise


@dataclass
class _Attempt:
    """The progress of a transaction, to interpret its failure."""

    writing: bool
    begun: bool = False

    @property
    def is_write(self) -> bool:
        """Whether the server may have received a write."""
        return self.writing and self.begun


def _owner(scope: RowScope) -> UUID | None:
    return scope if isinstance(scope, UUID) else None


def _normalise(url: str) -> URL:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg").difference_update_query([POOLER])
    if parsed.get_backend_name() != "sqlite":
        raise ValueError(f"database_url: {parsed.get_backend_name()!r} is not supported; use sqlite or postgresql")
    return parsed


def _pooled(url: str) -> bool:
    """Return whether the URL says that the service connects through a transaction pooler such as PgBouncer."""
    pooler = make_url(url).query.get(POOLER)
    if pooler not in (None, "transaction"):
        raise ValueError(f"database_url: {POOLER} must be 'transaction', not {pooler!r}")
    return pooler is not None


def _postgres_session(url: URL, *, pooled: bool) -> dict[str, Any]:
    """Return connection arguments that set session state.

    Behind a pooler each transaction may get another session, so there are no prepared statements and no options; set
    the options on the role instead.
    """
    if pooled:
        return {"prepare_threshold": None}
    own = f"-c statement_timeout={STATEMENT_TIMEOUT_MS}"
    given = url.query.get("options", "")
    return {"prepare_threshold": 2, "options": f"{own} {given if isinstance(given, str) else ' '.join(given)}"}


def _timeouts(url: URL) -> dict[str, Any]:
    return {name: value for name, value in SILENT_HOST.items() if name not in url.query}


def _sqlite_engine(url: URL, size: int, *, writes: bool = False) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=0,
        hide_parameters=True,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.isolation_level = None  # the "begin" listener sends BEGIN, so that reads see one snapshot
        connection.set_progress_handler(_is_late, INTERRUPT_STEPS)
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",  # an acknowledged write survives power loss
            "foreign_keys=ON",
            "secure_delete=ON",  # overwrite deleted text with zeros
            "cache_size=-65536",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:  # group_commit has begun it
            return
        if writes:
            driver.execute("PRAGMA synchronous=FULL")
            begin_immediate(driver, BUSY_TIMEOUT_MS / 1000)
        else:
            driver.execute("BEGIN")

    return engine


def _is_late() -> bool:
    """Return whether SQLite should interrupt the statement that runs in this thread."""
    deadline = current.get()
    return deadline is not None and deadline.passed


def _postgres_engine(url: URL, connections: int, *, pooled: bool) -> tuple[Engine, Liveness]:
    from pgvector.psycopg import register_vector
    from psycopg import Connection as PsycopgConnection
    from psycopg.types import TypeInfo

    from threefold_server.storage.engine.liveness import Liveness, opener  # needs the [postgres] extra

    engine = create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,  # a traceback must not contain texts of memories
        pool_timeout=5,
        connect_args=_timeouts(url) | _postgres_session(url, pooled=pooled),
    )

    liveness = Liveness()
    event.listen(engine, "do_connect", opener(liveness))

    @event.listens_for(engine, "connect")
    def configure(connection: PsycopgConnection[Any], _: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        autocommit = connection.autocommit
        connection.autocommit = True
        if TypeInfo.fetch(connection, "vector") is not None:  # None before the first migration
            register_vector(connection)
        connection.autocommit = autocommit

    _ping_idle_connections(engine)
    return engine, liveness


def _ping_idle_connections(engine: Engine) -> None:
    """Let the pool replace a connection that broke while nobody used it."""
    from psycopg import Error as PsycopgError

    @event.listens_for(engine, "checkin")
    def note(_: Any, record: ConnectionPoolEntry) -> None:  # pyright: ignore[reportUnusedFunction]
        record.info["used_at"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def ping(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        if time.monotonic() - record.info.get("used_at", time.monotonic()) < PING_AFTER_SECONDS:
            return
        try:
            connection.execute("")
            connection.rollback()
        except PsycopgError as error:
            raise DisconnectionError from error  # the pool opens another connection


def _is_outcome_unknown(error: BaseException) -> bool:
    """Return whether the server sent no error of its own, which has a SQLSTATE and rolls the transaction back.

    A server that shuts down (57P..) may have committed before.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    state: str | None = getattr(cause, "sqlstate", None)
    return state is None or state.startswith("57P")


def _error_name(error: BaseException) -> str:
    """Return the class name of the driver's error, which contains no statement, value or address."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return type(cause).__name__
