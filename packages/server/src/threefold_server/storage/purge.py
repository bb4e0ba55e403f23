"""Physical erasure: clear what was forgotten out of the database's files."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from threefold.errors import Unavailable
from threefold_server.storage.database import Database
from threefold_server.storage.erasures import purge_needed, purge_pending_since, purged
from threefold_server.storage.tables import metadata

Progress = Callable[[str], None]
"""Called with the name of each table before it is rewritten."""

LOCK_TIMEOUT = "30s"  # who waits for a table's lock makes everybody else wait behind him


def purge_files(database: Database, progress: Progress, *, compact: bool = False) -> int:
    """Clear the files; returns how many erased rows (on SQLite: 1 for any) an open transaction still holds there.

    On SQLite nothing but the write-ahead log needs it; `compact` gives free space back, too.
    """
    since = database.read_sync("system", purge_pending_since)
    # Beforehand, so that a forget in the meantime leaves its mark; put back if the work was not done.
    database.write_sync("system", purged)
    held = -1
    try:
        with _autocommit(database.url) as connection:
            held = _clear_sqlite(connection, compact) if database.is_sqlite else _rewrite(connection, progress)
    finally:
        if held != 0 and since is not None:
            database.write_sync("system", lambda c: purge_needed(c, since))
    return held


def _clear_sqlite(connection: Connection, compact: bool) -> int:
    if compact:
        connection.execute(text("VACUUM"))
    return int(connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()[0])


def _rewrite(connection: Connection, progress: Progress) -> int:
    notices: list[_Notice] = []

    def note(notice: Any) -> None:
        notices.append(_Notice.read(notice))

    driver: Any = connection.connection.driver_connection
    driver.add_notice_handler(note)
    connection.execute(text("SET statement_timeout = 0"))
    connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    for name in metadata.tables:
        progress(name)
        connection.execute(text(f"VACUUM (FULL, VERBOSE) {name}"))
    return sum(notice.held_back for notice in notices)


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
    def held_back(self) -> int:
        """Dead rows that it had to leave: the first number of the detail, in any language."""
        if self.severity == "WARNING":  # another role's table is skipped, not refused
            raise Unavailable(f"not purged: {self.message}; connect as the role that owns the tables")
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
