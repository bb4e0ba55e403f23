"""The cost of models: charged before a call, corrected after it, and no calls once a budget is spent."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import pytest
from sqlalchemy import Table

from fixtures.consolidation import ANA, START, World, until
from fixtures.openai_server import HANG, OpenAIServer, Reply, chat_reply, error_reply
from threefold_server.clock import DAY
from threefold_server.consolidation import worker
from threefold_server.models.chat import ChatModel
from threefold_server.models.instructions import read_instructions
from threefold_server.models.mem0 import Mem0Extractor
from threefold_server.models.narrative import ModelSummarizer
from threefold_server.models.openai import OpenAIEmbedder
from threefold_server.models.ports import ModelError
from threefold_server.operations.sessions import end_session
from threefold_server.spending import Spending, paid_by
from threefold_server.storage.engine.tables import digests, facts, model_use, tasks
from threefold_server.storage.sessions.tasks import TaskKind
from threefold_server.storage.store import spending

pytestmark = pytest.mark.anyio

TALK = [f"Remark {number} about the harbour and its walls." for number in range(12)]
BEN = replace(ANA, user="ben")
LARGE: dict[str, Any] = {"token_budget": 4000, "compaction_trigger": 0, "compaction_target": 0}


@dataclass(frozen=True)
class Work:
    """A use of the model, the reply of the scripted endpoint, and the tokens that the reply reports."""

    kind: TaskKind
    answer: Reply
    used: int
    table: Table
    progress: str
    settings: dict[str, Any]


FOLD = Work("fold", chat_reply("They talk about the harbour [1]."), 7, digests, "digested_upto", {})
FACT = {"memory": [{"text": "They talk about the harbour.", "sources": [1]}]}
EXTRACT = Work("extract", chat_reply(json.dumps(FACT)), 10, facts, "extracted_upto", {"extracts": True, **LARGE})

Worlds = Callable[..., World]


@pytest.fixture(params=[FOLD, EXTRACT], ids=["digests", "facts"])
def work(request: pytest.FixtureRequest) -> Work:
    return request.param


@pytest.fixture
def make_world(make_world: Worlds, work: Work) -> Worlds:
    """Worlds that need the model for this work only."""
    return partial(make_world, **work.settings)


@asynccontextmanager
async def modelled(world: World, server: OpenAIServer, timeout: float = 30.0) -> AsyncGenerator[ChatModel]:  # noqa: ASYNC109 - of the model
    """Give the world digests and facts by a model behind the server, within its budgets."""
    service = world.service
    meter = Spending(service.settings, service.database, service.metrics, world.clock)
    model = ChatModel("chat", redact=str, api_key="key", base_url=server.url, timeout=timeout, meter=meter)
    service.summarizer = ModelSummarizer(model, read_instructions("digest", None))
    if service.extractor is not None:
        service.extractor = Mem0Extractor(model)
    yield model
    await model.aclose()


async def talk(world: World, session: str = "s1") -> None:
    """Write a session for which work with the model is due."""
    await world.write(session, *TALK)
    if world.service.extractor is not None:
        await end_session(world.service, world.caller, session, 0)


def used(world: World) -> list[tuple[int, int, int]]:
    return [(row.calls, row.failed, row.tokens) for row in world.rows(model_use)]


def metric(world: World, name: str, **labels: str) -> float | None:
    return world.service.metrics.work_registry.get_sample_value(f"threefold_{name}_total", labels)


async def test_call_costs_what_the_endpoint_reports(world: World, openai_server: OpenAIServer, work: Work) -> None:
    openai_server.script(work.answer)
    async with modelled(world, openai_server):
        await talk(world)
        await world.settle()
    assert used(world) == [(1, 0, work.used)]
    assert metric(world, "model_calls", outcome="answered") == 1
    assert metric(world, "model_tokens") == work.used


async def test_failed_call_is_counted_and_stays_charged(world: World, openai_server: OpenAIServer, work: Work) -> None:
    openai_server.script(error_reply(500), work.answer)
    async with modelled(world, openai_server):
        await talk(world)
        await world.settle()
        status = await world.status("s1")
        assert status.reason is not None
        assert "attempt 2 of 8" in status.reason
        assert "answered 500" in status.reason
        [(calls, failed, charged)] = used(world)
        assert (calls, failed) == (1, 1)
        assert charged > work.used
        await world.settle_in_time()
    assert used(world) == [(2, 1, charged + work.used)]
    assert (await world.status("s1")).reason is None
    assert metric(world, "model_calls", outcome="failed") == 1


@pytest.mark.parametrize(
    ("budget", "whose"), [({"model_tokens_per_day": 5}, "store"), ({"model_tokens_per_user_day": 5}, "user")]
)
async def test_spent_budget_waits_for_the_next_day(
    make_world: Worlds, openai_server: OpenAIServer, budget: dict[str, int], whose: str, work: Work
) -> None:
    openai_server.otherwise = work.answer
    world = make_world(**budget)
    async with modelled(world, openai_server):
        await talk(world)
        await world.settle()
        await talk(world, "s2")
        await world.settle()
        assert len(openai_server.asked) == 1
        status = await world.status("s2")
        assert (status.state, getattr(status, work.progress)) == ("pending", 0)
        assert status.reason is not None
        assert "attempt 1 of 8 follows at 2023-11-15T00:0" in status.reason
        assert status.reason.endswith(f"the {whose}'s model budget for today is spent")
        assert world.task("s2", work.kind).attempts == 0
        await world.settle_in_time()
        assert world.clock.now // DAY == START // DAY + 1
        assert len(openai_server.asked) == 2
        assert getattr(await world.status("s2"), work.progress) > 0
    assert metric(world, "model_calls", outcome="over budget") == 1


async def test_budgets_of_users_are_separate(make_world: Worlds, openai_server: OpenAIServer, work: Work) -> None:
    openai_server.otherwise = work.answer
    world = make_world(model_tokens_per_user_day=5)
    async with modelled(world, openai_server):
        for caller in (ANA, BEN):
            world.caller = caller
            await talk(world)
            await world.settle()
    assert used(world) == [(1, 0, work.used)] * 2
    assert len(world.rows(work.table)) == 2


async def test_rate_limit_waits_as_long_as_the_endpoint_asks(
    world: World, openai_server: OpenAIServer, work: Work
) -> None:
    openai_server.script(error_reply(429, retry_after="120"), work.answer)
    async with modelled(world, openai_server):
        await talk(world)
        await world.settle()
        world.clock.advance(119)
        await world.settle()
        assert len(openai_server.asked) == 1
        assert "answered 429" in str((await world.status("s1")).reason)
        world.clock.advance(1)
        await world.settle()
    status = await world.status("s1")
    assert (status.state, status.reason, len(openai_server.asked)) == ("idle", None, 2)
    assert len(world.rows(work.table)) == 1


async def test_hanging_model_is_given_up_and_retried(world: World, openai_server: OpenAIServer, work: Work) -> None:
    openai_server.otherwise = HANG  # a call that times out before it reaches the server takes no reply of a script
    async with modelled(world, openai_server, timeout=0.05):
        await talk(world)
        await world.settle()
        status = await world.status("s1")
        assert (status.state, world.rows(work.table)) == ("pending", [])
        assert "attempt 2 of 8" in str(status.reason)
        assert str(status.reason).endswith("the model did not answer in time")
    openai_server.otherwise = work.answer
    async with modelled(world, openai_server):
        await world.settle_in_time()
    assert getattr(await world.status("s1"), work.progress) > 0
    assert [row[:2] for row in used(world)] == [(2, 1)]


async def test_refusal_is_parked_at_once_after_one_call(world: World, openai_server: OpenAIServer) -> None:
    """Users reported that refused requests were repeated for ever."""
    openai_server.script(error_reply(401))
    async with modelled(world, openai_server):
        await talk(world)
        await world.settle()
    status = await world.status("s1")
    assert (status.state, len(openai_server.asked)) == ("parked", 1)
    assert "answered 401" in str(status.reason)


async def test_hanging_call_ends_when_its_lease_is_lost(
    world: World, openai_server: OpenAIServer, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.005)
    openai_server.script(HANG)
    async with modelled(world, openai_server):
        await talk(world)
        async with anyio.create_task_group() as group:
            group.start_soon(world.settle)
            await until(lambda: len(openai_server.asked) == 1)
            world.write_sync(lambda c: c.execute(tasks.delete().where(tasks.c.kind == work.kind)))
    assert world.rows(work.table) == []
    assert used(world)[0][:2] == (1, 1)


@pytest.mark.parametrize("work", [FOLD])
async def test_vectors_of_an_endpoint_are_charged_only_in_the_background(
    world: World, openai_server: OpenAIServer
) -> None:
    service = world.service
    meter = Spending(service.settings, service.database, service.metrics, world.clock)
    embedder = OpenAIEmbedder("emb", 3, redact=str, api_key="key", base_url=openai_server.url, meter=meter)
    await world.write("s1", "A remark.")
    with pytest.raises(ModelError):
        await embedder.embed(["a query"])
    assert used(world) == []
    with paid_by(world.caller.owner), pytest.raises(ModelError):
        await embedder.embed(["a passage"])
    await embedder.aclose()
    assert [row[:2] for row in used(world)] == [(1, 1)]


@pytest.mark.parametrize("work", [FOLD])
async def test_old_usage_is_deleted(world: World) -> None:
    await world.write("s1", "A remark.")
    limits = spending.Limits(None, None)
    charge: Any = spending.charge
    for day in (1, 32, 33):
        world.write_sync(lambda c, day=day: charge(c, world.caller.owner, day, 5, limits))
    world.write_sync(lambda c: spending.sweep(c, 33))
    assert [row.day for row in world.rows(model_use)] == [32, 33]
