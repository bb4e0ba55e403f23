"""Attacks on erasure: search for forgotten words in every file and in stored reasons, and for names in pseudonyms."""

from __future__ import annotations

import hashlib
import logging
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Connection, or_, select

from fixtures.command_line import THREEFOLD, Run, clean_environment
from fixtures.openai_server import OpenAIServer, Reply, chat_reply, error_reply, json_reply
from fixtures.postgres import Databases, OwnPostgres
from fixtures.sample_memory import MARKS
from threefold import MemoryClient
from threefold.contract import PutCheckpointRequest, PutWritesRequest
from threefold.contract.threads import BlobIn, WriteIn
from threefold.errors import Forbidden
from threefold_server.local import LocalService
from threefold_server.rules.access import derive_key, owner_key
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.pseudonyms import pseudonyms
from threefold_server.storage.engine.tables import audit, receipts, tasks
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.erasure import forget_records

WORD = "quagzilla"
"""In every text and name below. Long values are of few words, so that Postgres does not compress them."""

GRANTS = (
    "GRANT pg_checkpoint, pg_monitor TO threefold_app",
    "GRANT EXECUTE ON FUNCTION pg_switch_wal() TO threefold_app",
)


def live(memory: MemoryClient) -> None:
    """Put the word into every tier, as text and as a name."""
    for number in range(30):
        turn = {"role": "user", "content": f"We decided that {WORD} {number} is for good.", "id": f"{WORD}-{number}"}
        more = {"name": f"{WORD}-{number}", "group": f"{WORD}-{number}", "payload": f'{{"{WORD}": {number}}}'}
        memory.write(f"{WORD}-session", [turn | more], state=f'{{"{WORD}": {number}}}')
        memory.save(f"{WORD} likes tea {number}.", metadata={WORD: WORD}, session_id=f"{WORD}-session")
        place = {"namespace": [WORD, str(number)], "key": f"{WORD}{number}"}
        belief = memory.beliefs.record(f"{WORD} {number}", falsification=WORD, context={WORD: WORD}, support=[])
        experiment = memory.beliefs.open_experiment(belief.id, plan=WORD)
        memory.beliefs.close_experiment(experiment.id, "falsified", f"{WORD} {number}", evidence=[WORD])
        memory.beliefs.reverify(belief.id, WORD, changed=WORD)
        memory.items_batch([{"op": "put", **place, "value": {WORD: f"{WORD} {number}"}, "index": [WORD]}])
    for number in range(5):
        blob = BlobIn(type=WORD, data=WORD.encode(), channel=WORD, version=f"{WORD}{number}")
        checkpoint = PutCheckpointRequest(
            ns=WORD,
            type=WORD,
            data=WORD.encode(),
            checkpoint_id=f"{WORD}{number}",
            parent_id=WORD,
            metadata=f'{{"{WORD}": 1, "run_id": "{WORD}"}}',
            versions={WORD: f"{WORD}{number}"},
            blobs=[blob],
        )
        memory.threads.put_checkpoint(f"{WORD}-session", checkpoint)
        write = WriteIn(type=WORD, data=WORD.encode(), idx=0, channel=WORD)
        writes = PutWritesRequest(
            ns=WORD, checkpoint_id=f"{WORD}{number}", task_id=WORD, task_path=WORD, writes=[write]
        )
        memory.threads.put_writes(f"{WORD}-session", writes)
    memory.wait(f"{WORD}-session")


def files_with_word(directory: Path) -> dict[str, int]:
    """Return every file that holds the word, with the number of occurrences."""
    counts = {
        str(path.relative_to(directory)): path.read_bytes().lower().count(WORD.encode())
        for path in directory.rglob("*")
        if path.is_file()
    }
    return {name: count for name, count in counts.items() if count}


@pytest.fixture
def admin(own_postgres: OwnPostgres) -> Iterator[psycopg.Connection[Any]]:
    """A superuser in the store's database."""
    name = own_postgres.url.rpartition("/")[2]
    with psycopg.connect(own_postgres.server.admin_url, dbname=name, autocommit=True) as connection:
        yield connection


def live_and_forget(url: str, admin: psycopg.Connection[Any]) -> None:
    """Fill a memory, sample it by ANALYZE, and forget it."""
    with LocalService(database_url=url, embedder="hash", allow_admin=True, **MARKS) as service:
        with service.client(f"{WORD}-user", "support", timeout=60) as memory:
            live(memory)
            admin.execute("ANALYZE")
        with service.client("operator", timeout=60) as operator:
            assert operator.admin.forget(user=f"{WORD}-user").complete


def test_no_file_of_postgres_holds_the_word_after_a_purge(
    run: Run, own_postgres: OwnPostgres, admin: psycopg.Connection[Any]
) -> None:
    live_and_forget(own_postgres.url, admin)
    for grant in GRANTS:
        admin.execute(grant)
    admin.execute("CHECKPOINT")
    assert len(files_with_word(own_postgres.server.data)) > 10
    done = run("purge", "--yes", "--database-url", own_postgres.url)
    assert done.code == 0, done.err
    assert "Purged: no forgotten data is in tables, indexes, planner statistics, write-ahead log." in done.err
    assert files_with_word(own_postgres.server.data) == {}


def test_purge_names_what_it_could_not_clear(
    run: Run, own_postgres: OwnPostgres, admin: psycopg.Connection[Any]
) -> None:
    """The role may not switch the write-ahead log and does not own the database."""
    live_and_forget(own_postgres.url, admin)
    database = sql.Identifier(own_postgres.url.rpartition("/")[2])
    admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO postgres").format(database))
    done = run("purge", "--yes", "--database-url", own_postgres.url)
    said = done.err.replace("\n", " ")
    assert done.code == 0, said
    assert "no forgotten data is in tables, indexes." in said
    assert "May still contain forgotten data: the write-ahead log, until" in said
    assert "GRANT pg_checkpoint" in said
    assert "May still contain forgotten data: deleted rows of the planner's statistics, until" in said
    assert all(name.startswith("pg_wal/") for name in files_with_word(own_postgres.server.data))


def test_purge_does_not_call_a_retained_log_clear(
    run: Run, own_postgres: OwnPostgres, admin: psycopg.Connection[Any]
) -> None:
    live_and_forget(own_postgres.url, admin)
    for grant in GRANTS:
        admin.execute(grant)
    admin.execute("ALTER SYSTEM SET wal_keep_size = '64MB'")
    admin.execute("SELECT pg_reload_conf()")
    done = run("purge", "--yes", "--database-url", own_postgres.url)
    assert done.code == 0
    assert "planner statistics." in done.err
    assert "segments of the write-ahead log, until a replication slot, wal_keep_size" in done.err.replace("\n", " ")
    assert files_with_word(own_postgres.server.data)


def mark_of(url: str) -> str | None:
    with closing(Database(url)) as database:
        return database.read_sync("system", forget_records.purge_mark)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_purge_killed_while_waiting_stays_due(
    run: Run, databases: Databases, postgres_url: str, how: signal.Signals
) -> None:
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client("ana") as memory:
        memory.write("s1", [{"role": "user", "content": WORD}])
        memory.forget(session_id="s1")
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(databases.admin_url, dbname=name) as other:
        other.execute("LOCK TABLE turns IN ACCESS SHARE MODE")
        command = [THREEFOLD, "purge", "--yes", "--database-url", postgres_url]
        purging = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=clean_environment())
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'turns'::regclass"
        while not (row := other.execute(waiting).fetchone()) or not row[0]:
            assert purging.poll() is None
            time.sleep(0.02)
        purging.send_signal(how)
        assert purging.wait() != 0
    found = run("doctor", "--embedder", "hash", "--database-url", postgres_url)
    assert "threefold purge" in found.out
    assert run("purge", "--yes", "--database-url", postgres_url).code == 0
    assert mark_of(postgres_url) is None


def test_forget_during_a_purge_makes_a_purge_due(postgres_url: str) -> None:
    def forget_at(connection: Connection, moment: int) -> None:
        forget_records.require_purge(connection, moment)

    with closing(Database(postgres_url)) as database:
        database.write_sync("system", lambda c: forget_at(c, 1))
        mark = database.read_sync("system", forget_records.purge_mark)
        assert mark is not None
        database.write_sync("system", lambda c: forget_at(c, 1))  # with a clock that does not move
        database.write_sync("system", lambda c: forget_records.complete_purge(c, mark))
        assert database.read_sync("system", forget_records.purge_pending_since) == 1


def test_no_file_of_sqlite_holds_the_word_after_a_forget(run: Run, tmp_path: Path) -> None:
    """Database, write-ahead log and its index, open and closed, with data of other users between; and a backup."""
    store, backup = tmp_path / "store", tmp_path / "backup"
    with LocalService(store, embedder="hash", allow_admin=True, **MARKS) as service:
        with service.client(f"{WORD}-user", "support", timeout=60) as memory:
            live(memory)
        with service.client("ana", "support", timeout=60) as other:
            other.write("s1", [{"role": "user", "content": f"The heron lands {n} times."} for n in range(100)])
            other.wait("s1")
        assert files_with_word(store)
        with service.client("operator", timeout=60) as operator:
            assert operator.admin.forget(user=f"{WORD}-user").purge == "done"
        assert files_with_word(store) == {}
    assert run("purge", "--data", store).code == 0
    assert run("backup", backup, "--data", store).code == 0
    assert files_with_word(tmp_path) == {}


REASONS: dict[str, Reply] = {
    "a 400 that quotes the prompt": json_reply({"error": {"message": WORD, "type": WORD, "code": WORD}}, 400),
    "a 422 of another form": json_reply({"detail": [{"input": WORD}]}, 422),
    "a 500 that quotes the prompt": Reply(WORD.encode(), 500),
    "a refusal": chat_reply(None, refusal=f"I do not talk about {WORD}"),
    "an answer of another form": json_reply({"choices": WORD, "data": [{WORD: WORD}]}),
    "a plain error": error_reply(404),
}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Capture the log of the service and its libraries, even if an earlier test switched propagation off."""
    monkeypatch.setattr(logging.getLogger("threefold"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


@pytest.mark.parametrize("reply", REASONS)
def test_no_reason_quotes_a_conversation(
    run: Run, database_url: str, openai_server: OpenAIServer, log: pytest.LogCaptureFixture, reply: str
) -> None:
    """Reasons of embedder, digest and extractor: in the tables, the log, and the output of `status` and `doctor`."""
    openai_server.otherwise = REASONS[reply]
    models = {"model": "openai:chat", "embedder": "openai:small", "embedder_dimensions": 3}
    address: dict[str, Any] = {"model_base_url": openai_server.url, "model_api_key": "key"}
    with LocalService(database_url=database_url, **models, **address, **MARKS) as service, service.client("ana") as ana:
        ana.write("s1", [{"role": "user", "content": f"Remember {WORD} {n} for good."} for n in range(30)])
        ana.end("s1")
        while len(failed := failures(database_url)) < 3:
            time.sleep(0.02)
        reason = ana.status("s1").reason
    assert {row.kind for row in failed} == {"embed", "fold", "extract"}
    assert reason
    options = {**models, "model_base_url": openai_server.url}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    examined = run("doctor", *flags, "--database-url", database_url)
    assert "no usable answer" in examined.out
    said = [reason, repr(failed), examined.out, examined.err, log.text, *(str(item.__dict__) for item in log.records)]
    assert WORD not in "".join(said)


def failures(url: str) -> Sequence[AnyRow]:
    """Return the tasks with a reason."""
    failed = select(tasks).where(or_(tasks.c.failure.is_not(None), tasks.c.parked.is_not(None)))
    with closing(Database(url)) as database:
        return database.read_sync("system", lambda c: c.execute(failed).all())


EMAILS = [f"{name}@example.org" for name in ("ana", "bob", "eve", "zoe")]


def guesses(email: str) -> list[bytes]:
    """Return what anyone can compute from a name: keys of the service, and common hashes."""
    said = email.encode()
    keys = [owner_key("user", email), owner_key("self", email), derive_key("agent", said), derive_key("user", said)]
    plain = [hashlib.new(name, said).digest()[:16] for name in ("md5", "sha1", "sha256", "sha512")]
    return [*(key.bytes for key in keys), *plain]


def kept_of(url: str) -> str:
    """Return everything in the audit and the receipts, in hex."""
    with closing(Database(url)) as database:
        rows = [
            *database.read_sync("system", lambda c: c.execute(select(audit)).all()),
            *database.read_sync("system", lambda c: c.execute(select(receipts)).all()),
        ]
    values = [value.bytes if isinstance(value, UUID) else value for row in rows for value in row]
    return " ".join(value.hex() if isinstance(value, bytes) else str(value) for value in values)


def test_list_of_emails_matches_no_pseudonym_of_the_audit(database_url: str) -> None:
    """Pseudonyms of erased users, of agents that act for themselves, and of refused callers."""
    with LocalService(database_url=database_url, embedder="hash", allow_admin=True) as service:
        for email in EMAILS:
            with service.client(email, f"{email}-agent", timeout=60) as memory:
                memory.write("s1", [{"role": "user", "content": "hello", "id": "t1"}])
                memory.forget(session_id="s1")
                with pytest.raises(Forbidden):
                    memory.recall("hello", level="user")
        with service.client("operator", timeout=60) as operator:
            entries = operator.admin.audit().entries
            assert {entry.owner_name for entry in entries if entry.action == "forget"} == set(EMAILS)
            for email in EMAILS:
                operator.admin.forget(user=email)
            entries = operator.admin.audit().entries
            assert {entry.owner_name for entry in entries if entry.action == "forget"} == {None}
            assert len({entry.owner for entry in entries if entry.action == "forget"}) == len(EMAILS)
    kept = kept_of(database_url)
    assert "refused" in kept
    assert [email for email in EMAILS for guess in guesses(email) if guess.hex() in kept] == []


def test_two_stores_have_different_pseudonyms(sqlite_url: str, blank_sqlite_url: str) -> None:
    migrate.upgrade(blank_sqlite_url)
    found: list[UUID] = []
    shutil.copy(Path(blank_sqlite_url.removeprefix("sqlite:///")), sqlite_url.removeprefix("sqlite:///") + ".copy")
    for url in (sqlite_url, blank_sqlite_url, f"{sqlite_url}.copy"):
        with closing(Database(url)) as database:
            found.append(database.read_sync("system", lambda c: pseudonyms(c)(owner_key("user", "ana"))))
    assert found[0] != found[1] == found[2], "a copy of a store is the same store"


def test_copies_of_a_store_keep_their_pseudonyms_and_their_chain(
    run: Run, sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """A copy to Postgres and back by a backup: the chain verifies, and later entries have the same pseudonyms."""
    settings: dict[str, Any] = {"embedder": "hash", "allow_admin": True}
    urls = [sqlite_url, postgres_url, f"sqlite:///{tmp_path / 'restored.db'}"]

    def act(url: str) -> None:
        with LocalService(database_url=url, **settings) as service, service.client("ana", timeout=60) as memory:
            memory.write("s1", [{"role": "user", "content": "hello"}])
            memory.forget(session_id="s1")
            while memory.admin.verify_audit().waiting:
                time.sleep(0.02)
            assert memory.admin.verify_audit().ok
            [owner] = {entry.owner for entry in memory.admin.audit().entries if entry.action == "forget"}
            assert owner is not None

    act(sqlite_url)
    assert run("migrate-store", "--database-url", sqlite_url, "--to", postgres_url).code == 0
    act(postgres_url)
    assert run("backup", tmp_path / "backup", "--database-url", postgres_url).code == 0
    assert run("restore", tmp_path / "backup", "--database-url", urls[2]).code == 0
    act(urls[2])
