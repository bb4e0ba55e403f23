"""A worker killed between the reply of the model and the commit: another worker does the work once."""

from __future__ import annotations

import json
import subprocess

import pytest
from sqlalchemy import Connection, select

from fixtures.command_line import THREEFOLD, Run
from fixtures.faults import expire_leases
from fixtures.openai_server import OpenAIServer, chat_reply, late
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import tasks
from threefold_server.storage.sessions.tasks import TaskKind

MARKS = {"token_budget": 120, "compaction_trigger": 100, "compaction_target": 40}
LOST, KEPT = "Ana told of herons.", "Ana spoke about herons at the boathouse."

pytestmark = pytest.mark.slow


@pytest.fixture
def due(database_url: str) -> str:
    """A store with a session for which all kinds of work are due."""
    with (
        LocalService(database_url=database_url, consolidate=False) as service,
        service.client("ana", "support") as client,
    ):
        client.write("s1", [{"role": "user", "content": f"The heron lands for the {n}th time."} for n in range(30)])
    return database_url


@pytest.fixture(autouse=True)
def environment(
    database_url: str, openai_server: OpenAIServer, kind: TaskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings for all processes of the store, with the model for one kind of work only."""
    model = {"model": "chat", "model_base_url": openai_server.url, "model_api_key": "key"}
    model |= {"extract_facts": str(kind == "extract"), "rolling_summary": str(kind == "fold")}
    for name, value in {"database_url": database_url, "embedder": "hash", **model, **MARKS}.items():
        monkeypatch.setenv(f"THREEFOLD_{name.upper()}", str(value))


def kill_before_commit(url: str, server: OpenAIServer, kind: TaskKind) -> None:
    """Let the model answer a worker that cannot commit because its task is locked, and kill the worker."""
    database = Database(url)
    with subprocess.Popen([THREEFOLD, "worker"]) as worker:

        def locked(connection: Connection) -> None:
            connection.execute(select(tasks.c.kind).where(tasks.c.kind == kind).with_for_update())
            server.let_go()
            server.wait_for_answer()
            worker.kill()
            worker.wait()

        try:
            server.wait_for_question()
            database.write_sync("system", locked)
        finally:
            worker.kill()
            database.close()


@pytest.mark.parametrize("kind", ["fold"])
def test_digest_is_stored_once(due: str, run: Run, openai_server: OpenAIServer, kind: TaskKind) -> None:
    openai_server.script(late(chat_reply(LOST)), chat_reply(KEPT))
    kill_before_commit(due, openai_server, kind)
    expire_leases(due)
    assert run("consolidate").code == 0
    with (
        LocalService(database_url=due, consolidate=False) as service,
        service.client("ana", "support") as client,
    ):
        [digest] = client.digests("s1").digests
    assert (digest.version, digest.from_seq, KEPT in digest.text, LOST in digest.text) == (1, 1, True, False)
    assert len(openai_server.asked) == 2


@pytest.mark.parametrize("kind", ["extract"])
def test_fact_is_stored_once(due: str, run: Run, openai_server: OpenAIServer, kind: TaskKind) -> None:
    lost, kept = (
        chat_reply(json.dumps({"memory": [{"text": text, "sources": [seq]}]}))
        for text, seq in (("The heron lands for the 1th time.", 2), ("The heron lands for the 2th time.", 3))
    )
    openai_server.script(late(lost), kept)
    kill_before_commit(due, openai_server, kind)
    expire_leases(due)
    assert run("consolidate").code == 0
    with LocalService(database_url=due, consolidate=False) as service, service.client("ana", "support") as client:
        [fact] = client.list(kinds=["fact"]).items
        assert client.status("s1").extracted_upto == 30
    assert (fact.text, [source.from_seq for source in fact.sources]) == ("The heron lands for the 2th time.", [3])
    assert len(openai_server.asked) == 2
