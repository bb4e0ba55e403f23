"""The doctor names each thing that may be wrong with a store, and the command that mends it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fixtures.command_line import Run
from fixtures.consolidation import SECOND, World
from fixtures.openai_server import OpenAIServer, chat_reply, error_reply
from threefold_server.doctor import LATE_SECONDS, Finding, examine
from threefold_server.local import LocalService
from threefold_server.models.ports import ModelError, ModelRefused
from threefold_server.service import now_micros
from threefold_server.storage.database import Database
from threefold_server.storage.tables import tasks

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def now(world: World) -> None:
    """The doctor compares the service's clock with the database's, so it must be the true one."""
    world.clock.now = now_micros()


async def finding(world: World, check: str) -> Finding:
    [found] = [finding for finding in await examine(world.service) if finding.check == check]
    return found


async def test_a_healthy_store_needs_nothing(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.settle()
    assert [found for found in await examine(world.service) if found.remedy] == []


async def test_parked_work(world: World) -> None:
    async def refuse() -> None:
        raise ModelRefused("the account is closed")

    world.embedder.before = refuse
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.settle()
    found = await finding(world, "parked work")
    assert found.detail.startswith("1 embed: ")
    assert "threefold consolidate --retry-parked" in found.remedy


async def test_the_lease_of_a_dead_worker(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    world.claim("index")
    world.clock.advance(60 + LATE_SECONDS)
    assert not (await finding(world, "stale leases")).remedy
    world.clock.advance(1)
    assert "threefold worker" in (await finding(world, "stale leases")).remedy


async def test_work_that_nobody_does(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    assert not (await finding(world, "background work")).remedy
    world.clock.advance(LATE_SECONDS)
    assert "threefold worker" in (await finding(world, "background work")).remedy


async def test_vectors_of_another_embedder(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.settle()
    world.embedder.name = "other"
    found = await finding(world, "vectors")
    assert found.detail == "1 by another embedder; the store's is fake, the configured one other"
    assert "threefold reembed" in found.remedy


DEAD = [
    ("embedder", "before", "embedder"),
    ("summarizer", "before", "digest model"),
    ("extractor", "before_verdicts", "fact model"),
]


@pytest.mark.parametrize(("double", "hook", "check"), DEAD)
async def test_a_dead_model(make_world: Callable[..., World], double: str, hook: str, check: str) -> None:
    async def fail() -> None:
        raise ModelError("no answer")

    world = make_world(extracts=True)
    assert not (await finding(world, check)).remedy
    setattr(getattr(world, double), hook, fail)
    found = await finding(world, check)
    assert found.detail == "no usable answer: no answer"
    assert "THREEFOLD_MODEL_BASE_URL" in found.remedy


async def test_a_clock_that_was_set_back(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    assert not (await finding(world, "clocks")).remedy
    world.clock.advance(-90)
    found = await finding(world, "clocks")
    assert (found.detail, "NTP" in found.remedy) == ("differ by 90 s", True)


async def test_a_clock_that_differs_from_the_databases(world: World) -> None:
    world.clock.now += 3_600 * SECOND
    differs = not world.service.database.is_sqlite  # which has no clock of its own
    assert bool((await finding(world, "clocks")).remedy) == differs


async def test_a_purge_that_is_due(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.forget(session_id="s1")
    due = not world.service.database.is_sqlite  # which clears its file by itself
    assert ((await finding(world, "purge")).remedy == "threefold purge") == due


def test_the_command_fails_where_something_is_wrong(run: Run, sqlite_url: str) -> None:
    store = ("--database-url", sqlite_url, "--embedder", "hash")
    with LocalService(database_url=sqlite_url, embedder="hash") as service, service.client("ana", "support") as client:
        client.write("s1", [{"role": "user", "content": "The heron nests."}])
        client.wait("s1")
    assert run("doctor", *store).code == 0
    _park(sqlite_url)
    shown = run("doctor", *store, "--json")
    assert shown.code == 1
    assert [row["check"] for row in shown.json["findings"] if row["remedy"]] == ["parked work"]
    assert "needs a look: parked work" in shown.err


def test_a_real_endpoint_is_asked_for_digests_and_facts(
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
    ("state", "embedder", "mend"),
    [
        ("parked work", "hash", ("consolidate", "--retry-parked")),
        ("vectors", "minilm", ("reembed",)),
        ("purge", "hash", ("purge", "--yes")),
    ],
)
def test_the_command_that_is_named_mends_it(
    run: Run, postgres_url: str, state: str, embedder: str, mend: tuple[str, ...]
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
    assert f"threefold {mend[0]}" in found[0]["remedy"]
    known = store if mend[0] != "purge" else store[:2]
    assert run(*mend, *known).code == 0
    assert run("doctor", *store).code == 0


def _park(url: str) -> None:
    database = Database(url)
    database.write_sync("system", lambda c: c.execute(tasks.update().values(parked="no", due_at=None)))
    database.close()
