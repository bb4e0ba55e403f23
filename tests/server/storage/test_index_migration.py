"""The migration that gives passages of earlier versions their terms."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, insert, select, text

from threefold_server.rules.access import owner_key, session_key
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import owners, passages, postings

TERMS = {(1, 0): {"heron": 2, "grey": 1}, (1, 1): {"heron": 1}, (2, 0): {"zx-99": 3, "鷺": 1}, (3, 0): {}}
USERS = ("ana", "ben")


def fill(connection: Connection) -> None:
    """Write the passages of two users with the schema before the migration."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parents[1] / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "0015")
    for user in USERS:
        owner = owner_key("user", user)
        connection.execute(insert(owners).values(owner=owner, kind="user", name=user, created_at=0))
        for (seq, part), terms in TERMS.items():
            key: dict[str, Any] = {"pool": owner, "source": session_key(owner, "a", "s"), "seq": seq, "part": part}
            row = key | {"owner": owner, "agent": "a", "visibility": 2, "length": 3, "event_at": 0, "trust": 1.0}
            connection.execute(insert(passages).values(row))
            for term, tf in terms.items():
                connection.execute(insert(postings).values(key | {"owner": owner, "term": term, "tf": tf}))


def test_earlier_passages_get_the_terms_of_their_postings(blank_database_url: str) -> None:
    with closing(Database(blank_database_url)) as database:
        database.write_sync("system", fill)
        migrate.upgrade(blank_database_url)
        chosen = select(passages.c.pool, passages.c.seq, passages.c.part, passages.c.terms, passages.c.rev)
        rows = database.read_sync("system", lambda c: c.execute(chosen).all())
    expected = {(owner_key("user", user), *key): terms for user in USERS for key, terms in TERMS.items()}
    found = {(row.pool, row.seq, row.part): (row.terms or "").split() for row in rows}
    assert {key: dict(zip(words[::2], map(int, words[1::2]), strict=True)) for key, words in found.items()} == expected
    assert {row.rev for row in rows} == {0}
