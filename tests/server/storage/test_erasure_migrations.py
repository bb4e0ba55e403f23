"""Migrations that remove text and recognisable names from rows of earlier versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, insert, select, text

from threefold_server.access import owner_key, session_key
from threefold_server.storage import migrate
from threefold_server.storage.database import Database
from threefold_server.storage.erasures import purge_pending_since
from threefold_server.storage.tables import owners, tasks

ANA = owner_key("user", "ana")
SAID = "my passport is ZX-99"


def upgrade_to(connection: Connection, revision: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@pytest.fixture
def earlier(blank_database_url: str) -> Iterator[Database]:
    """A database without the schema."""
    with closing(Database(blank_database_url)) as database:
        yield database


def test_old_failure_reasons_lose_their_text_and_keep_the_status(earlier: Database, blank_database_url: str) -> None:
    reasons = [
        (f"the model's server answered 400: cannot process '{SAID}'", None),
        (None, f"chat refused: I must not talk about '{SAID}'"),
        (f"the model's server answered 503: {SAID}", f"the model's server answered 4291 {SAID}"),
        (None, None),
    ]

    def begin(connection: Connection) -> None:
        upgrade_to(connection, "0008")
        connection.execute(insert(owners).values(owner=ANA, kind="user", name="ana", created_at=0))
        for number, (failure, parked) in enumerate(reasons):
            subject = session_key(ANA, "support", str(number))
            row = {"owner": ANA, "subject": subject, "kind": "fold", "upto": number}
            connection.execute(insert(tasks).values(**row, failure=failure, parked=parked))

    earlier.write_sync("system", begin)
    migrate.upgrade(blank_database_url)
    found = earlier.read_sync("system", lambda c: c.execute(select(tasks).order_by(tasks.c.upto)).all())
    assert "ZX-99" not in repr(found)
    assert found[0].failure == "the model's server answered 400"
    assert found[2].failure == "the model's server answered 503"
    assert [row.parked is not None for row in found] == [False, True, True, False]
    pending = earlier.read_sync("system", purge_pending_since)
    assert (pending is not None) is not earlier.is_sqlite, "old row versions lie in the files of Postgres"
