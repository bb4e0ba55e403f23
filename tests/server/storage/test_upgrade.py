"""A store of an earlier version is upgraded while turns are written to it, and loses none."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, select, text, update

from threefold.errors import Unavailable
from threefold_server.local import LocalService
from threefold_server.rules.access import owner_key, session_key
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import owners, sessions, turns

CONFIG = Config()
CONFIG.set_main_option("script_location", str(Path(migrate.__file__).parents[1] / "migrations"))
EARLIER = [script.revision for script in ScriptDirectory.from_config(CONFIG).walk_revisions()][1:]

OWNER = owner_key("user", "ana")
SESSION = session_key(OWNER, "support", "s1")


def begin(connection: Connection, revision: str) -> None:
    """Create a store of a revision with one session."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    CONFIG.attributes["connection"] = connection
    command.upgrade(CONFIG, revision)
    connection.execute(insert(owners).values(owner=OWNER, kind="user", name="ana", created_at=0))
    place = {"owner": OWNER, "session": SESSION, "agent": "support", "session_id": "s1"}
    connection.execute(insert(sessions).values(**place, created_at=0, updated_at=0))


def append(connection: Connection, seq: int) -> None:
    """Append a turn with the columns that every version has."""
    turn = {"owner": OWNER, "session": SESSION, "seq": seq, "turn_id": str(seq), "role": "user", "kind": "message"}
    counted = {"content": f"turn {seq}", "tokens": 2, "visibility": 2, "created_at": 0, "event_at": 0}
    connection.execute(insert(turns).values(**turn, **counted))
    connection.execute(update(sessions).where(sessions.c.owner == OWNER).values(last_seq=seq, turns=seq, revision=seq))


@contextmanager
def written_to(database: Database) -> Generator[list[int]]:
    """Append turns until the block ends, and yield the acknowledged ones."""
    acknowledged: list[int] = []
    going, stop = Event(), Event()

    def work() -> None:
        while not stop.is_set():
            seq = len(acknowledged) + 1
            try:
                database.write_sync(OWNER, partial(append, seq=seq))
            except Unavailable:
                continue
            acknowledged.append(seq)
            going.set()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        going.wait()
        try:
            yield acknowledged
        finally:
            stop.set()
    working.result()


@pytest.mark.parametrize("revision", EARLIER)
def test_earlier_store_is_upgraded_under_load(blank_database_url: str, revision: str) -> None:
    database = Database(blank_database_url)
    database.write_sync("system", lambda c: begin(c, revision))
    with written_to(database) as acknowledged:
        migrate.upgrade(blank_database_url)
        after = len(acknowledged)
        while len(acknowledged) == after:  # writing continues after the upgrade
            Event().wait(0.001)
    stored = database.read_sync(OWNER, lambda c: c.execute(select(turns.c.seq).order_by(turns.c.seq)).scalars().all())
    assert stored == acknowledged
    database.close()
    with (
        LocalService(database_url=blank_database_url, embedder="hash", consolidate=False) as service,
        service.client("ana", "support") as client,
    ):
        assert client.write("s1", [{"role": "user", "content": "and more"}]).last_seq == len(acknowledged) + 1
        assert client.turns("s1", from_seq=len(acknowledged)).turns[0].content == f"turn {acknowledged[-1]}"
