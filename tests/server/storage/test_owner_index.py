"""The search index in memory answers as the database does, whatever happened, in whichever process."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from fixtures.consolidation import Clock, FakeEmbedder, FakeExtractor, FakeSummarizer
from threefold.contract import (
    ForgetRequest,
    RecalledMemory,
    RecallRequest,
    SaveFactRequest,
    TurnIn,
    UpdateFactRequest,
    WriteRequest,
)
from threefold.contract.common import Visibility
from threefold.errors import Conflict, NotFound
from threefold_server.clock import from_micros
from threefold_server.consolidation.rebuild import extract_now, rebuild, reembed
from threefold_server.consolidation.upkeep import flush_reads, sweep
from threefold_server.consolidation.worker import run_until_idle
from threefold_server.operations.facts import restore_fact, save_fact, update_fact
from threefold_server.operations.forget import forget
from threefold_server.operations.recall import recall
from threefold_server.operations.write import write_turns
from threefold_server.rules.access import Principal, Reach
from threefold_server.service import Service
from threefold_server.settings import Settings
from threefold_server.storage.engine.database import Database
from threefold_server.storage.memories import owner_index
from threefold_server.storage.store import system_rename

WORDS = "heron lake grey ana tea likes green harbour moves boat door code".split()
VERDICTS = {(f"Ana drinks {new}.", f"Ana drinks {old}."): "excludes" for new in WORDS for old in WORDS if new != old}
MEGABYTE = 2**20
VISIBILITIES: tuple[Visibility, ...] = ("session", "agent", "user")


def outcomes(service: Service) -> dict[str, float]:
    """How recalls searched so far, by outcome."""
    samples = (sample for metric in service.metrics.index_lookups.collect() for sample in metric.samples)
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


@asynccontextmanager
async def process(url: str, clock: Clock, *, cache_mb: int, embedder: str = "fake") -> AsyncGenerator[Service]:
    """A service with connections and a cache of its own, as a process has them."""
    database = Database(url)
    options = Settings(database_url=SecretStr(url), index_cache_mb=cache_mb, tier_deadline=60)
    extractor = FakeExtractor(verdicts=VERDICTS)  # pyright: ignore[reportArgumentType]
    service = Service(options, database, FakeEmbedder(embedder), FakeSummarizer(), extractor, clock=clock)
    try:
        yield service
    finally:
        await service.aclose()
        await database.aclose()


@dataclass
class Story:
    """What two agents of one user say, save and forget, in two processes with an index and one without."""

    first: Service
    second: Service
    reference: Service
    clock: Clock
    user: str = field(default_factory=lambda: f"ana-{uuid4().hex}")
    facts: list[str] = field(default_factory=list[str])
    random: random.Random = field(default_factory=random.Random)

    async def step(self, name: str, seed: int) -> None:
        """One change, in one of the processes."""
        self.random.seed(seed)
        self.clock.advance(1 + seed % 7)
        steps: dict[str, Callable[[Service], Coroutine[Any, Any, Any]]] = {
            "write": self._write,
            "save": self._save,
            "supersede": self._supersede,
            "restore": self._restore,
            "expire": self._expire,
            "extend": self._extend,
            "forget": self._forget,
            "work": run_until_idle,
            "extract": self._extract,
            "sweep": sweep,
            "rename": self._rename,
            "rebuild": self._rebuild,
        }
        with suppress(NotFound, Conflict):  # of a fact that is gone, or that has been superseded
            await steps[name](self.random.choice([self.first, self.second]))

    async def check(self) -> None:
        """All three answer alike, whoever asks for what."""
        for request in self._questions():
            for caller in (self.caller("support"), self.caller("sales")):
                expected = await answer(self.reference, caller, request)
                for service in (self.first, self.second):
                    assert await answer(service, caller, request) == expected, (caller.agent, request)

    def caller(self, agent: str | None = None) -> Principal:
        """The user through one of the agents."""
        return Principal(self.user, agent or self.random.choice(["support", "sales"]), Reach.user, reads_shared=True)

    def _questions(self) -> Iterator[RecallRequest]:
        ask: dict[str, Any] = {"top_k": 1_000, "min_score": 0.0, "include": ["long_term"]}
        yield RecallRequest(query="Does Ana's grey heron like tea?", level="user", **ask)
        yield RecallRequest(query="heron", level="agent", session_id="s1", min_trust=0.7, **ask)
        yield RecallRequest(query="Ana drinks lake", level="session", session_id="s2", **ask)
        past = from_micros(self.clock.now - 9_000_000)
        yield RecallRequest(query="What did Ana drink?", level="user", as_of=past, **ask)

    def _text(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 6)))

    async def _write(self, service: Service) -> None:
        turns = [
            TurnIn(
                id=uuid4().hex,
                role=self.random.choice(["user", "assistant"]),
                content=f"{self._text()} -> Ana drinks {self.random.choice(WORDS)}." if role else self._text(),
            )
            for role in range(2)
        ]
        session = self.random.choice(["s1", "s2"])
        visibility = self.random.choice(VISIBILITIES)
        await write_turns(service, self.caller(), WriteRequest(session_id=session, visibility=visibility, turns=turns))

    async def _save(self, service: Service) -> None:
        request = SaveFactRequest(
            text=self._text(),
            session_id="s1",
            visibility=self.random.choice(VISIBILITIES),
            expires_in_days=self.random.choice([None, 1]),
            pinned=self.random.random() < 0.2,
        )
        self.facts.append((await save_fact(service, self.caller(), request)).id)

    async def _supersede(self, service: Service) -> None:
        changes = UpdateFactRequest(text=self.random.choice([None, self._text()]), pinned=self.random.random() < 0.5)
        self.facts.append((await update_fact(service, self.caller(), self._fact(), changes)).id)

    async def _restore(self, service: Service) -> None:
        await restore_fact(service, self.caller(), self._fact())

    async def _expire(self, service: Service) -> None:
        self.clock.advance(20 * 3_600)

    async def _extend(self, service: Service) -> None:
        for fact in self.facts:
            service.reads[self.caller().owner, UUID(fact)] += 20
        await flush_reads(service)

    async def _forget(self, service: Service) -> None:
        selector: dict[str, Any] = self.random.choice(
            [
                {"memory_ids": [self._fact()]},
                {"session_id": "s1"},
                {"source": {"kind": "tool", "name": "x"}},
                {"level": "agent"},
                {"memory_ids": [self._fact()], "dry_run": True},
            ]
        )
        await forget(service, self.caller(), ForgetRequest(**selector))

    async def _extract(self, service: Service) -> None:
        await extract_now(service)
        await run_until_idle(service)

    async def _rename(self, service: Service) -> None:
        new = f"ana-{uuid4().hex}"
        await recall(service, replace(self.caller(), user=new), RecallRequest(query="heron"))  # an empty index is kept
        await service.database.write(
            "system", partial(system_rename.rename_user, old_name=self.user, new_name=new, now=self.clock.now)
        )
        self.user = new

    async def _rebuild(self, service: Service) -> None:
        await rebuild(service)

    def _fact(self) -> str:
        return self.random.choice(self.facts or [uuid4().hex])


async def answer(service: Service, caller: Principal, request: RecallRequest) -> tuple[int, list[tuple[Any, ...]]]:
    """What a recall finds, as far as the ranking decides it; rounded, as the databases compute cosines differently."""
    answered = await recall(service, caller, request)
    assert answered.degraded == []
    return answered.pending_turns, sorted(map(rounded, answered.memories))


def rounded(memory: RecalledMemory) -> tuple[Any, ...]:
    """A memory with its scores to five places."""
    parts = {name: None if value is None else round(value, 5) for name, value in memory.score_parts}
    return -round(memory.score, 5), memory.id, memory.text, sorted(parts.items(), key=str)


STEPS = [
    *("write", "write", "write", "work", "work", "extract", "extract", "save", "save", "supersede", "restore"),
    *("expire", "extend", "forget", "sweep", "rename", "rebuild"),
]
SUPERSEDED = [("save", 1), ("work", 2), ("supersede", 3), ("work", 4), ("restore", 5), ("supersede", 6)]
CITED = [("write", seed) for seed in range(8)]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 10**6)), max_size=14))
@example(SUPERSEDED)
@example([*CITED, ("extract", 1), ("write", 9), ("extract", 2), ("forget", 12), ("work", 3)])
@example(
    [*CITED, ("extract", 1), ("rename", 1), ("write", 2), ("work", 2), ("rebuild", 3), ("expire", 1), ("sweep", 1)]
)
@example([("save", seed) for seed in range(40)] + [("work", 1), ("extend", 1), ("expire", 1), ("expire", 2)])
def test_recalls_are_the_same_in_memory_and_in_the_database(database_url: str, history: list[tuple[str, int]]) -> None:
    anyio.run(tell, database_url, history)


async def tell(url: str, history: list[tuple[str, int]]) -> None:
    clock = Clock()
    async with (
        process(url, clock, cache_mb=8) as first,
        process(url, clock, cache_mb=8) as second,
        process(url, clock, cache_mb=0) as reference,
    ):
        story = Story(first, second, reference, clock)
        for name, seed in history:
            await story.step(name, seed)
            await story.check()
        assert outcomes(reference) == {}
        assert outcomes(first).keys() <= {"hit", "load", "update"}


@pytest.mark.anyio
async def test_a_new_embedder_replaces_the_vectors_in_every_process(database_url: str) -> None:
    clock = Clock()
    async with (
        process(database_url, clock, cache_mb=8) as old,
        process(database_url, clock, cache_mb=8, embedder="other") as new,
        process(database_url, clock, cache_mb=0) as old_reference,
        process(database_url, clock, cache_mb=0, embedder="other") as new_reference,
    ):
        story = Story(old, old, old_reference, clock)
        for seed in range(6):
            await story.step("write", seed)
        await run_until_idle(old)
        await story.check()
        await reembed(new)
        await story.check()
        story.first, story.second, story.reference = new, new, new_reference
        await story.check()
        await story.step("write", 7)
        await story.check()


@pytest.mark.anyio
async def test_a_forget_is_seen_by_the_next_recall_of_another_process(database_url: str) -> None:
    clock = Clock()
    async with (
        process(database_url, clock, cache_mb=8) as first,
        process(database_url, clock, cache_mb=8) as second,
    ):
        caller = Principal("ana", "support", Reach.user)
        request = RecallRequest(query="Where is the grey heron?", include=["long_term"])
        saved = await save_fact(first, caller, SaveFactRequest(text="The grey heron is at the lake."))
        assert [memory.id for memory in (await recall(second, caller, request)).memories] == [saved.id]
        await forget(first, caller, ForgetRequest(memory_ids=[saved.id]))
        assert (await recall(second, caller, request)).memories == []
        assert outcomes(second) == {"load": 2.0}
        index = second.index._entries[caller.owner].index  # pyright: ignore[reportPrivateUsage]
        assert index is not None
        assert len(index.columns) == len(index.buffer) == 0


@pytest.mark.anyio
async def test_the_cache_keeps_the_owners_that_were_asked_last_within_its_bytes(database_url: str) -> None:
    async with process(database_url, Clock(), cache_mb=1) as service:
        request = RecallRequest(query="heron", include=["long_term"])
        callers = [Principal(f"ana-{number}", "support", Reach.user) for number in range(12)]
        for caller in callers:
            for number in range(40):
                await save_fact(service, caller, SaveFactRequest(text=f"The heron of pond {number} is grey."))
            await run_until_idle(service)
        for _ in range(2):
            for caller in callers:
                assert (await recall(service, caller, request)).memories
                assert 0 < service.index.nbytes <= MEGABYTE
        assert outcomes(service) == {"load": 24.0}
        await recall(service, callers[-1], request)
        assert outcomes(service) == {"load": 24.0, "hit": 1.0}


@pytest.mark.anyio
async def test_an_owner_with_many_memories_is_loaded_in_the_background(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_index, "AT_ONCE", 3)
    async with process(database_url, Clock(), cache_mb=1) as service:
        caller, request = Principal("ana", "support", Reach.user), RecallRequest(query="heron", include=["long_term"])
        for number in range(5):
            await save_fact(service, caller, SaveFactRequest(text=f"The heron of pond {number} is grey."))
        for _ in range(2):
            assert len((await recall(service, caller, request)).memories) == 5
            while service._started:  # noqa: ASYNC110 # pyright: ignore[reportPrivateUsage]
                await anyio.sleep(0.01)
        assert outcomes(service) == {"later": 1.0, "load": 1.0, "hit": 1.0}


@pytest.mark.anyio
async def test_an_owner_who_does_not_fit_is_searched_in_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_index, "PASSAGE_BYTES", MEGABYTE)
    async with process(database_url, Clock(), cache_mb=1) as service:
        caller, request = Principal("ana", "support", Reach.user), RecallRequest(query="heron", include=["long_term"])
        for number in range(2):
            await save_fact(service, caller, SaveFactRequest(text=f"The heron of pond {number} is grey."))
        for _ in range(2):
            assert len((await recall(service, caller, request)).memories) == 2
        assert outcomes(service) == {"too_large": 2.0}
        assert service.index.nbytes == 0
