"""Maintenance of a store by command: migrations, background work and purge, on both databases."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from fixtures.command_line import Run
from fixtures.postgres import Databases
from threefold import MemoryClient
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.migrate import check_current
from threefold_server.storage.erasure.forget_records import purge_pending_since

SAID = "The heron nests behind the boathouse."


@pytest.fixture
def store(run: Run, database_url: str) -> Run:
    """Run a command on a store."""
    return lambda *arguments: run(*arguments, "--database-url", database_url)


@pytest.fixture
def idle(database_url: str) -> Iterator[MemoryClient]:
    """A client of a service without background work."""
    service = LocalService(database_url=database_url, embedder="hash", consolidate=False)
    with service, service.client("ana", "support") as client:
        yield client


def test_migrate_creates_the_schema_and_may_be_repeated(run: Run, blank_database_url: str) -> None:
    for _ in range(2):
        assert run("migrate", "--database-url", blank_database_url).code == 0
    database = Database(blank_database_url)
    database.read_sync("system", check_current)
    database.close()


def test_unreachable_database_is_reported_with_what_to_check(run: Run) -> None:
    refused = run("migrate", "--database-url", "postgresql://x@127.0.0.1:1/y")
    assert refused.code == 1
    assert "does it run, and is THREEFOLD_DATABASE_URL right?" in refused.err


def test_consolidate_does_the_due_work(store: Run, idle: MemoryClient) -> None:
    idle.write("s1", [{"role": "user", "content": SAID}])
    assert idle.status("s1").state == "pending"
    done = store("consolidate", "--embedder", "hash")
    assert (done.code, done.out) == (0, "")
    assert "No work is left." in done.err
    assert (idle.status("s1").state, idle.status("s1").indexed_upto) == ("idle", 1)
    assert "due again: 0" in store("consolidate", "--retry-parked", "--embedder", "hash").err


def test_rebuild_restores_everything(store: Run, idle: MemoryClient) -> None:
    idle.write("s1", [{"role": "user", "content": SAID}])
    saved = idle.save("Herons eat fish.")
    assert store("rebuild", "--embedder", "hash").code == 0
    assert idle.status("s1").indexed_upto == 1
    assert idle.get_fact(saved.id) == saved
    assert {found.text for found in idle.recall("heron").memories} == {SAID, saved.text}


def test_another_embedder_is_refused_until_reembed(store: Run, database_url: str) -> None:
    with LocalService(database_url=database_url, embedder="hash") as service, service.client("ana") as memory:
        memory.write("s1", [{"role": "user", "content": SAID}])
        memory.wait("s1")
    refused = store("consolidate", "--embedder", "minilm")
    assert refused.code == 1
    assert "`threefold reembed`" in refused.err
    assert refused.err.count("\n") == 1
    assert store("reembed", "--embedder", "minilm").code == 0
    assert store("consolidate", "--embedder", "minilm").code == 0


def test_failing_model_leaves_work_and_is_reported(store: Run, idle: MemoryClient) -> None:
    idle.write("s1", [{"role": "user", "content": SAID}])
    left = store("reembed", "--embedder", "openai:text-embedding-3-small", "--model-base-url", "http://127.0.0.1:1/v1")
    assert left.code == 1
    assert "tasks are left: 1 embed waiting" in left.err


@pytest.mark.parametrize("command", ["consolidate", "rebuild", "reembed", "purge"])
def test_missing_store_is_not_created(run: Run, tmp_path: Path, command: str) -> None:
    refused = run(command, "--data", tmp_path / "none")
    assert refused.code == 2
    assert "no store at" in refused.err
    assert not (tmp_path / "none").exists()


def purge_is_pending(url: str) -> bool:
    database = Database(url)
    try:
        return database.read_sync("system", purge_pending_since) is not None
    finally:
        database.close()


def bytes_with(word: str, databases: Databases, url: str) -> int:
    """Return how often the word occurs in the table, TOAST and index files of a Postgres database."""
    name = url.rpartition("/")[2]
    with psycopg.connect(databases.admin_url, dbname=name) as connection:
        connection.execute("CHECKPOINT")
        paths = connection.execute("SELECT pg_relation_filepath(oid) FROM pg_class WHERE relkind IN ('r', 't', 'i')")
        files = [row[0] for row in paths.fetchall() if row[0]]
        return sum(
            row[0].count(word.encode())
            for file in files
            for row in connection.execute("SELECT pg_read_binary_file(%s)", [file]).fetchall()
        )


def test_purge_clears_the_files_of_postgres(run: Run, databases: Databases, postgres_url: str) -> None:
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client("ana") as memory:
        memory.write("s1", [{"role": "user", "content": SAID, "id": "boathouse", "name": "boathouse"}])
        memory.save(SAID, metadata={"place": "boathouse"})
        memory.items_batch([{"op": "put", "namespace": ["boathouse"], "key": "boathouse", "value": {"text": SAID}}])
        memory.wait("s1")
        assert memory.forget(level="agent").purge == "pending"
    assert bytes_with("boathouse", databases, postgres_url) > 0
    done = run("purge", "--yes", "--database-url", postgres_url)
    assert done.code == 0
    assert "VACUUM FULL" in done.err
    assert bytes_with("boathouse", databases, postgres_url) == 0
    assert not purge_is_pending(postgres_url)


def test_purge_of_postgres_asks_for_confirmation(run: Run, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client("ana") as memory:
        memory.forget(level="agent")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run("purge", "--database-url", postgres_url).code == 1
    assert purge_is_pending(postgres_url)


def test_purge_held_back_by_a_transaction_is_reported(run: Run, databases: Databases, postgres_url: str) -> None:
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client("ana") as memory:
        memory.write("s1", [{"role": "user", "content": SAID}])
        name = postgres_url.rpartition("/")[2]
        with psycopg.connect(databases.admin_url, dbname=name) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            memory.forget(session_id="s1")
            held = run("purge", "--yes", "--database-url", postgres_url)
    assert held.code == 1
    assert "an open transaction still reads" in held.err
    assert purge_is_pending(postgres_url)


@pytest.fixture
def other_role(databases: Databases, postgres_url: str) -> Iterator[str]:
    """The URL of a role that may use the tables but does not own them."""
    name = postgres_url.rpartition("/")[2]
    other = Databases(databases.admin_url, role=f"other_{secrets.token_hex(4)}")
    other.create_role()
    role = sql.Identifier(other.role)
    with psycopg.connect(databases.admin_url, dbname=name, autocommit=True) as connection:
        connection.execute(
            sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {}").format(role)
        )
        yield other.url(name)
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
    other.drop_role()


def test_purge_of_tables_of_another_role_fails(run: Run, other_role: str) -> None:
    refused = run("purge", "--yes", "--database-url", other_role)
    assert refused.code == 1
    assert "connect as the role that owns the tables" in refused.err


def test_purge_of_sqlite_truncates_the_log_and_frees_space(run: Run, sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with LocalService(database_url=sqlite_url, embedder="hash") as service, service.client("ana") as memory:
        memory.write("s1", [{"role": "user", "content": SAID * 1_000} for _ in range(100)])
        memory.forget(session_id="s1")
        before = path.stat().st_size
        assert run("purge", "--database-url", sqlite_url).code == 0
        assert path.stat().st_size == before
        assert run("purge", "--compact", "--database-url", sqlite_url).code == 0
    assert path.stat().st_size < before / 2
    assert b"boathouse" not in path.read_bytes()
