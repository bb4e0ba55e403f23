"""`threefold doctor`: its exit code, and that the command it names fixes the problem."""

from __future__ import annotations

import json

import pytest

from fixtures.command_line import Run
from fixtures.openai_server import OpenAIServer, chat_reply, error_reply
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import tasks


def test_doctor_fails_if_there_is_a_finding(run: Run, sqlite_url: str) -> None:
    store = ("--database-url", sqlite_url, "--embedder", "hash")
    with LocalService(database_url=sqlite_url, embedder="hash") as service, service.client("ana", "support") as client:
        client.write("s1", [{"role": "user", "content": "The heron nests."}])
        client.wait("s1")
    assert run("doctor", *store).code == 0
    _park(sqlite_url)
    shown = run("doctor", *store, "--json")
    assert shown.code == 1
    assert [row["check"] for row in shown.json["findings"] if row["remedy"]] == ["parked work"]
    assert "problems found: parked work" in shown.err


def test_real_endpoint_is_tested_with_a_digest_and_a_comparison(
    run: Run, sqlite_url: str, openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"MODEL": "chat", "MODEL_BASE_URL": openai_server.url, "MODEL_API_KEY": "key"}
    for name, value in {"DATABASE_URL": sqlite_url, "EMBEDDER": "hash", **model}.items():
        monkeypatch.setenv(f"THREEFOLD_{name}", value)
    verdict = {"verdicts": [{"new": "N1", "relation": "same", "known": "K1"}]}
    openai_server.script(chat_reply("Somebody asks [1]."), chat_reply(json.dumps(verdict)))
    assert run("doctor").code == 0
    openai_server.otherwise = error_reply(401)
    shown = run("doctor", "--json")
    named = {row["check"]: row["detail"] for row in shown.json["findings"] if row["remedy"]}
    assert set(named) == {"digest model", "fact model"}
    assert all("answered 401" in detail for detail in named.values())


@pytest.mark.parametrize(
    ("state", "embedder", "remedy"),
    [
        ("parked work", "hash", ("consolidate", "--retry-parked")),
        ("vectors", "minilm", ("reembed",)),
        ("purge", "hash", ("purge", "--yes")),
    ],
)
def test_named_command_fixes_the_finding(
    run: Run, postgres_url: str, state: str, embedder: str, remedy: tuple[str, ...]
) -> None:
    store = ("--database-url", postgres_url, "--embedder", embedder)
    with LocalService(database_url=postgres_url, embedder="hash") as service, service.client("ana") as client:
        client.write("s1", [{"role": "user", "content": "The heron nests."}])
        client.wait("s1")
        if state == "purge":
            client.forget(session_id="s1")
    if state == "parked work":
        _park(postgres_url)
    found = [row for row in run("doctor", *store, "--json").json["findings"] if row["remedy"]]
    assert [row["check"] for row in found] == [state]
    assert f"threefold {remedy[0]}" in found[0]["remedy"]
    known = store if remedy[0] != "purge" else store[:2]
    assert run(*remedy, *known).code == 0
    assert run("doctor", *store).code == 0


def _park(url: str) -> None:
    database = Database(url)
    database.write_sync("system", lambda c: c.execute(tasks.update().values(parked="no", due_at=None)))
    database.close()
