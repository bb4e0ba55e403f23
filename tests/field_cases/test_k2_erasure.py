"""Field cases K2, forgetting and erasure: what goes is gone in every tier, what stays is whole."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import OperationalError

from fixtures.consolidation import ANA, World
from threefold import MemoryClient
from threefold.contract import Memory, TurnIn
from threefold.errors import NotFound, Unavailable
from threefold_server.local import LocalService
from threefold_server.storage.database import Database
from threefold_server.storage.tables import digests, fact_sources, facts, metadata, receipts, sessions

pytestmark = pytest.mark.anyio

SECRET = "passport ZX-99"


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def rest_on(world: World, fact: Memory, *places: tuple[str, int]) -> None:
    """Let a fact rest on turns, each alone, as one that a model has drawn from them."""
    of_fact = {"owner": ANA.owner, "fact": UUID(fact.id)}
    rows = [
        {**of_fact, "session": world.key(session), "from_seq": seq, "upto_seq": seq, "support": number}
        for number, (session, seq) in enumerate(places)
    ]
    world.write_sync(lambda c: c.execute(insert(fact_sources), rows))
    drawn = update(facts).where(facts.c.fact == UUID(fact.id)).values(extracted_by="a model")
    world.write_sync(lambda c: c.execute(drawn))


def texts(world: World) -> list[str]:
    return [row.text for row in world.rows(facts)]


async def test_what_was_forgotten_reaches_no_model_again(world: World) -> None:
    """Field case 202: neither the summarizer nor the embedder is shown it once more."""
    await world.write("s1", f"My {SECRET} is at home.", *["A remark about the weather. " * 3] * 8)
    await world.save(f"Keep the {SECRET} safe.", session_id="s1")
    await world.settle()
    assert SECRET in repr(world.summarizer.calls)
    assert SECRET in repr(world.embedder.calls)
    await world.forget(level="user")
    world.summarizer.calls.clear()
    world.embedder.calls.clear()
    await world.write("s1", *["Another remark about the weather. " * 3] * 8)
    await world.settle()
    assert world.summarizer.calls
    assert SECRET not in repr(world.summarizer.calls) + repr(world.embedder.calls)


async def test_a_fact_lives_as_long_as_one_of_its_sessions(world: World) -> None:
    """Field case 206."""
    await world.write("s1", "The vet is Dr Omar.")
    await world.write("s2", "Dr Omar, the vet, was here.")
    alone, both = await world.save("Omar treats the cat."), await world.save("Omar is a vet.")
    rest_on(world, alone, ("s1", 1))
    rest_on(world, both, ("s1", 1), ("s2", 1))
    await world.forget(session_id="s1")
    assert texts(world) == ["Omar is a vet."]
    assert [row.session for row in world.rows(fact_sources)] == [world.key("s2")]
    assert [row.session_id for row in world.rows(sessions)] == ["s2"]
    await world.forget(session_id="s2")
    assert texts(world) == []


async def test_a_fact_lives_as_long_as_one_of_its_turns(world: World) -> None:
    """Field case 215: each source supports it alone, and the sources are what is left of them."""
    await world.write("s1", *(TurnIn(role="user", content=f"I moved to Oslo, part {n}.", id=f"t{n}") for n in (1, 2)))
    fact = await world.save("Lives in Oslo.")
    rest_on(world, fact, ("s1", 1), ("s1", 2))
    await world.forget(fact_ids=["t1"])
    assert [row.from_seq for row in world.rows(fact_sources)] == [2]
    assert texts(world) == ["Lives in Oslo."]
    await world.forget(fact_ids=["t2"])
    assert texts(world) == []


async def test_a_fact_forgotten_with_its_sources_is_in_no_digest(world: World) -> None:
    """Field case 210: every version goes that was made of its turns, and what is made anew lacks them."""
    await world.write("s1", f"My {SECRET} is at home.", *["A remark about the weather. " * 3] * 12)
    await world.settle()
    fact = await world.save("The passport is at home.")
    rest_on(world, fact, ("s1", 1))
    assert SECRET in world.rows(digests)[-1].text
    await world.forget(fact_ids=[fact.id], sources=True)
    await world.settle()
    assert world.rows(digests)
    assert SECRET not in repr([row.text for row in world.rows(digests)])
    assert texts(world) == []


def test_no_process_remembers_what_another_forgot(database_url: str) -> None:
    """Field case 208: both have answered before, so whatever they keep in memory is warm."""
    with (
        LocalService(database_url=database_url, embedder="hash", tier_deadline=30) as one,
        LocalService(database_url=database_url, embedder="hash", tier_deadline=30) as two,
        one.client() as first,
        two.client() as second,
    ):
        first.write("s1", [said(f"My {SECRET} is at home.")])
        first.save(f"Keep the {SECRET} safe.")
        first.wait("s1")
        for client in (first, second, first, second):
            assert len(client.recall("passport", session_id="s2").facts) == 2
        first.forget(level="agent")
        for client in (second, first):
            recalled = client.recall("passport", session_id="s1")
            assert (recalled.facts, recalled.window, recalled.block) == ([], [], "")


def test_a_forget_that_fails_half_way_has_done_nothing(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case 213: no plain success, no half; the same call again is safe and does it all."""
    memory.write("s1", [said(SECRET, id="t1")])
    memory.save(f"Keep the {SECRET} safe.", session_id="s1")
    with monkeypatch.context() as fault:

        def fail(*_: object, **__: object) -> int:
            raise OperationalError("delete", None, Exception("disk I/O error"))

        fault.setattr("threefold_server.storage.index.remove", fail)
        with pytest.raises(Unavailable):
            memory.forget(session_id="s1")
    assert [turn.content for turn in memory.turns("s1").turns] == [SECRET]
    assert len(memory.list().items) == 2
    assert memory.write("s1", [said(SECRET, id="t1")]).duplicates == 1
    receipt = memory.forget(session_id="s1")
    assert (receipt.complete, receipt.counts["turns"], receipt.counts["facts"]) == (True, 1, 1)


def test_the_record_of_a_forget_holds_no_content(memory: MemoryClient, database_url: str) -> None:
    """Field case 214: who, when, what kind, how much; kept in the transaction that erases."""
    memory.write("s-secret", [said(SECRET, id="t1")])
    memory.forget(session_id="s-secret", dry_run=True)
    receipt = memory.forget(session_id="s-secret")
    with closing(Database(database_url)) as database:
        [row] = database.read_sync("system", lambda c: c.execute(select(receipts)).all())
    assert (row.receipt.hex, row.owner, row.selector) == (receipt.receipt_id, ANA.owner, "session")
    assert json.loads(row.counts) == receipt.counts
    assert "secret" not in repr(row)
    assert SECRET not in repr(row)


def test_a_forgotten_user_is_named_nowhere_and_may_come_back(service: LocalService, database_url: str) -> None:
    """Field case 201: not even in the row that keeps late writers and running work away."""
    with service.client(user="Quetzalina", agent="support") as client:
        client.write("s1", [said("hello", id="t1")])
        client.save("likes tea")
        client.wait("s1")
        client.forget(level="user")
        with closing(Database(database_url)) as database:
            tables = [
                database.read_sync("system", lambda c, table=table: c.execute(select(table)).all())
                for table in metadata.sorted_tables
            ]
        assert "quetzalina" not in repr(tables).lower()
        assert client.write("s1", [said("hello again", id="t2")]).last_seq == 1
        assert client.wait("s1").indexed_upto == 1
        assert [item.text for item in client.list().items] == ["hello again"]


def test_a_forget_after_a_restart_leaves_no_byte(tmp_path: Path) -> None:
    """T14: what an earlier process wrote is erased as well."""
    with LocalService(tmp_path, embedder="hash") as service, service.client() as memory:
        memory.write("s1", [said(f"My {SECRET} is at home.", name="Quetzalina")])
        memory.save(f"Keep the {SECRET} safe.")
        memory.wait("s1")
    with LocalService(tmp_path, embedder="hash") as service, service.client() as memory:
        assert memory.forget(level="agent").purge == "done"
        written = b"".join(path.read_bytes().lower() for path in tmp_path.iterdir())
    assert b"zx-99" not in written
    assert b"quetzalina" not in written


def test_late_writers_among_forgets_bring_nothing_back(service: LocalService) -> None:
    """A turn that was acknowledged, then forgotten, does not come back by a retry, however the calls were interleaved;
    and nobody fails because somebody else wrote, saved or forgot at the same time."""

    def write(writer: int) -> list[dict[str, Any]]:
        with service.client(user="ana", agent="support", timeout=60.0) as client:
            turns = [said(f"the heron lands {number}", id=f"{writer}.{number}") for number in range(30)]
            for number, turn in enumerate(turns):
                client.write(f"s{number % 3}", [turn])
        return turns

    def save(number: int) -> None:
        with service.client(user="ana", agent="support", timeout=60.0) as client:
            for turn in range(15):
                fact = client.save(f"the heron of {number} and {turn}", session_id=f"s{turn % 3}")
                with suppress(NotFound):
                    client.update_fact(fact.id, text="the heron again")

    def forget(number: int) -> None:
        with service.client(user="ana", agent="support", timeout=60.0) as client:
            for _ in range(5):
                client.forget(session_id=f"s{number}")
                client.forget(level="user")

    with ThreadPoolExecutor(8) as pool:
        written = [pool.submit(write, writer) for writer in range(4)]
        others = [pool.submit(work, number) for work in (save, forget) for number in range(2)]
        for other in others:
            other.result()
        turns = [future.result() for future in written]
    with service.client(user="ana", agent="support") as client:
        assert client.forget(level="user").complete
        for number in range(3):
            again = [turn for mine in turns for turn in mine[number::3]]
            answer = client.write(f"s{number}", again)
            assert (answer.appended, answer.erased) == (0, len(again))
