"""Messages of LangChain as an exchange, words and turns."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from threefold_langgraph.exchange import before, exchange, text_of, turns_of, with_block


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
        (OLD, [human("nobody answered"), human("q"), ai("a")]),
        ([], [ai("a greeting")]),
        ([], []),
    ],
)
def test_the_exchange_begins_where_the_last_one_was_answered(
    history: list[BaseMessage], now: list[BaseMessage]
) -> None:
    messages = [*history, *now]
    assert exchange(messages) == now
    assert before(messages) == history


def test_a_summary_is_no_part_of_the_exchange_but_a_model_sees_it() -> None:
    summary = HumanMessage("so far", additional_kwargs={"lc_source": "summarization"})
    messages: list[BaseMessage] = [summary, human("q")]
    assert exchange(messages) == [messages[1]]
    assert before(messages) == [summary]


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
def test_the_words_of_any_content(content: Any, words: str) -> None:
    """Field case 906."""
    assert text_of(HumanMessage(content)) == words


def test_calls_and_results_are_turns_of_one_group_whatever_the_content() -> None:
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


def test_a_result_belongs_to_the_latest_call_of_its_id() -> None:
    calls: Any = [{"name": "x", "args": {}, "id": "call_0", "type": "tool_call"}]
    answers = [ToolMessage("found", name="x", tool_call_id="call_0", id=f"t{n}") for n in (1, 2)]
    asked = [AIMessage("", id=f"ai{n}", tool_calls=calls) for n in (1, 2)]
    turns = turns_of([human("q"), asked[0], answers[0], asked[1], answers[1]])
    assert [turn.group for turn in turns] == [None, "ai1", "ai1", "ai2", "ai2"]


def test_neither_system_prompts_nor_what_our_own_tools_found_are_said() -> None:
    own = [SystemMessage("be nice", id="s"), human("q"), ai("", "search_memory"), tool("search_memory")]
    assert [turn.id for turn in turns_of(own)] == ["q"]
    assert turns_of([HumanMessage("without an id")]) == []


@pytest.mark.parametrize("name", ["", " ", "*", "x" * 513, "a\0b", "\ud83d", None])
def test_a_name_that_is_none_is_left_out(name: str | None) -> None:
    [turn] = turns_of([HumanMessage("q", id="1", name=name)])
    assert turn.name is None


@pytest.mark.parametrize("hostile", [" ", "*", "x" * 513, "a\0b", "\ud83d"])
def test_an_id_that_memory_refuses_costs_no_turn_and_stays_one(hostile: str) -> None:
    calls: Any = [{"name": "x", "args": {}, "id": hostile, "type": "tool_call"}]
    said = [AIMessage("", id=hostile, tool_calls=calls), ToolMessage("found", tool_call_id=hostile, id="t")]
    turns = turns_of([*said, ToolMessage("alone", tool_call_id=hostile, id="u")])
    assert len(turns) == 3
    assert len({turn.group for turn in turns}) == 1
    assert turns == turns_of([*said, ToolMessage("alone", tool_call_id=hostile, id="u")])


def test_the_block_stands_behind_the_prompt_and_nothing_else_changes() -> None:
    """Field cases 1112 and 1115: what comes before stays the same for a prompt cache, and there is no second system
    message."""
    messages: list[BaseMessage] = [SystemMessage("be nice"), *OLD, human("q"), ai("", "x"), tool("x")]
    prepared = with_block(messages, "BLOCK")
    assert [str(message.text) for message in prepared] == ["be nice", "old", "answer", "q\n\nBLOCK", "", "found"]
    assert [type(message) for message in prepared] == [type(message) for message in messages]
    assert messages[3].text == "q"
    assert with_block(messages, "") == messages
    assert with_block([ai("hello")], "BLOCK") == [ai("hello")]
