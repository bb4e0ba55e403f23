"""Messages of LangChain as exchanges, texts and turns."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from threefold_langgraph.conversation import earlier_messages, open_messages, text_of, turns_of, with_block


def human(text: str, message_id: str | None = None) -> HumanMessage:
    return HumanMessage(text, id=message_id or text)


def ai(text: str, *called: str) -> AIMessage:
    calls: Any = [{"name": name, "args": {"n": 1}, "id": f"c-{name}", "type": "tool_call"} for name in called]
    return AIMessage(text, id=f"ai-{text}", tool_calls=calls)


def tool(name: str) -> ToolMessage:
    return ToolMessage("found", name=name, tool_call_id=f"c-{name}", id=f"t-{name}")


OLD = [human("old"), ai("answer")]


@pytest.mark.parametrize(
    ("history", "now"),
    [
        ([], [human("q")]),
        (OLD, [human("q")]),
        (OLD, [human("q"), ai("", "x"), tool("x"), ai("a")]),
        ([human("old"), ai("", "x")], [tool("x"), human("q")]),  # a run that failed before its end
        (OLD, [human("unanswered"), human("q"), ai("a")]),
        ([], [ai("a greeting")]),
        ([], []),
    ],
)
def test_exchange_starts_after_the_last_answer(history: list[BaseMessage], now: list[BaseMessage]) -> None:
    messages = [*history, *now]
    assert open_messages(messages) == now
    assert earlier_messages(messages) == history


def test_summary_is_not_part_of_the_exchange_but_is_sent_to_the_model() -> None:
    summary = HumanMessage("so far", additional_kwargs={"lc_source": "summarization"})
    messages: list[BaseMessage] = [summary, human("q")]
    assert open_messages(messages) == [messages[1]]
    assert earlier_messages(messages) == [summary]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (["a", {"type": "text", "text": "b"}], "ab"),
        ([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}], "look\n[image]"),
        ([{"type": "input_audio", "data": "x"}, {"type": "file", "base64": "x"}], "[audio]\n[file]"),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "reasoning", "reasoning": "hm"}], ""),
        ([], ""),
    ],
)
def test_text_of_content_parts(content: Any, words: str) -> None:
    """Users reported that content given as a list of parts crashed or was silently not stored."""
    assert text_of(HumanMessage(content)) == words


def test_tool_calls_and_results_are_turns_of_one_group() -> None:
    asked = [human("q"), ai("let me see", "x", "y"), tool("x"), tool("y")]
    turns = turns_of(asked)
    assert [(turn.id, turn.kind, turn.group) for turn in turns] == [
        ("q", "message", None),
        ("ai-let me see", "message", "ai-let me see"),
        ("ai-let me see/0", "tool_call", "ai-let me see"),
        ("ai-let me see/1", "tool_call", "ai-let me see"),
        ("t-x", "tool_result", "ai-let me see"),
        ("t-y", "tool_result", "ai-let me see"),
    ]


def test_result_belongs_to_the_latest_call_with_its_id() -> None:
    calls: Any = [{"name": "x", "args": {}, "id": "call_0", "type": "tool_call"}]
    answers = [ToolMessage("found", name="x", tool_call_id="call_0", id=f"t{n}") for n in (1, 2)]
    asked = [AIMessage("", id=f"ai{n}", tool_calls=calls) for n in (1, 2)]
    turns = turns_of([human("q"), asked[0], answers[0], asked[1], answers[1]])
    assert [turn.group for turn in turns] == [None, "ai1", "ai1", "ai2", "ai2"]


def test_system_prompts_and_results_of_memory_tools_are_no_turns() -> None:
    own = [SystemMessage("be nice", id="s"), human("q"), ai("", "search_memory"), tool("search_memory")]
    assert [turn.id for turn in turns_of(own)] == ["q"]
    assert turns_of([HumanMessage("without an id")]) == []


@pytest.mark.parametrize("name", ["", " ", "*", "x" * 513, "a\0b", "\ud83d", None])
def test_invalid_name_is_left_out(name: str | None) -> None:
    [turn] = turns_of([HumanMessage("q", id="1", name=name)])
    assert turn.name is None


@pytest.mark.parametrize("hostile", [" ", "*", "x" * 513, "a\0b", "\ud83d"])
def test_invalid_message_id_is_replaced_by_a_stable_one(hostile: str) -> None:
    calls: Any = [{"name": "x", "args": {}, "id": hostile, "type": "tool_call"}]
    said = [AIMessage("", id=hostile, tool_calls=calls), ToolMessage("found", tool_call_id=hostile, id="t")]
    turns = turns_of([*said, ToolMessage("alone", tool_call_id=hostile, id="u")])
    assert len(turns) == 3
    assert len({turn.group for turn in turns}) == 1
    assert turns == turns_of([*said, ToolMessage("alone", tool_call_id=hostile, id="u")])


def test_block_is_appended_to_the_prompt_and_changes_nothing_else() -> None:
    """Users reported that memory in the system prompt broke prompt caching, and that a second system message was
    refused.

    The block is in the last user message: all earlier messages stay the same, and there is one system message.
    """
    messages: list[BaseMessage] = [SystemMessage("be nice"), *OLD, human("q"), ai("", "x"), tool("x")]
    prepared = with_block(messages, "BLOCK")
    assert [str(message.text) for message in prepared] == ["be nice", "old", "answer", "q\n\nBLOCK", "", "found"]
    assert [type(message) for message in prepared] == [type(message) for message in messages]
    assert messages[3].text == "q"
    assert with_block(messages, "") == messages
    assert with_block([ai("hello")], "BLOCK") == [ai("hello")]
