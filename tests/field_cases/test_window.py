"""Reports on the window: it holds the newest turns, keeps tool calls with their results, and respects the budget."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from fixtures.consolidation import SECOND, World
from fixtures.talk import said
from threefold import MemoryClient
from threefold.contract import Turn, TurnIn, UpdateFactRequest, WriteRequest
from threefold.errors import NotFound
from threefold_server.clock import from_micros
from threefold_server.local import LocalService
from threefold_server.operations.facts import get_fact, update_fact
from threefold_server.operations.write import write_turns
from threefold_server.storage.engine.tables import sessions, turns

pytestmark = pytest.mark.anyio

IMAGE = base64.b64encode(random.Random(1).randbytes(150_000)).decode()


def windows(memory: MemoryClient, budgets: range) -> list[list[Turn]]:
    """Return the window for every budget."""
    return [
        memory.recall("", session_id="s1", include=["short_term"], token_budget=budget).window for budget in budgets
    ]


@pytest.mark.parametrize("group", ["g1", None])
def test_no_budget_separates_a_tool_call_from_its_results(memory: MemoryClient, group: str | None) -> None:
    """Reported: the provider refused a trimmed history that held a tool result without its call."""
    call = {"role": "assistant", "kind": "tool_call", "group": group}
    result = {"role": "tool", "kind": "tool_result", "group": group}
    turns: list[dict[str, Any]] = [
        said("how warm is it in Oslo and in Rome?"),
        {**call, "content": "weather(Oslo)"},
        {**call, "content": "weather(Rome)"},
        {**result, "content": "4 degrees"},
        {**result, "content": "19 degrees"},
        {"role": "assistant", "content": "Four and nineteen."},
    ]
    memory.write("s1", turns)
    sizes = set[int]()
    for window in windows(memory, range(200)):
        assert [turn.seq for turn in window] in ([], [1], [1, 6], [1, 2, 3, 4, 5, 6])  # the question always stays
        sizes.add(len(window))
    assert sizes == {0, 1, 2, 6}


def test_small_window_holds_the_newest_turns(memory: MemoryClient) -> None:
    """Reported: a limit returned the oldest items instead of the newest."""
    memory.write("s1", [said(f"turn {number}") for number in range(1, 11)])
    seen = windows(memory, range(0, 300, 5))
    for window in seen:
        assert [turn.content for turn in window] == [f"turn {number}" for number in range(11 - len(window), 11)]
    assert {len(window) for window in seen} >= {0, 3, 10}


def test_huge_turn_is_cut_in_the_window_and_stored_whole(database_url: str) -> None:
    """Reported: a message larger than the context made the summarizer overflow as well. One turn of a million
    characters."""
    huge = f"first {'word ' * 199_995}last"
    settings: dict[str, Any] = {"embedder": "hash", "consolidate": False}
    with LocalService(database_url=database_url, **settings) as service, service.client() as memory:
        memory.write("s1", [said(huge, id="huge")])
        alone = memory.recall("", session_id="s1")
        [turn] = alone.window
        assert (turn.cut, turn.content[:6], turn.content[-5:]) == (True, "first ", " last")
        memory.write("s1", [said("and now something short")])
        later = memory.recall("", session_id="s1")
        assert later.window[-1].content == "and now something short"
        assert max(alone.tokens.used, later.tokens.used) <= later.tokens.budget
        assert memory.turns("s1").turns[0].content == huge


def test_turn_larger_than_a_model_context_is_indexed_and_folded(memory: MemoryClient) -> None:
    """Reported: a message larger than the context made the summarizer overflow as well. Three times the size of one
    call."""
    words = [f"word{number % 300}" for number in range(15_000)]
    words[7_000] = "needle"
    memory.write("s1", [said(" ".join(words), id="huge"), said("and now something short")])
    memory.wait("s1")
    assert memory.recall("needle", session_id="s2", top_k=1).memories[0].id == "huge"
    assert memory.digests("s1").digests[0].upto_seq == 1


@pytest.mark.parametrize("mark", ["<|endoftext|>", "<|im_start|>system", "[INST]", "<s>", "</s><|fim_prefix|>"])
def test_special_tokens_of_models_are_plain_text_in_every_tier(database_url: str, mark: str) -> None:
    """Reported: a message with <|endoftext|> crashed token counting and blocked its session for ever."""
    marks: dict[str, Any] = {"token_budget": 120, "compaction_trigger": 100, "compaction_target": 40}
    with LocalService(database_url=database_url, embedder="hash", **marks) as service, service.client() as memory:
        memory.write("s1", [said(f"We agreed never to send {mark} to the client."), *[said("A remark. " * 5)] * 12])
        memory.wait("s1")
        assert memory.turns("s1").turns[0].content == f"We agreed never to send {mark} to the client."
        assert mark in memory.digests("s1").digests[0].text
        assert mark in memory.recall("never send to the client", session_id="s2").block


async def test_images_are_neither_counted_nor_sent_to_models(world: World) -> None:
    """Reported: Base64 images were sent again in each turn until the request was too large."""
    payload = json.dumps({"parts": [{"type": "image", "data": IMAGE}]})
    turns = [TurnIn(role="user", content=f"Look at picture {n} of the harbour.", payload=payload) for n in range(20)]
    await world.write(
        "s1", *turns, f"data:image/png;base64,{IMAGE[:5_000]} is what it looks like.", *["Well. " * 9] * 9
    )
    await world.settle()
    assert world.summarizer.calls
    assert world.embedder.calls
    assert IMAGE[:200] not in repr(world.summarizer.calls) + repr(world.embedder.calls)


def test_payload_is_returned_byte_for_byte_and_only_on_request(memory: MemoryClient) -> None:
    """Reported: stored tool calls and results were lost, or revived as live objects."""
    payload = '{"lc":1,"type":"constructor","id":["a"],"kwargs":{},  "image":"' + IMAGE + '"}'
    memory.write("s1", [said("look", payload=payload)])
    assert memory.turns("s1", payload=True).turns[0].payload == payload
    assert memory.turns("s1").turns[0].payload is None
    recalled = memory.recall("look", session_id="s1")
    assert recalled.window[0].payload is None
    assert recalled.tokens.used < 100


async def test_updates_keep_counts_and_expiry(world: World) -> None:
    """Reported: updating a session dropped its expiry and its token count.

    A session grows and changes its state, and a fact is updated five times; the fact expires at the original time.
    """
    fact = await world.save("The gate code is 4711.", session_id="s1", expires_in_days=1)
    for number in range(5):
        request = WriteRequest(
            session_id="s1", turns=[TurnIn(role="user", content="five words of one turn")], state="{}"
        )
        await write_turns(world.service, world.caller, request)
        change = UpdateFactRequest(pinned=False, metadata={"seen": number}, text=f"The gate code is {number}.")
        fact = await update_fact(world.service, world.caller, fact.id, change)
    [session] = world.rows(sessions)
    assert (session.turns, session.tokens) == (5, sum(row.tokens for row in world.rows(turns)))
    assert fact.expires_at == from_micros(world.clock.now + 86_400 * SECOND)
    world.clock.advance(86_400)
    assert (await world.recall("what is the gate code?")).memories == []
    with pytest.raises(NotFound):
        await get_fact(world.service, world.caller, fact.id)


def test_tool_calls_and_results_are_there_after_a_restart(database_url: str) -> None:
    """Reported: tool calls were not saved, so the agent ran them again."""
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "kind": "tool_call", "content": "weather(Oslo)", "group": "g", "payload": '{"a": 1}'},
        {"role": "tool", "kind": "tool_result", "name": "weather", "content": "4", "group": "g", "payload": '{"b": 2}'},
    ]
    with LocalService(database_url=database_url, embedder="hash") as service, service.client() as memory:
        memory.write("s1", turns)
    with LocalService(database_url=database_url, embedder="hash") as service, service.client() as memory:
        found = memory.turns("s1", payload=True).turns
        assert [turn.model_dump(include=set(turns[0])) for turn in found] == [
            {key: turn[key] for key in turns[0]} for turn in turns
        ]
        assert [turn.kind for turn in memory.recall("", session_id="s1").window] == ["tool_call", "tool_result"]
