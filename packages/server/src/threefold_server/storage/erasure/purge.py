"""The purge: remove the bytes of erased rows from the files of the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from threefold.errors import Unavailable
from threefold_server.storage.engine import statistics
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.log_files import clear_log
from threefold_server.storage.engine.tables import metadata
from threefold_server.storage.erasure.forget_records import complete_purge, purge_mark

Progress = Callable[[str], None]
"""A function that is called with the name of each table before it is rewritten."""

LOCK_TIMEOUT = "30s"  # a session that waits for a table lock blocks all later ones
NOT_OWNER = "connect as the role that owns the tables"


class Purge(NamedTuple):
    """The result of a purge."""

    held: int
    """Erased rows that stay in the files because of an open transaction (on SQLite 1 for any number)."""

    cleared: tuple[str, ...]
    """The parts of the database that contain no erased rows any more."""

    remains: tuple[str, ...] = ()
    """The parts that may still contain erased words, each with the time or the command that clears it."""


def purge_files(database: Database, progress: Progress, *, compact: bool = False) -> Purge:
    """Remove the bytes of erased rows from the files, then the mark that a purge is due.

    The mark stays if another forget ran meanwhile. On SQLite only the write-ahead log needs a purge.

    Args:
        compact: Whether to also shrink the file of a SQLite database.
    """
    mark = database.read_sync("system", purge_mark)
    _silence_statistics(database)
    with _autocommit(database.url) as connection:
        done = _clear_sqlite(connection, compact) if database.is_sqlite else _clear_postgres(connection, progress)
    if mark is not None and not done.held:
        database.write_sync("system", partial(complete_purge, mark=mark))
    return done


def _clear_sqlite(connection: Connection, compact: bool) -> Purge:
    if compact:
        connection.execute(text("VACUUM"))
    busy = int(connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()[0])
    return Purge(busy, ("the database file", "its write-ahead log"))


def _clear_postgres(connection: Connection, progress: Progress) -> Purge:
    connection.execute(text("SET statement_timeout = 0"))
    connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    tables = _rewrite(connection, metadata.tables, progress)
    if refused := next((notice for notice in tables if notice.is_warning), None):
        raise Unavailable(f"not purged: {refused.message}; {NOT_OWNER}")
    # This removes the keys of erased owners from the planner statistics.
    connection.execute(text(f"ANALYZE {', '.join(metadata.tables)}"))
    catalogs = _rewrite(connection, statistics.CATALOGS, progress)
    held = sum(notice.held_back for notice in (*tables, *catalogs))
    left = {
        "planner statistics": _catalogs_left(connection) if any(notice.is_warning for notice in catalogs) else None,
        "write-ahead log": None if held else clear_log(connection),
    }
    cleared = ("tables", "indexes", *(part for part, problem in left.items() if not problem))
    return Purge(held, cleared, tuple(filter(None, left.values())))


def _rewrite(connection: Connection, tables: Iterable[str], progress: Progress) -> list[_Notice]:
    """Rewrite tables and their indexes; return the notices of VACUUM."""
    notices: list[_Notice] = []

    def note(notice: Any) -> None:
        notices.append(_Notice.read(notice))

    driver: Any = connection.connection.driver_connection
    driver.add_notice_handler(note)
    for table in tables:
        progress(table)
        connection.execute(text(f"VACUUM (FULL, VERBOSE) {table}"))
    driver.remove_notice_handler(note)
    return notices


def _silence_statistics(database: Database) -> None:
    """Turn off sampling of texts again, as somebody may have turned it on since the last migration."""
    try:
        statistics.silence_all(database, lock_timeout=LOCK_TIMEOUT)
    except ProgrammingError as error:
        fault: Any = error.orig
        raise Unavailable(f"not purged: {fault.diag.message_primary}; {NOT_OWNER}") from error


def _catalogs_left(connection: Connection) -> str:
    name = connection.execute(text("SELECT current_database()")).scalar_one()
    return (
        "deleted rows of the planner's statistics, until the owner of the database or a superuser has run in "
        f"{name}: {'; '.join(f'VACUUM FULL {name}' for name in statistics.CATALOGS)}"
    )


class _Notice(NamedTuple):
    """A notice of VACUUM about a table."""

    severity: str
    message: str
    detail: str

    @classmethod
    def read(cls, notice: Any) -> Self:
        """Copy a notice: the driver's object is empty once its handler has returned."""
        return cls(notice.severity_nonlocalized, notice.message_primary or "", notice.message_detail or "")

    @property
    def is_warning(self) -> bool:
        """Return whether VACUUM skipped the table. It skips tables of other roles with a warning."""
        return self.severity == "WARNING"

    @property
    def held_back(self) -> int:
        """Return the number of dead rows that stayed: the first number of the detail, in any language."""
        number = re.match(r"\d+", self.detail)
        return int(number[0]) if number else 0


@contextmanager
def _autocommit(url: URL) -> Generator[Connection]:
    """Open a separate connection without transactions, which VACUUM requires."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    except OperationalError as error:
        raise Unavailable(
            f"not purged: {type(error.orig).__name__}; try again when the database is less busy"
        ) from error
    finally:
        engine.dispose()
