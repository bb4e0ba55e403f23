"""What models may cost: charged before the call, corrected after it, and no more once a budget is spent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from fixtures.consolidation import ANA, START, World, until
from fixtures.openai_server import HANG, OpenAIServer, chat_reply, error_reply
from threefold_server.consolidation import worker
from threefold_server.models.chat import ChatModel
from threefold_server.models.instructions import read_instructions
from threefold_server.models.narrative import ModelSummarizer
from threefold_server.models.openai import OpenAIEmbedder
from threefold_server.models.ports import ModelError
from threefold_server.spending import MICROS_PER_DAY, Spending, paid_by
from threefold_server.storage import spending
from threefold_server.storage.tables import digests, model_use, tasks

pytestmark = pytest.mark.anyio

TALK = [f"Remark {number} about the harbour and its walls." for number in range(12)]
BEN = replace(ANA, user="ben")
ANSWER = chat_reply("They talk about the harbour [1].")
USED = 7
"""What the scripted endpoint reports for that answer: its words and one."""


@asynccontextmanager
async def modelled(world: World, server: OpenAIServer) -> AsyncGenerator[ChatModel]:
    """The world's digests are by a model behind the server, under the world's budgets."""
    service = world.service
    meter = Spending(service.settings, service.database, service.metrics, world.clock)
    model = ChatModel("chat", redact=str, api_key="key", base_url=server.url, meter=meter)
    service.summarizer = ModelSummarizer(model, read_instructions("digest", None))
    yield model
    await model.aclose()


def used(world: World) -> list[tuple[int, int, int]]:
    return [(row.calls, row.failed, row.tokens) for row in world.rows(model_use)]


def metric(world: World, name: str, **labels: str) -> float | None:
    return world.service.metrics.registry.get_sample_value(f"threefold_{name}_total", labels)


async def test_a_call_costs_what_the_endpoint_reports(world: World, openai_server: OpenAIServer) -> None:
    openai_server.script(ANSWER)
    async with modelled(world, openai_server):
        await world.write("s1", *TALK)
        await world.settle()
    assert used(world) == [(1, 0, USED)]
    assert metric(world, "model_calls", outcome="answered") == 1
    assert metric(world, "model_tokens") == USED


async def test_a_call_that_fails_is_counted_and_stays_charged(world: World, openai_server: OpenAIServer) -> None:
    openai_server.script(error_reply(500), ANSWER)
    async with modelled(world, openai_server):
        await world.write("s1", *TALK)
        await world.settle()
        status = await world.status("s1")
        assert status.reason is not None
        assert "attempt 2 of 8" in status.reason
        assert "answered 500" in status.reason
        [(calls, failed, charged)] = used(world)
        assert (calls, failed) == (1, 1)
        assert charged > USED
        await world.settle_in_time()
    assert used(world) == [(2, 1, charged + USED)]
    assert (await world.status("s1")).reason is None
    assert metric(world, "model_calls", outcome="failed") == 1


@pytest.mark.parametrize(
    ("budget", "whose"), [({"model_tokens_per_day": 5}, "store"), ({"model_tokens_per_user_day": 5}, "user")]
)
async def test_a_spent_budget_waits_for_the_next_day(
    make_world: Callable[..., World], openai_server: OpenAIServer, budget: dict[str, int], whose: str
) -> None:
    openai_server.otherwise = ANSWER
    world = make_world(**budget)
    async with modelled(world, openai_server):
        await world.write("s1", *TALK)
        await world.settle()
        await world.write("s2", *TALK)
        await world.settle()
        assert len(openai_server.asked) == 1
        status = await world.status("s2")
        assert (status.state, status.digested_upto) == ("pending", 0)
        assert status.reason is not None
        assert "attempt 1 of 8 follows at 2023-11-15T00:0" in status.reason
        assert status.reason.endswith(f"the {whose}'s model budget of this day is spent")
        assert world.task("s2", "fold").attempts == 0
        await world.settle_in_time()
        assert world.clock.now // MICROS_PER_DAY == START // MICROS_PER_DAY + 1
        assert len(openai_server.asked) == 2
        assert (await world.status("s2")).digested_upto > 0
    assert metric(world, "model_calls", outcome="over budget") == 1


async def test_one_user_spends_no_budget_of_another(
    make_world: Callable[..., World], openai_server: OpenAIServer
) -> None:
    openai_server.otherwise = ANSWER
    world = make_world(model_tokens_per_user_day=5)
    async with modelled(world, openai_server):
        for caller in (ANA, BEN):
            world.caller = caller
            await world.write("s1", *TALK)
            await world.settle()
    assert used(world) == [(1, 0, USED)] * 2
    assert len(world.rows(digests)) == 2


async def test_a_refusal_is_parked_at_once_and_costs_one_call(world: World, openai_server: OpenAIServer) -> None:
    """Field case 1002."""
    openai_server.script(error_reply(401))
    async with modelled(world, openai_server):
        await world.write("s1", *TALK)
        await world.settle()
    status = await world.status("s1")
    assert (status.state, len(openai_server.asked)) == ("parked", 1)
    assert "answered 401" in str(status.reason)


async def test_a_hung_model_ends_with_its_lease(
    world: World, openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.005)
    openai_server.script(HANG)
    async with modelled(world, openai_server):
        await world.write("s1", *TALK)
        async with anyio.create_task_group() as group:
            group.start_soon(world.settle)
            await until(lambda: len(openai_server.asked) == 1)
            world.write_sync(lambda c: c.execute(tasks.delete().where(tasks.c.kind == "fold")))
    assert world.rows(digests) == []
    assert used(world)[0][:2] == (1, 1)


async def test_vectors_of_an_endpoint_are_charged_in_the_background_only(
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


async def test_old_numbers_are_dropped(world: World) -> None:
    await world.write("s1", "A remark.")
    limits = spending.Limits(None, None)
    charge: Any = spending.charge
    for day in (1, 32, 33):
        world.write_sync(lambda c, day=day: charge(c, world.caller.owner, day, 5, limits))
    world.write_sync(lambda c: spending.sweep(c, 33))
    assert [row.day for row in world.rows(model_use)] == [32, 33]
