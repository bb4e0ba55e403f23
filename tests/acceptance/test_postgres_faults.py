"""Postgres restarted, killed, read-only, or with its idle connections cut: the service recovers.

Users reported that the first write after idle time or a restart of the database failed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from fixtures.faults import Writers, check_consolidated, check_turns, cut_connections
from fixtures.postgres import OwnPostgres, PostgresServer
from threefold.errors import NotFound, Unavailable
from threefold_server.local import LocalService

SESSIONS = ["own 0", "own 1", "shared", "shared"]


def test_first_calls_after_idle_connections_were_cut_succeed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # every connection counts as idle
    monkeypatch.setattr("threefold_server.storage.engine.database.PING_AFTER_SECONDS", 0.0)
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client(timeout=30.0) as memory:
        for number in range(3):
            cut_connections(postgres_url)
            memory.write("s1", [{"role": "user", "content": f"the heron lands {number}"}])
            cut_connections(postgres_url)
            recalled = memory.recall("heron", session_id="s1")
            assert (len(recalled.window), recalled.degraded) == (number + 1, [])
        assert memory.wait("s1").indexed_upto == 3


def test_connections_cut_under_load_fail_only_calls_in_flight(postgres_url: str) -> None:
    """The client repeats most of these calls by itself."""
    with LocalService(database_url=postgres_url, embedder="hash") as service:
        with Writers(partial(service.client, timeout=10.0), SESSIONS) as writers:
            for _ in range(3):
                writers.wait_for(20)
                before = writers.failures.total()
                cut_connections(postgres_url)
                writers.wait_for(20)
                assert writers.failures.total() - before <= len(SESSIONS)
        with service.client(timeout=10.0) as memory:
            check_turns(memory, writers.turns)
            check_consolidated(postgres_url, memory, list(writers.turns))


def test_read_only_database_refuses_writes_and_serves_reads(postgres_url: str) -> None:
    """As after a failover to a replica. The background work continues afterwards."""
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client(timeout=30.0) as memory:
        memory.write("s1", [{"role": "user", "content": "the heron lands"}])
        set_read_only(postgres_url, "on")
        with pytest.raises(Unavailable, match="ReadOnly"):
            memory.write("s1", [{"role": "user", "content": "the heron leaves"}])
        with pytest.raises(Unavailable):
            memory.save("the heron is grey")
        with pytest.raises(Unavailable):
            memory.forget(session_id="s1")
        assert [turn.content for turn in memory.recall("heron", session_id="s1").window] == ["the heron lands"]
        set_read_only(postgres_url, "off")
        memory.write("s1", [{"role": "user", "content": "the heron is back"}])
        assert memory.wait("s1").indexed_upto == 2
        assert memory.list(kinds=["fact"]).items == []


FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk AFTER INSERT ON turns EXECUTE FUNCTION full_disk()
"""


def test_write_to_a_full_disk_stores_nothing(postgres_url: str) -> None:
    """The trigger raises the error of the server; `make soak` uses a disk that is really full."""
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client(timeout=30.0) as memory:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(FULL)
            with pytest.raises(Unavailable, match="DiskFull"):
                memory.write("s1", [{"role": "user", "content": "the heron lands"}] * 3)
            connection.execute("DROP TRIGGER full_disk ON turns")
        with pytest.raises(NotFound):
            memory.turns("s1")
        memory.write("s1", [{"role": "user", "content": "the heron is back"}])
        assert memory.wait("s1").indexed_upto == 1


def set_read_only(database_url: str, value: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')  # pyright: ignore[reportArgumentType, reportCallIssue]
    cut_connections(database_url)


def restart(server: PostgresServer) -> None:
    server.restart()


def crash(server: PostgresServer) -> None:
    server.kill()
    server.start()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [restart, crash])
def test_data_is_complete_after_a_restart_of_postgres(
    own_postgres: OwnPostgres, fault: Callable[[PostgresServer], None]
) -> None:
    server, url = own_postgres
    settings: dict[str, Any] = {"token_budget": 200, "compaction_trigger": 150, "compaction_target": 50}
    with LocalService(database_url=url, embedder="hash", **settings) as service:
        client = partial(service.client, user="ana", agent="support", timeout=10.0)
        with Writers(client, SESSIONS) as writers:
            for _ in range(2):
                writers.wait_for(20)
                fault(server)
            writers.wait_for(20)
        assert set(writers.failures) <= {"Unavailable"}
        with client() as memory:
            assert memory.ready().status == "ok"
            check_turns(memory, writers.turns)
            check_consolidated(url, memory, list(writers.turns))
