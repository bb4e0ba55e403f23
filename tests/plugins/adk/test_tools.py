"""The toolset used by a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.models.llm_request import LlmRequest

from conformance.adapter import Reply, ToolCall
from fixtures.line import Line, local_line
from plugins.adk.models import APP, Talk, turns
from threefold import InvalidRequest, Policy, ThreefoldError
from threefold.render import FENCE_OPEN
from threefold_adk import ThreefoldPlugin, ThreefoldToolset
from threefold_adk.events import words_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    with local_line(sqlite_url, APP) as found:
        yield found


def toolset(line: Line, **options: Any) -> ThreefoldToolset:
    return ThreefoldToolset(line.async_client(), **options)


def save(line: Line, text: str, user: str = "ana") -> None:
    with line.client(user) as memory:
        memory.save(text)


def saved(line: Line, user: str = "ana") -> list[str]:
    with line.client(user) as memory:
        return [fact.text for fact in memory.list(kinds=["fact"]).items]


def offered(request: LlmRequest) -> dict[str, Any]:
    """Return the tools of a request with their arguments."""
    found: list[Any] = request.config.tools or []
    declared: list[Any] = [each for tool in found for each in tool.function_declarations]
    return {each.name: each.parameters_json_schema["properties"] for each in declared}


def instruction(request: LlmRequest) -> str:
    return str(request.config.system_instruction)


def answers(request: LlmRequest) -> list[Any]:
    """Return the results of the tools so far."""
    parts = [part for content in request.contents for part in content.parts or []]
    return [(part.function_response.response or {})["result"] for part in parts if part.function_response]


async def ask(line: Line, *replies: Reply, user: str = "ana", **options: Any) -> Talk:
    talk = Talk(replies=replies, tools=[toolset(line, **options)])
    await talk.say("Hello.", user=user)
    return talk


async def test_model_gets_two_tools_and_an_instruction(line: Line) -> None:
    talk = await ask(line)
    assert list(offered(talk.model.requests[0])) == ["search_memory", "save_memory"]
    assert "You have a memory of earlier conversations: call search_memory" in instruction(talk.model.requests[0])


async def test_memory_saved_in_one_session_is_found_in_another(line: Line) -> None:
    """Users reported that a saved memory was never found again."""
    await ask(line, ToolCall("save_memory", {"text": "The gate code is 4711."}))
    assert saved(line) == ["The gate code is 4711."]
    talk = await ask(line, ToolCall("search_memory", {"query": "gate code"}))
    assert "The gate code is 4711." in answers(talk.model.requests[-1])[0]
    other = await ask(line, ToolCall("search_memory", {"query": "gate code"}), user="bob")
    assert answers(other.model.requests[-1]) == ["No memory matches."]


async def test_run_without_a_user_has_no_memory(line: Line) -> None:
    """Users reported that memory was written under the service account of the agent."""
    with pytest.raises(InvalidRequest, match="user: "):
        await ask(line, ToolCall("save_memory", {"content": "Hello."}), user="", profile="kagent")
    assert line.asked == []


async def test_result_of_a_search_is_not_recorded(line: Line) -> None:
    save(line, "The gate code is 4711.")
    talk = Talk(
        ThreefoldPlugin(line.async_client(), recall=False),
        replies=[ToolCall("search_memory", {"query": "gate code"})],
        tools=[toolset(line)],
    )
    await talk.say("Hello.")
    assert "4711" in answers(talk.model.requests[-1])[0]
    assert "4711" not in "".join(f"{turn.content}{turn.payload}" for turn in turns(line))


async def test_model_cannot_name_a_user(line: Line) -> None:
    save(line, "The gate code is 4711.", user="bob")
    talk = await ask(line, ToolCall("search_memory", {"query": "gate code", "user_id": "bob"}))
    assert answers(talk.model.requests[-1])[0].startswith("Wrong call:")


async def test_offered_levels_are_the_readable_ones(line: Line) -> None:
    talk = await ask(line)
    assert "user" in str(offered(talk.model.requests[0])["search_memory"]["level"])


async def test_tools_report_an_outage(line: Line) -> None:
    line.is_cut = True
    talk = await ask(line, ToolCall("save_memory", {"text": "The gate code is 4711."}))
    assert answers(talk.model.requests[-1]) == ["Memory is not available right now. Go on without it."]


async def test_strict_failure_ends_the_run(line: Line) -> None:
    line.is_cut = True
    with pytest.raises(ThreefoldError):
        await ask(line, ToolCall("save_memory", {"text": "Hello."}), policy=Policy(failure_mode="strict"))


async def test_tools_can_be_prefixed_and_filtered(line: Line) -> None:
    save(line, "The gate code is 4711.")
    call = ToolCall("mine_search_memory", {"query": "gate code"})
    talk = await ask(line, call, tool_name_prefix="mine", tool_filter=["search_memory"])
    assert list(offered(talk.model.requests[0])) == ["mine_search_memory"]
    assert "4711" in answers(talk.model.requests[-1])[0]


async def test_other_tools_can_be_chosen(line: Line) -> None:
    talk = await ask(line, tools=["list_memories"])
    assert list(offered(talk.model.requests[0])) == ["list_memories"]


def test_unknown_tool_is_refused(line: Line) -> None:
    with pytest.raises(InvalidRequest, match="forget_all"):
        toolset(line, tools=["forget_all"])


async def test_tools_are_known_without_a_context(line: Line) -> None:
    assert [tool.name for tool in await toolset(line).get_tools()] == ["search_memory", "save_memory"]


async def test_kagent_prefetches_before_the_first_message_of_a_session(line: Line) -> None:
    for number in range(7):
        save(line, f"The gate code of gate {number} is 4711.")
    talk = Talk(replies=[ToolCall("load_memory", {"query": "gate code"})], tools=[toolset(line, profile="kagent")])
    line.asked.clear()
    await talk.say("What is the code of gate 3?")
    for request in talk.model.requests:
        sent = [words_of(content) for content in request.contents]
        assert sent[0].startswith(FENCE_OPEN)
        assert sent[0].count("4711") == 5
        assert sent[1] == "What is the code of gate 3?"
    assert line.asked.count("POST /v1/recall") == 2  # one of them is the call of the model
    await talk.say("And of gate 4?")
    assert FENCE_OPEN not in words_of(talk.model.requests[-1].contents[0])
    assert line.asked.count("POST /v1/recall") == 2
    assert "4711" not in words_of((await talk.session()).events[0].content)


async def test_kagent_prefetches_only_similar_memories(line: Line) -> None:
    """A common word is enough for `search_memory`, but kagent requires a cosine of 0.3."""
    save(line, "The porter knows of 4711. " + " ".join(f"Of house{n} he knows door{n}." for n in range(100)))
    with line.client("ana") as memory:
        while (
            memory.recall("porter", session_id="s").memories[0].score_parts.cosine is None
        ):  # words are used until the vector is stored
            pass
    talk = Talk(tools=[toolset(line, profile="kagent")])
    await talk.say("porter")
    assert "4711" not in talk.script.prompts[0]


async def test_kagent_model_calls_load_and_save(line: Line) -> None:
    call, look = ToolCall("save_memory", {"content": "Red door."}), ToolCall("load_memory", {"query": "red door"})
    talk = await ask(line, call, look, profile="kagent")
    assert list(offered(talk.model.requests[0])) == ["save_memory", "load_memory"]
    assert "prefetch_memory" not in instruction(talk.model.requests[0])
    assert "call save_memory" in instruction(talk.model.requests[0])
    found = json.loads(answers(talk.model.requests[-1])[-1])
    assert [entry["content"]["parts"][0]["text"] for entry in found["memories"]] == ["Red door."]
    with line.client("ana") as memory:
        assert memory.list(kinds=["fact"]).items[0].expires_at is not None


async def test_prefetch_of_kagent_can_be_left_out(line: Line) -> None:
    talk = await ask(line, profile="kagent", tools=["load_memory"])
    assert list(offered(talk.model.requests[0])) == ["load_memory"]
    assert line.asked.count("POST /v1/recall") == 0
