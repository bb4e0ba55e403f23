"""Physical erasure: clear what was forgotten out of the database's files."""

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
from threefold_server.storage.erasure.erasures import purge_mark, purged

Progress = Callable[[str], None]
"""Called with the name of each table before it is rewritten."""

LOCK_TIMEOUT = "30s"  # a session that waits for a table's lock makes all later ones wait behind it
NOT_OWNER = "connect as the role that owns the tables"


class Purge(NamedTuple):
    """What a purge has cleared, and what it could not."""

    held: int
    """Erased rows that an open transaction still holds in the files (on SQLite: 1 for any)."""

    cleared: tuple[str, ...]
    """What holds nothing that was forgotten."""

    remains: tuple[str, ...] = ()
    """What may still hold erased words, each with until when, or what clears it."""


def purge_files(database: Database, progress: Progress, *, compact: bool = False) -> Purge:
    """Clear the files. The mark that a purge is due goes last, and only if nothing was forgotten meanwhile.

    On SQLite nothing but the write-ahead log needs it; `compact` gives free space back, too.
    """
    mark = database.read_sync("system", purge_mark)
    _silence_statistics(database)
    with _autocommit(database.url) as connection:
        done = _clear_sqlite(connection, compact) if database.is_sqlite else _clear_postgres(connection, progress)
    if mark is not None and not done.held:
        database.write_sync("system", partial(purged, mark=mark))
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
    # Takes the keys of erased owners out of the statistics that are kept.
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
    """Rewrite tables and their indexes; return what VACUUM says about them."""
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
    """Again, as somebody may have turned sampling on since the last migration."""
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
    """What VACUUM says about a table."""

    severity: str
    message: str
    detail: str

    @classmethod
    def read(cls, notice: Any) -> Self:
        """A copy: the driver's object is empty once its handler has returned."""
        return cls(notice.severity_nonlocalized, notice.message_primary or "", notice.message_detail or "")

    @property
    def is_warning(self) -> bool:
        """Another role's table is skipped with a warning, not refused."""
        return self.severity == "WARNING"

    @property
    def held_back(self) -> int:
        """Dead rows that it had to leave: the first number of the detail, in any language."""
        number = re.match(r"\d+", self.detail)
        return int(number[0]) if number else 0


@contextmanager
def _autocommit(url: URL) -> Generator[Connection]:
    """A connection of its own: VACUUM runs in no transaction."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    except OperationalError as error:
        raise Unavailable(f"not purged: {type(error.orig).__name__}; try again while the database is quiet") from error
    finally:
        engine.dispose()
