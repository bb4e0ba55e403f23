"""Messages become readable turns, and turns become the same messages again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai.messages import (
    AudioUrl,
    BinaryImage,
    CachePoint,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from threefold import TurnIn, calls
from threefold.contract import MAX_CONTENT_CHARS, Turn
from threefold.render import join_block
from threefold.session import recordable
from threefold_pydantic_ai.messages import learn_groups, messages_of, texts_of, turns_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PIXEL = BinaryImage(bytes.fromhex("89504e470d0a1a0a"), media_type="image/png")

RICH: list[ModelMessage] = [
    ModelRequest([SystemPromptPart("Be kind."), UserPromptPart("Hello")], timestamp=NOON, run_id="r"),
    ModelRequest(
        [UserPromptPart(["What is this?", PIXEL, ImageUrl("https://example.org/a.png"), CachePoint(), "And this?"])],
        instructions="Be brief.",
        metadata={"mine": 1},
    ),
    ModelResponse(
        [
            ThinkingPart("Let me see.", signature="s1", provider_details={"x": 1}),
            TextPart("I look."),
            ToolCallPart("weather", '{"town": "Os', tool_call_id="c1"),  # malformed, as a model may send it
            ToolCallPart("time", {"zone": "UTC"}, tool_call_id="c2"),
        ],
        model_name="m",
        provider_response_id="p1",
        finish_reason="tool_call",
        timestamp=NOON,
    ),
    ModelRequest(
        [
            ToolReturnPart("weather", {"sunny": True}, tool_call_id="c1", metadata={"cost": 2}),
            ToolReturnPart("time", ["noon", PIXEL], tool_call_id="c2", outcome="failed"),
            UserPromptPart([TextContent("Hurry.", metadata={"source": "app"})]),
        ]
    ),
    ModelResponse(
        [
            NativeToolCallPart("web_search", {"query": "oslo"}, tool_call_id="n1"),
            NativeToolReturnPart("web_search", {"hits": 1}, tool_call_id="n1"),
            FilePart(PIXEL),
            ThinkingPart("Only thought."),
        ]
    ),
    ModelRequest([RetryFeedbackPart("Too long.", retry=RetryInfo(cause="model_retry", attempt=1, max_retries=2))]),
    ModelResponse([ThinkingPart("Nothing to say.")], state="interrupted"),
]


def written(messages: list[ModelMessage]) -> list[TurnIn]:
    """Return the turns of messages as the plugin records them."""
    groups: dict[str, str] = {}
    turns: list[TurnIn] = []
    for number, message in enumerate(messages):
        learn_groups(message, groups)
        made = map(calls.turn_in, turns_of(message, f"r/{number}", groups))
        turns += [kept for turn in made for kept in recordable(turn)]
    return turns


def stored(turns: list[TurnIn]) -> list[Turn]:
    """Return the turns as the service stores them."""
    return [Turn(seq=seq, tokens=1, **turn.model_dump()) for seq, turn in enumerate(turns, 1)]


def normalised(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return messages as the framework reads them back."""
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


def test_every_message_is_restored_unchanged() -> None:
    assert messages_of(stored(written(RICH))) == normalised(RICH)


def test_stored_payload_is_stable() -> None:
    for turn in written(RICH):
        assert turn.payload is not None
        loaded = ModelMessagesTypeAdapter.validate_json(f"[{turn.payload}]")
        assert ModelMessagesTypeAdapter.dump_json(loaded).decode() == f"[{turn.payload}]"


def test_turns_have_role_kind_name_group_and_text() -> None:
    assert [(turn.role, turn.kind, turn.name, turn.group, turn.content) for turn in written(RICH)] == [
        ("system", "message", None, None, "Be kind."),
        ("user", "message", None, None, "Hello"),
        (
            *("user", "message", None, None),
            "What is this?\n[image/png, 8 bytes]\n[image-url https://example.org/a.png]\nAnd this?",
        ),
        ("assistant", "message", None, None, "I look."),
        ("assistant", "tool_call", "weather", "c1", 'weather({"town": "Os)'),
        ("assistant", "tool_call", "time", "c1", 'time({"zone": "UTC"})'),
        ("tool", "tool_result", "weather", "c1", '{"sunny":true}'),
        ("tool", "tool_result", "time", "c1", "noon\n[image/png, 8 bytes]"),
        ("user", "message", None, None, "Hurry."),
        ("assistant", "message", None, None, 'web_search({"query": "oslo"})\n{"hits":1}\n[image/png, 8 bytes]'),
        ("system", "message", None, None, ""),
        ("assistant", "message", None, None, ""),
    ]
    assert "I look." in texts_of(RICH)


def test_file_is_recorded_as_type_and_address_without_bytes() -> None:
    parts = [AudioUrl("data:audio/wav;base64,AAAA"), DocumentUrl("https://example.org/a.pdf")]
    assert written([ModelRequest([UserPromptPart(parts)])])[0].content == (
        "[audio-url]\n[document-url https://example.org/a.pdf]"
    )


def test_unknown_part_type_affects_only_its_own_turn() -> None:
    turns = stored(written([ModelRequest([UserPromptPart("Hello")]), ModelResponse([TextPart("Hi")])]))
    payload = (turns[1].payload or "").replace('"part_kind":"text"', '"part_kind":"telepathy"')
    loaded = messages_of([turns[0], turns[1].model_copy(update={"payload": payload})])
    assert loaded[0] == messages_of(turns[:1])[0]
    assert texts_of(loaded[1:]) == {"Hi"}


@pytest.mark.parametrize("text", ["a\ud83db", "a\x00b"])
def test_text_that_no_database_can_store_is_recorded_without_it(text: str) -> None:
    turns = written([ModelRequest([UserPromptPart(text)]), ModelResponse([ToolCallPart("t", {"a": text})])])
    assert [turn.role for turn in turns] == ["user", "assistant"]
    assert turns[0].content == "a\ufffdb"


def test_huge_text_is_cut_and_huge_payload_is_left_out() -> None:
    turn = written([ModelRequest([ToolReturnPart("t", "x" * 5_000_000, tool_call_id="c")])])[0]
    assert len(turn.content) <= MAX_CONTENT_CHARS
    assert turn.payload is None


@pytest.mark.parametrize("name", ["", " ", "*", "x" * 600, "a\x00b"])
def test_invalid_tool_name_is_left_out(name: str) -> None:
    response = ModelResponse([ToolCallPart(name, {}, tool_call_id=name or "c")])
    turn = written([response])[0]
    assert (turn.kind, turn.name) == ("tool_call", None)


def test_recalled_memory_is_no_turn_and_in_no_payload() -> None:
    block = join_block([], ["- [2026-03-01, user] The code is 4711."], [])
    recalled = UserPromptPart([TextContent(block, metadata={"origin": "threefold"})])
    result = ToolReturnPart("search_memory", block, tool_call_id="c")
    turns = written(
        [
            ModelRequest([recalled]),
            ModelRequest([UserPromptPart("What is the code?"), recalled]),
            ModelResponse([ToolCallPart("search_memory", {"query": "code"}, tool_call_id="c")]),
            ModelRequest([result]),
        ]
    )
    assert [turn.content for turn in turns] == ["What is the code?", "", ""]
    assert "4711" not in "".join(turn.payload or "" for turn in turns)
    assert len(messages_of(stored(turns))) == 3


def turn(**fields: Any) -> Turn:
    return Turn.model_validate({"id": "1", "seq": 1, "tokens": 1, "created_at": NOON, **fields})


def test_turns_of_another_framework_are_read_as_text() -> None:
    loaded = messages_of(
        [
            turn(role="system", content="Obey somebody else."),
            turn(role="user", content="Hello", payload='{"foreign": true}'),
            turn(role="tool", kind="tool_result", name="calc", content="42"),
            turn(role="assistant", content="Hi"),
            turn(role="user", content="", erased=True, id=""),
        ]
    )
    assert loaded == [
        ModelRequest([UserPromptPart("Hello", timestamp=NOON)], timestamp=NOON),
        ModelRequest([UserPromptPart("[calc] 42", timestamp=NOON)], timestamp=NOON),
        ModelResponse([TextPart("Hi")], timestamp=NOON),
    ]
