"""Deletions outside of a forget: what they leave in the files of Postgres, and what is left of the name of an owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import anyio
import pytest

from fixtures.consolidation import World
from threefold.contract import (
    DeleteRunsRequest,
    ItemsRequest,
    PruneThreadsRequest,
    PutCheckpointRequest,
)
from threefold_server.clock import DAY, MICROS
from threefold_server.consolidation.upkeep import retire_threads, retire_turns, sweep
from threefold_server.operations import threads
from threefold_server.operations.items import run_items
from threefold_server.rules.access import Principal, Reach, owner_key
from threefold_server.storage.engine.tables import metadata, model_use, owners
from threefold_server.storage.erasure.forget_records import purge_pending_since
from threefold_server.storage.store import spending, system_rename

pytestmark = pytest.mark.anyio

ITEM: dict[str, Any] = {"namespace": ["likes"], "key": "k"}
DAY_SECONDS = DAY // MICROS


async def put_item(world: World, **more: Any) -> None:
    ops = [{"op": "put", **ITEM, "value": {"tea": "oolong"}, **more}]
    await run_items(world.service, world.caller, ItemsRequest.model_validate({"ops": ops}))


async def put_checkpoints(world: World) -> None:
    for number in range(3):
        checkpoint = PutCheckpointRequest(
            checkpoint_id=str(number), type="t", data=b"oolong", metadata='{"run_id": "run"}'
        )
        await threads.put_checkpoint(world.service, world.caller, "t1", checkpoint)


async def expire_fact(world: World) -> None:
    await world.save("Ana likes oolong.", expires_in_days=1)
    world.clock.advance(2 * DAY_SECONDS)
    await sweep(world.service)


async def expire_item(world: World) -> None:
    await put_item(world, ttl=1)
    world.clock.advance(2 * DAY_SECONDS)
    await sweep(world.service)


async def delete_item(world: World) -> None:
    await put_item(world)
    await run_items(world.service, world.caller, ItemsRequest.model_validate({"ops": [{"op": "delete", **ITEM}]}))


async def retire_old_turns(world: World) -> None:
    await world.write("s1", "Ana likes oolong.")
    world.clock.advance(40 * DAY_SECONDS)
    await retire_turns(world.service)


async def retire_old_threads(world: World) -> None:
    await put_checkpoints(world)
    world.clock.advance(40 * DAY_SECONDS)
    await retire_threads(world.service)


async def prune_thread(world: World) -> None:
    await put_checkpoints(world)
    await threads.prune(world.service, world.caller, PruneThreadsRequest(thread_ids=["t1"]))


async def delete_thread(world: World) -> None:
    await put_checkpoints(world)
    await threads.delete(world.service, world.caller, "t1", "user")


async def delete_runs(world: World) -> None:
    await put_checkpoints(world)
    await threads.delete_runs(world.service, world.caller, DeleteRunsRequest(run_ids=["run"]))


DELETIONS: list[Callable[[World], Awaitable[None]]] = [
    *(expire_fact, expire_item, delete_item, retire_old_turns, retire_old_threads),
    *(prune_thread, delete_thread, delete_runs),
]


@pytest.mark.parametrize("delete", DELETIONS)
async def test_a_purge_is_due_after_every_deletion(
    make_world: Callable[..., World], delete: Callable[[World], Awaitable[None]]
) -> None:
    """SQLite overwrites deleted rows by itself."""
    world = make_world(turn_retention_days=30.0, thread_retention_days=30.0)
    await delete(world)
    since = world.service.database.read_sync("system", purge_pending_since)
    assert (since is not None) is not world.service.database.is_sqlite


async def test_no_purge_is_due_after_a_sweep_that_deletes_nothing(world: World) -> None:
    await world.save("Ana likes oolong.", expires_in_days=9)
    await put_item(world)
    await sweep(world.service)
    await run_items(
        world.service,
        world.caller,
        ItemsRequest.model_validate({"ops": [{"op": "delete", "namespace": ["likes"], "key": "other"}]}),
    )
    assert world.service.database.read_sync("system", purge_pending_since) is None


def rows_of(world: World, owner: UUID) -> list[str]:
    """The tables that hold rows under the key of an owner."""
    tables = [table for table in metadata.sorted_tables if "owner" in table.c]
    found = {table.name: world.rows(table, owner=owner) for table in tables}
    return [name for name, rows in found.items() if rows]


async def erase_by_forget(world: World) -> None:
    await world.forget(level="user")


async def erase_by_rename(world: World) -> None:
    world.write_sync(lambda c: system_rename.rename_user(c, "ana", "anna", world.clock.now))


@pytest.mark.parametrize("erase", [erase_by_forget, erase_by_rename])
async def test_the_key_of_an_erased_owner_is_deleted_once_late_writers_are_over(
    world: World, erase: Callable[[World], Awaitable[None]]
) -> None:
    """The key is a plain hash of the name, which a list of names would tell."""
    ana = owner_key("user", "ana")
    await world.write("s1", "Ana likes oolong.")
    await world.save("Ana likes tea.")
    await world.settle()
    world.write_sync(lambda c: spending.charge(c, ana, world.clock.now // DAY, 100, spending.Limits(None, None)))
    await erase(world)
    await sweep(world.service)
    assert set(rows_of(world, ana)) == {"owners", "model_use", "erased_turns"}
    world.clock.advance(7 * DAY_SECONDS)
    await sweep(world.service)
    assert rows_of(world, ana) == []
    assert world.rows(model_use) == []
    await world.write("s1", "Ana is back.")
    await world.settle()
    assert world.found_by_word("back") == [1]


async def write_turn(world: World) -> None:
    await world.write("s1", "Hello.")


async def share_fact(world: World) -> None:
    await world.save("Tea.", shared=True)


HOLDS: dict[str, Callable[[World], Awaitable[None]]] = {
    "ben": write_turn,
    "eve": share_fact,
    "ida": put_item,
    "joe": put_checkpoints,
}


async def test_owners_with_any_memory_are_kept(world: World) -> None:
    await world.forget(level="user")
    world.clock.advance(8 * DAY_SECONDS)
    for user in HOLDS:
        world.caller = Principal(user, "support", Reach.user, may_share=True)
        await HOLDS[user](world)
        world.write_sync(lambda c: c.execute(owners.update().values(name="")))
    await sweep(world.service)
    assert {row.owner for row in world.rows(owners)} == {owner_key("user", u) for u in HOLDS}


async def test_a_write_during_the_deletion_of_its_owner_is_kept(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write waits for the lock of the sweep, or the sweep skips the owner."""
    world = make_world()
    await world.save("Ana likes oolong.")
    await world.forget(level="user")
    world.clock.advance(8 * DAY_SECONDS)
    for number in range(20):
        await world.forget(level="user")
        world.clock.advance(8 * DAY_SECONDS)
        async with anyio.create_task_group() as group:
            group.start_soon(sweep, world.service)
            group.start_soon(world.write, "s1", f"Turn {number}.")
            group.start_soon(world.save, f"Fact {number}.")
        assert world.facts() == [f"Fact {number}."]
