"""Backup, restore and migration to another database: the same content and the same answers on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from fixtures.command_line import Run
from threefold import MemoryClient
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import turns
from threefold_server.storage.store.transfer import Content, contents

SAID = "The heron nests behind the boathouse. \U0001f426 \u0440\u0435\u043a\u0430"
MANY = 1_203  # more than two batches


@pytest.fixture
def filled(database_url: str) -> str:
    """A store with content in most tables."""
    with LocalService(
        database_url=database_url, embedder="hash", compaction_target=100, compaction_trigger=200
    ) as service:
        for user in ("ana", "bo"):
            with service.client(user, "support") as client:
                client.write("s1", [{"role": "user", "content": SAID, "payload": '{"a": 1}'}])
                client.write("long", [{"role": "user", "content": f"{number}: {SAID}"} for number in range(40)])
                client.save("Herons eat fish.", metadata={"from": "a book"})
                client.update_fact(client.save("Herons are blue.").id, text="Herons are grey.")
                client.write("gone", [{"role": "user", "content": "The otter is secret."}])
                client.forget(session_id="gone")
                client.wait("s1")
                client.wait("long")
    return database_url


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest, run: Run) -> str:
    """Another store without content."""
    url: str = request.getfixturevalue(f"blank_{request.param}_url")
    assert run("migrate", "--database-url", url).code == 0
    return url


def content(url: str) -> list[Content]:
    database = Database(url)
    try:
        return database.read_sync("system", contents)
    finally:
        database.close()


def said_again(url: str) -> list[str]:
    with LocalService(database_url=url, embedder="hash", consolidate=False) as service:
        client: MemoryClient = service.client("ana", "support", timeout=60.0)
        with client:
            found = client.recall("where does the heron nest?", session_id="s2").memories
            return [memory.text for memory in found]


def test_store_moves_to_either_database(run: Run, filled: str, empty: str) -> None:
    moved = run("migrate-store", "--database-url", filled, "--to", empty, "--json")
    assert moved.code == 0, moved.err
    before = content(filled)
    assert content(empty) == before
    assert moved.json["tables"] == [one._asdict() for one in before]
    assert {one.table for one in before if one.rows} >= {"owners", "turns", "facts", "digests", "passages", "postings"}
    assert said_again(empty) == said_again(filled) != []


def test_backup_is_restored_completely(run: Run, filled: str, empty: str, tmp_path: Path) -> None:
    file = tmp_path / "memory.backup"
    before = content(filled)
    assert run("backup", file, "--database-url", filled).code == 0
    assert file.stat().st_mode & 0o077 == 0, "what users said is nobody else's to read"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".threefold")] == []
    assert run("restore", file, "--database-url", empty).code == 0
    assert content(empty) == before


def test_content_hash_shows_every_change(filled: str) -> None:
    before = content(filled)
    database = Database(filled)
    database.write_sync("system", lambda c: c.execute(update(turns).where(turns.c.seq == 7).values(content="Changed.")))
    database.close()
    assert [one.table for one, other in zip(before, content(filled), strict=True) if one != other] == ["turns"]


def test_many_rows_are_copied_in_batches(run: Run, sqlite_url: str, tmp_path: Path) -> None:
    with LocalService(database_url=sqlite_url, embedder="hash", consolidate=False) as service:
        client = service.client("ana", "support")
        for start in range(0, MANY, 401):
            client.write("s", [{"role": "user", "content": str(n)} for n in range(start, min(start + 401, MANY))])
        client.close()
    moved = run("migrate-store", "--database-url", sqlite_url, "--to", f"sqlite:///{tmp_path / 'm.db'}", "--json")
    assert {one["table"]: one["rows"] for one in moved.json["tables"]}["turns"] == MANY


def test_only_an_empty_store_is_restored_into(run: Run, filled: str, tmp_path: Path) -> None:
    file = tmp_path / "memory.backup"
    assert run("backup", file, "--database-url", filled).code == 0
    before = content(filled)
    refused = run("restore", file, "--database-url", filled)
    assert (refused.code, content(filled)) == (1, before)
    assert "holds memory already" in refused.err


def test_file_that_is_no_backup_is_refused(run: Run, tmp_path: Path, sqlite_url: str) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("The heron nests.")
    for file in (text, tmp_path / "nowhere"):
        refused = run("restore", file, "--database-url", sqlite_url)
        assert (refused.code, f"{file} is not a backup" in refused.err) == (2, True)


def test_backup_overwrites_no_file(run: Run, sqlite_url: str, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("mine")
    assert run("backup", file, "--database-url", sqlite_url).code == 2
    assert file.read_text() == "mine"


def test_store_is_not_copied_onto_itself(run: Run, sqlite_url: str) -> None:
    assert run("migrate-store", "--database-url", sqlite_url, "--to", sqlite_url).code == 2
