"""The migration that gives digests of earlier versions the trust of their turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, insert, select, text

from threefold_server.rules.access import owner_key, session_key
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import digests, owners, sessions, turns

ANA = owner_key("user", "ana")
SESSION = session_key(ANA, "support", "s1")
SAID = [
    ("user", "message"),
    ("system", "message"),
    ("assistant", "message"),
    ("user", "tool_result"),
    ("user", "message"),
]


@pytest.fixture
def earlier(blank_database_url: str) -> Iterator[Database]:
    """A database without the schema."""
    with closing(Database(blank_database_url)) as database:
        yield database


def fill(connection: Connection) -> None:
    """Write a session with the schema before the migration: a digest of turn 1, of 1 to 3, of all, and of none."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parents[1] / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "0010")
    own = {"owner": ANA, "session": SESSION}
    moments = {"created_at": 0, "updated_at": 0}
    connection.execute(insert(owners).values(owner=ANA, kind="user", name="ana", created_at=0))
    connection.execute(insert(sessions).values(**own, agent="support", session_id="s1", **moments))
    for seq, (role, kind) in enumerate(SAID, 1):
        row = {
            "seq": seq,
            "turn_id": str(seq),
            "role": role,
            "kind": kind,
            "content": "x",
            "tokens": 1,
            "visibility": 2,
        }
        connection.execute(insert(turns).values(**own, **row, created_at=0, event_at=0))
    for version, (first, last) in enumerate([(1, 2), (1, 3), (1, 5), (8, 9)], 1):
        row = {"version": version, "from_seq": first, "upto_seq": last, "covered_tokens": 1, "tokens": 1}
        connection.execute(insert(digests).values(**own, **row, text="x", model="m", created_at=0))


def test_earlier_digests_get_the_least_trust_of_their_turns(earlier: Database, blank_database_url: str) -> None:
    earlier.write_sync("system", fill)
    migrate.upgrade(blank_database_url)
    found = earlier.read_sync(
        "system", lambda c: c.execute(select(digests.c.trust).order_by(digests.c.version)).scalars().all()
    )
    assert found == [1.0, 0.6, 0.3, 0.0]
