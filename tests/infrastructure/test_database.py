"""Each test gets its own migrated database, on both engines."""

from __future__ import annotations

from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.migrate import check_current


def test_database_url_is_migrated(database_url: str) -> None:
    database = Database(database_url)
    database.read_sync("system", check_current)
    database.close()
