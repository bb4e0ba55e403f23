"""Items found by meaning, and their time to live, with a controlled clock and model. On both databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from fixtures.consolidation import SECOND, World, nothing
from threefold.contract import ForgetRequest, Item, ItemsRequest, OpResult
from threefold.errors import Unavailable
from threefold_server.consolidation.rebuild import rebuild, reembed
from threefold_server.consolidation.upkeep import sweep
from threefold_server.models.ports import ModelError
from threefold_server.operations.forget import forget
from threefold_server.operations.items import run_items
from threefold_server.storage.engine.tables import items, passages, store

pytestmark = pytest.mark.anyio

NS = ("notes", "ana")
MINUTE = 60


async def ask(world: World, *ops: dict[str, Any]) -> list[OpResult]:
    request = ItemsRequest.model_validate({"ops": ops})
    return (await run_items(world.service, world.caller, request)).results


def put_op(key: str, value: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"op": "put", "namespace": NS, "key": key, "value": value or {}, **more}


def get_op(key: str, **more: Any) -> dict[str, Any]:
    return {"op": "get", "namespace": NS, "key": key, **more}


async def put(world: World, key: str, value: dict[str, Any] | None = None, **more: Any) -> None:
    await ask(world, put_op(key, value, **more))


async def search(world: World, **more: Any) -> list[Item]:
    [result] = await ask(world, {"op": "search", "prefix": NS[:1], **more})
    return result.items


async def nearest(world: World, query: str, **more: Any) -> list[str]:
    return [item.key for item in await search(world, query=query, **more)]


async def get(world: World, key: str, **more: Any) -> Item | None:
    [result] = await ask(world, get_op(key, **more))
    return result.item


async def fail() -> None:
    raise ModelError("no answer")


async def test_nearest_item_is_first_with_its_score(world: World) -> None:
    await put(world, "train", {"text": "the evening train to Bern is late"})
    await put(world, "soup", {"text": "pumpkin soup with ginger"})
    found = await search(world, query="pumpkin soup with ginger", limit=5)
    assert [item.key for item in found] == ["soup", "train"]
    scores = [item.score for item in found if item.score is not None]
    assert len(scores) == 2
    assert 1 >= scores[0] > 0.8 > scores[1] >= -1
    assert await nearest(world, "pumpkin soup", filter={"text": {"$ne": "pumpkin soup with ginger"}}) == ["train"]
    assert [item.score for item in await search(world, query="")] == [None, None]


async def test_only_indexed_fields_count_and_the_best_of_them(world: World) -> None:
    await put(world, "a", {"title": "pumpkin soup", "body": "trains"}, index=["title", "body"])
    await put(world, "b", {"title": "pumpkin soup", "body": "trains"}, index=["body"])
    await put(world, "c", {"title": "pumpkin soup"}, index=False)
    await put(world, "d", {"title": "pumpkin soup"}, index=["missing"])
    assert await nearest(world, "pumpkin soup") == ["a", "b"]
    assert len(world.rows(passages)) == 3


async def test_every_write_replaces_the_vectors(world: World) -> None:
    """Users reported that an updated item was still found by its old text."""
    await put(world, "k", {"text": "pumpkin soup", "other": "trains"})
    await put(world, "k", {"text": "pumpkin soup", "other": "trains"}, index=["other"])
    [item] = await search(world, query="trains")
    assert item.score is not None
    assert item.score > 0.99
    await put(world, "k", {"text": "pumpkin soup"}, index=False)
    assert await nearest(world, "pumpkin soup") == []
    await ask(world, {"op": "delete", "namespace": NS, "key": "k"})
    assert world.rows(passages) == world.rows(items) == []


async def test_ranked_search_pages_through_everything(world: World) -> None:
    """Users reported empty pages, because candidates were cut before the offset."""
    await ask(world, *(put_op(f"{n:02}", {"text": "tea " * n}) for n in range(1, 31)))
    whole = await nearest(world, "tea", limit=100)
    assert len(whole) == 30
    pages = [await nearest(world, "tea", limit=7, offset=start) for start in range(0, 35, 7)]
    assert [key for page in pages for key in page] == whole
    assert await nearest(world, "tea", limit=5, offset=20, filter={"text": {"$ne": ""}}) == whole[20:25]


@pytest.mark.parametrize("trouble", [fail, anyio.sleep_forever])
async def test_failing_or_hanging_embedder_loses_no_item(
    world: World, trouble: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threefold_server.operations.items.ONE_SECONDS", 0.01)
    world.embedder.before = trouble
    await put(world, "k", {"text": "pumpkin soup"})
    with pytest.raises(Unavailable, match="embedder"):
        await search(world, query="pumpkin")
    assert [item.key for item in await search(world)] == ["k"]
    world.embedder.before = nothing
    monkeypatch.undo()
    assert await nearest(world, "pumpkin soup") == []
    await world.settle()
    assert await nearest(world, "pumpkin soup") == ["k"]


async def test_late_embedding_uses_the_last_value(world: World) -> None:
    world.embedder.before = fail
    await put(world, "k", {"text": "pumpkin soup"}, index=["text"])

    async def rewrite() -> None:
        """Write the second value while a worker embeds the first, and let that embedding fail as well."""
        if len(world.embedder.calls) == before + 1:
            await put(world, "k", {"text": "trains"}, index=["text"])
        if len(world.embedder.calls) == before + 2:
            raise ModelError("no answer")

    before = len(world.embedder.calls)
    world.embedder.before = rewrite
    await world.settle_in_time()
    [item] = await search(world, query="trains")
    assert item.score is not None
    assert item.score > 0.9


async def test_vectors_of_another_embedder_wait_for_a_reembed(world: World, make_world: Callable[..., World]) -> None:
    await put(world, "old", {"text": "pumpkin soup"})
    other = make_world()
    other.embedder.name = "other"
    await put(other, "new", {"text": "pumpkin soup"})
    assert await nearest(other, "pumpkin soup") == []
    assert await nearest(world, "pumpkin soup") == ["old"]
    await reembed(other.service)
    assert sorted(await nearest(other, "pumpkin soup")) == ["new", "old"]
    assert {row.embedder for row in other.rows(passages)} == {"other"}


async def test_rebuild_indexes_items_again(world: World) -> None:
    await put(world, "k", {"text": "pumpkin soup", "other": "trains"}, index=["text"])
    await put(world, "none", {"text": "pumpkin soup"}, index=False)
    await rebuild(world.service)
    assert await nearest(world, "pumpkin soup") == ["k"]
    assert len(world.rows(passages)) == 1


async def test_first_item_sets_the_embedder_of_the_store(world: World) -> None:
    await put(world, "k", {"text": "pumpkin soup"})
    assert [row.value for row in world.rows(store, name="embedder")] == ["fake"]


async def test_item_is_gone_exactly_when_it_expires(world: World) -> None:
    await put(world, "short", {"text": "tea"}, ttl=1.5)
    await put(world, "long", {"text": "tea"})
    world.clock.advance(1.5 * MINUTE - 0.000_001)
    assert await get(world, "short", refresh_ttl=False) is not None
    world.clock.advance(0.000_001)
    assert await get(world, "short") is None
    assert [item.key for item in await search(world)] == await nearest(world, "tea") == ["long"]
    assert await ask(world, {"op": "list_namespaces"}) == [OpResult(namespaces=[list(NS)])]


async def test_reading_refreshes_the_ttl_unless_turned_off(world: World) -> None:
    await put(world, "k", {"text": "tea"}, ttl=0.75)
    for read in (get(world, "k"), search(world), search(world, query="tea"), search(world, filter={"text": "tea"})):
        world.clock.advance(40)
        assert await read
    world.clock.advance(40)
    assert await get(world, "k", refresh_ttl=False)
    world.clock.advance(4)
    assert await search(world, refresh_ttl=False)
    world.clock.advance(1)
    assert await get(world, "k") is None


async def test_reading_in_a_batch_with_writes_refreshes_the_ttl(world: World) -> None:
    await put(world, "k", ttl=1)
    world.clock.advance(40)
    await ask(world, get_op("k"), put_op("other"))
    world.clock.advance(40)
    assert await get(world, "k") is not None


async def test_write_without_a_ttl_removes_the_old_one(world: World) -> None:
    await put(world, "k", ttl=1)
    await put(world, "k")
    world.clock.advance(1_000 * MINUTE)
    assert await get(world, "k") is not None


async def test_expired_item_that_is_written_again_is_new(world: World) -> None:
    await put(world, "k", ttl=1)
    world.clock.advance(2 * MINUTE)
    await put(world, "k", ttl=1)
    item = await get(world, "k")
    assert item is not None
    assert item.created_at == item.updated_at


async def test_sweeper_deletes_only_expired_items(world: World) -> None:
    await put(world, "gone", {"text": "tea"}, ttl=1)
    await put(world, "kept", {"text": "tea"}, ttl=5)
    world.clock.advance(2 * MINUTE)
    await sweep(world.service)
    assert [row.key for row in world.rows(items)] == ["kept"]
    assert len(world.rows(passages)) == 1


async def test_fraction_of_a_minute_is_kept(world: World) -> None:
    await put(world, "k", ttl=0.01)
    assert [(row.ttl, row.expires_at - world.clock.now) for row in world.rows(items)] == [(0.01, 0.6 * SECOND)]


async def test_items_of_the_same_time_are_ordered_by_key(world: World) -> None:
    await ask(world, put_op("c"), put_op("a"), put_op("b"))
    assert [item.key for item in await search(world)] == ["a", "b", "c"]
    world.clock.advance(1)
    await put(world, "c")
    assert [item.key for item in await search(world)] == ["c", "a", "b"]


async def test_items_of_an_agent_are_deleted_when_the_agent_forgets_for_itself(world: World) -> None:
    request = ItemsRequest.model_validate({"scope": "agent", "ops": [put_op("k", {"text": "tea"})]})
    await run_items(world.service, world.caller, request)
    own = replace(world.caller, user=None)
    [seen] = (await run_items(world.service, own, ItemsRequest.model_validate({"ops": [get_op("k")]}))).results
    assert seen.item is None  # its own items are separate from those for all users
    receipt = await forget(world.service, own, ForgetRequest(level="agent"))
    assert (receipt.counts["items"], receipt.not_covered) == (1, [])
    assert world.rows(items) == world.rows(passages) == []
