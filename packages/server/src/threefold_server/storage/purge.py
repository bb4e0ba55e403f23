"""Physical erasure: clear what was forgotten out of the database's files."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

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
    notices: list[Any] = []
    driver: Any = connection.connection.driver_connection
    driver.add_notice_handler(notices.append)
    connection.execute(text("SET statement_timeout = 0"))
    connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    for name in metadata.tables:
        progress(name)
        connection.execute(text(f"VACUUM (FULL, VERBOSE) {name}"))
    return sum(map(_held_back, notices))


def _held_back(notice: Any) -> int:
    """Dead rows that a VACUUM had to leave: the first number of its detail, in any language."""
    if notice.severity_nonlocalized == "WARNING":  # another role's table is skipped, not refused
        raise Unavailable(f"not purged: {notice.message_primary}; connect as the role that owns the tables")
    number = re.match(r"\d+", notice.message_detail or "")
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
