"""What a model sees: closed schemas without identity, levels up to its ceiling, and answers it can act on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast, get_args

import pytest

from fixtures.fake_service import NOON, FakeService, Fault, answer, down, refusing
from threefold import (
    AsyncMemorySession,
    Forbidden,
    MemorySession,
    Policy,
    Unreachable,
    memory_tools,
    run_tool,
    run_tool_async,
    tools_hint,
)
from threefold.contract import Level, RecallResponse, WhoAmI
from threefold.render import join_block, strip_block
from threefold.tools import NOT_ALLOWED, NOTHING_FOUND, NOTHING_TO_SAVE, TOOLS, UNAVAILABLE, ToolName

BLOCK = join_block([], ["- [2026-03-01, user] Ann likes tea"], [])
SAVED = {
    "id": "f1",
    "kind": "fact",
    "text": "t",
    "agent": "bot",
    "visibility": "user",
    "origin": "user",
    "trust": 1,
    "created_at": NOON,
}
IDENTITY = {"user", "user_id", "agent", "agent_id", "session", "session_id", "tenant", "scope", "store"}


def run(fake: FakeService, name: str, arguments: Mapping[str, Any], mode: Any = "soft") -> str:
    """Both dispatchers, which have to agree."""
    policy = Policy(failure_mode=mode)
    result = run_tool(MemorySession(fake.client(), "s", policy=policy), name, arguments)
    session = AsyncMemorySession(fake.async_client(), "s", policy=Policy(failure_mode=mode))
    assert asyncio.run(run_tool_async(session, name, arguments)) == result
    return result


def sent(fake: FakeService) -> dict[str, Any]:
    return json.loads(fake.requests[-1].content)


def levels(whoami: WhoAmI | None) -> list[str] | None:
    (tool,) = memory_tools(whoami, ["search_memory"])
    level = tool.parameters()["properties"].get("level")
    return level and [value for choice in level["anyOf"] for value in choice.get("enum", [])]


def test_every_tool_is_named_once_everywhere() -> None:
    assert list(TOOLS) == list(get_args(ToolName))
    assert [tool.name for tool in memory_tools()] == ["search_memory", "save_memory"]
    assert all("\n" not in tool.description for tool in TOOLS.values())


@pytest.mark.parametrize("tool", memory_tools(names=list(TOOLS)), ids=lambda tool: tool.name)
def test_no_tool_takes_an_identity(tool: Any) -> None:
    """Field case 121."""
    schema = tool.parameters()
    assert schema["additionalProperties"] is False
    assert IDENTITY.isdisjoint(schema["properties"])
    assert all("description" in field for field in schema["properties"].values())


@pytest.mark.parametrize(
    ("ceiling", "expected"),
    [
        ("session", None),
        ("agent", ["session", "agent"]),
        ("user", ["session", "agent", "user"]),
        ("store", ["session", "agent", "user"]),
    ],
)
def test_levels_stop_at_the_ceiling(fake: FakeService, ceiling: Level, expected: list[str] | None) -> None:
    whoami = fake.client().whoami().model_copy(update={"ceiling": ceiling})
    assert levels(whoami) == expected


def test_an_unknown_ceiling_is_taken_as_agent() -> None:
    assert levels(None) == ["session", "agent"]


def test_the_hint_names_the_tools_that_are_there() -> None:
    hint = tools_hint(memory_tools(names=["search_memory"]))
    assert "search_memory" in hint
    assert "save_memory" not in hint
    assert hint.count(".") == 1


@pytest.mark.parametrize(
    ("name", "arguments", "request_body"),
    [
        (
            "search_memory",
            {"query": "tea", "limit": 3, "level": "agent"},
            {"query": "tea", "top_k": 3, "level": "agent", "include": ["long_term"]},
        ),
        ("search_memory", {"query": "tea"}, {"query": "tea", "top_k": 10, "level": None, "include": ["long_term"]}),
        ("load_memory", {"query": "tea"}, {"query": "tea", "include": ["long_term"]}),
        ("prefetch_memory", {"message": "tea?"}, {"query": "tea?"}),
    ],
)
def test_reading_tools_recall(
    fake: FakeService, name: str, arguments: dict[str, Any], request_body: dict[str, Any]
) -> None:
    fake.fault = answer(200, RecallResponse(block=BLOCK).model_dump_json())
    assert run(fake, name, arguments) == BLOCK
    assert sent(fake) == {"session_id": "s", **request_body}


def test_a_result_never_becomes_a_memory_again(fake: FakeService) -> None:
    """Field case 601."""
    fake.fault = answer(200, RecallResponse(block=BLOCK).model_dump_json())
    assert strip_block(run(fake, "search_memory", {"query": "tea"})) == ""
    assert run(fake, "save_memory", {"text": BLOCK}) == NOTHING_TO_SAVE


def test_saving(fake: FakeService) -> None:
    fake.fault = answer(200, json.dumps(SAVED))
    assert run(fake, "save_memory", {"text": "Ann likes tea"}) == "Saved as f1."
    assert sent(fake) == {"text": "Ann likes tea", "session_id": "s"}


def test_nothing_found(fake: FakeService) -> None:
    fake.fault = answer(200, "{}")
    assert run(fake, "search_memory", {"query": "tea"}) == NOTHING_FOUND


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("search_memory", {}, "query: Field required"),
        ("search_memory", {"query": ""}, "query: "),
        ("search_memory", {"query": "q", "user_id": "bob"}, "user_id: Extra inputs are not permitted"),
        ("search_memory", {"query": "q", "level": "store"}, "level: "),
        ("save_memory", {"text": "t", "model": "x"}, "model: Extra inputs are not permitted"),
        ("drop_memory", {}, "no tool 'drop_memory'"),
    ],
)
@pytest.mark.parametrize("mode", ["soft", "strict"])
def test_a_wrong_call_is_explained_and_not_sent(
    fake: FakeService, name: str, arguments: dict[str, Any], problem: str, mode: str
) -> None:
    assert problem in run(fake, name, arguments, mode)
    assert fake.requests == []


@pytest.mark.parametrize(("fault", "text"), [(down, UNAVAILABLE), (refusing(Forbidden("no")), NOT_ALLOWED)])
def test_a_failure_is_text_when_soft(fake: FakeService, fault: Fault, text: str) -> None:
    fake.fault = fault
    assert run(fake, "search_memory", {"query": "tea"}).startswith(text)
    assert run(fake, "save_memory", {"text": "Ann likes tea"}).startswith(text)


def test_a_failed_save_raises_when_strict(fake: FakeService) -> None:
    fake.fault = down
    with pytest.raises(Unreachable):
        run(fake, "save_memory", {"text": "Ann likes tea"}, "strict")
    session = AsyncMemorySession(fake.async_client(), "s", policy=Policy(failure_mode="strict"))
    with pytest.raises(Unreachable):
        asyncio.run(run_tool_async(session, "save_memory", {"text": "Ann likes tea"}))
    assert run(fake, "search_memory", {"query": "tea"}, cast(Any, "strict")) == UNAVAILABLE
