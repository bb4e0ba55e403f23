"""Reports on forgetting: forgotten content is gone from every tier, and everything else stays complete."""

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
from fixtures.talk import said
from threefold import MemoryClient
from threefold.contract import Memory, TurnIn
from threefold.errors import NotFound, Unavailable
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.pseudonyms import pseudonyms
from threefold_server.storage.engine.tables import digests, fact_sources, facts, metadata, receipts, sessions

pytestmark = pytest.mark.anyio

SECRET = "passport ZX-99"


def support(world: World, fact: Memory, *places: tuple[str, int]) -> None:
    """Make turns the sources of a fact, each sufficient alone, as if a model had extracted the fact from them."""
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


async def test_forgotten_text_is_never_shown_to_a_model_again(world: World) -> None:
    """Reported: forgotten text was kept and given to the extraction model again."""
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


async def test_fact_is_deleted_with_its_last_session(world: World) -> None:
    """Reported: a session was deleted, but the conclusions drawn from it remained."""
    await world.write("s1", "The vet is Dr Omar.")
    await world.write("s2", "Dr Omar, the vet, was here.")
    alone, both = await world.save("Omar treats the cat."), await world.save("Omar is a vet.")
    support(world, alone, ("s1", 1))
    support(world, both, ("s1", 1), ("s2", 1))
    await world.forget(session_id="s1")
    assert texts(world) == ["Omar is a vet."]
    assert [row.session for row in world.rows(fact_sources)] == [world.key("s2")]
    assert [row.session_id for row in world.rows(sessions)] == ["s2"]
    await world.forget(session_id="s2")
    assert texts(world) == []


async def test_fact_is_deleted_with_its_last_turn(world: World) -> None:
    """Reported: it was unclear what happens to a fact made from two messages when one is deleted."""
    await world.write("s1", *(TurnIn(role="user", content=f"I moved to Oslo, part {n}.", id=f"t{n}") for n in (1, 2)))
    fact = await world.save("Lives in Oslo.")
    support(world, fact, ("s1", 1), ("s1", 2))
    await world.forget(memory_ids=["t1"])
    assert [row.from_seq for row in world.rows(fact_sources)] == [2]
    assert texts(world) == ["Lives in Oslo."]
    await world.forget(memory_ids=["t2"])
    assert texts(world) == []


async def test_fact_forgotten_with_its_sources_is_in_no_digest(world: World) -> None:
    """Reported: a single forgotten fact stayed in the summaries.

    Every digest version made from its turns is deleted, and the new digest does not contain them.
    """
    await world.write("s1", f"My {SECRET} is at home.", *["A remark about the weather. " * 3] * 12)
    await world.settle()
    fact = await world.save("The passport is at home.")
    support(world, fact, ("s1", 1))
    assert SECRET in world.rows(digests)[-1].text
    await world.forget(memory_ids=[fact.id], sources=True)
    await world.settle()
    assert world.rows(digests)
    assert SECRET not in repr([row.text for row in world.rows(digests)])
    assert texts(world) == []


def test_forget_takes_effect_in_other_processes_at_once(database_url: str) -> None:
    """Reported: deleted facts were still returned until a restart. Both services answer from warm caches here."""
    with (
        LocalService(database_url=database_url, embedder="hash") as one,
        LocalService(database_url=database_url, embedder="hash") as two,
        one.client() as first,
        two.client() as second,
    ):
        first.write("s1", [said(f"My {SECRET} is at home.")])
        first.save(f"Keep the {SECRET} safe.")
        first.wait("s1")
        for client in (first, second, first, second):
            assert len(client.recall("passport", session_id="s2").memories) == 2
        first.forget(level="agent")
        for client in (second, first):
            recalled = client.recall("passport", session_id="s1")
            assert (recalled.memories, recalled.window, recalled.block) == ([], [], "")


def test_failed_forget_deletes_nothing(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported: forget reported success although a backend had failed half way. The same call succeeds when
    repeated."""
    memory.write("s1", [said(SECRET, id="t1")])
    memory.save(f"Keep the {SECRET} safe.", session_id="s1")
    with monkeypatch.context() as fault:

        def fail(*_: object, **__: object) -> int:
            raise OperationalError("delete", None, Exception("disk I/O error"))

        fault.setattr("threefold_server.storage.memories.index.remove", fail)
        with pytest.raises(Unavailable):
            memory.forget(session_id="s1")
    assert [turn.content for turn in memory.turns("s1").turns] == [SECRET]
    assert len(memory.list().items) == 2
    assert memory.write("s1", [said(SECRET, id="t1")]).duplicates == 1
    receipt = memory.forget(session_id="s1")
    assert (receipt.complete, receipt.counts["turns"], receipt.counts["facts"]) == (True, 1, 1)


def test_audit_row_of_a_forget_holds_no_content(memory: MemoryClient, database_url: str) -> None:
    """Reported: the audit of deletions held the personal data itself. It says who, when, which selector and how
    many."""
    memory.write("s-secret", [said(SECRET, id="t1")])
    memory.forget(session_id="s-secret", dry_run=True)
    receipt = memory.forget(session_id="s-secret")
    with closing(Database(database_url)) as database:
        [row] = database.read_sync("system", lambda c: c.execute(select(receipts)).all())
        whose = database.read_sync("system", lambda c: pseudonyms(c)(ANA.owner))
    assert (row.receipt.hex, row.owner, row.selector) == (receipt.receipt_id, whose, "session")
    assert whose != ANA.owner
    assert json.loads(row.counts) == receipt.counts
    assert "secret" not in repr(row)
    assert SECRET not in repr(row)


def test_forgotten_user_is_named_in_no_table_and_can_start_again(service: LocalService, database_url: str) -> None:
    """Reported: forgetting one user wiped every user. Here, the row that blocks late writers does not name the user
    either."""
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


def test_forget_after_a_restart_erases_bytes_of_the_earlier_process(tmp_path: Path) -> None:
    """Reported: a forget erased only what the running process had written."""
    with LocalService(tmp_path, embedder="hash") as service, service.client() as memory:
        memory.write("s1", [said(f"My {SECRET} is at home.", name="Quetzalina")])
        memory.save(f"Keep the {SECRET} safe.")
        memory.wait("s1")
    with LocalService(tmp_path, embedder="hash") as service, service.client() as memory:
        assert memory.forget(level="agent").purge == "done"
        written = b"".join(path.read_bytes().lower() for path in tmp_path.iterdir())
    assert b"zx-99" not in written
    assert b"quetzalina" not in written


def test_retried_writes_during_forgets_bring_nothing_back(service: LocalService) -> None:
    """An acknowledged and then forgotten turn is not stored again by a retry, whatever the order of the calls.

    No call fails because of concurrent writes, saves or forgets.
    """

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
