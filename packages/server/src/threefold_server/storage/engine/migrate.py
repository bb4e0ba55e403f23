"""Schema migrations: apply them, and check that a database has all of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from threefold.errors import Unavailable
from threefold_server.storage.engine import files, statistics
from threefold_server.storage.engine.database import Database

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parents[1] / "migrations"
MIGRATION_LOCK = 7_316_040_031  # an arbitrary constant: processes that migrate one Postgres database take turns


def upgrade(url: str) -> None:
    """Migrate the database at `url` to the current schema. Several processes may call this at once."""
    database = Database(url)
    files.create(database.url)
    try:
        database.write_sync("system", _upgrade)
        statistics.silence_all(database)
    finally:
        database.close()


def check_current(connection: Connection) -> None:
    """Raise `Unavailable` unless the database has the schema of this version."""
    found, needed = _version(connection), newest()
    if found != needed:
        raise Unavailable(
            f"the database schema is at {found or 'nothing'}, this version needs {needed}; run `threefold migrate`"
        )


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))  # a migration may take longer
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        _ensure_vector(connection)
    if _version(connection) != newest():
        _migrate(connection)


def _migrate(connection: Connection) -> None:
    from alembic import command  # takes 0.3 s to load, which a start on a current database saves
    from alembic.script import ScriptDirectory

    config = _config()
    found = _version(connection)
    if found and found not in {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}:
        raise RuntimeError(
            f"the database schema is at {found}, from a newer version of Threefold; install that version"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


@cache
def newest() -> str:
    """Return the newest revision: the one that no other follows. Read from the files, as Alembic takes long to load."""
    sources = "\n".join(path.read_text("utf-8") for path in (MIGRATIONS / "versions").glob("*.py"))
    followed = set(re.findall(r'^down_revision = "(\w+)"', sources, re.MULTILINE))
    (revision,) = set(re.findall(r'^revision = "(\w+)"', sources, re.MULTILINE)) - followed
    return revision


def _ensure_vector(connection: Connection) -> None:
    """Add pgvector to the database unless it is there, as only a superuser may add it."""
    if connection.execute(text("SELECT 1 FROM pg_extension WHERE extname = 'vector'")).first():
        return
    try:
        connection.execute(text("CREATE EXTENSION vector"))
    except DBAPIError as error:
        raise RuntimeError(
            "this database lacks pgvector, and this role cannot add it; "
            "as a superuser run in it: CREATE EXTENSION vector"
        ) from error
