"""Convert messages of LangChain to turns: the open part of a conversation, its text and its turns. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage

from threefold import TurnIn, calls
from threefold.checks import id_or_hash, id_or_none
from threefold.contract import MAX_CONTENT_CHARS
from threefold.graphemes import middle_cut
from threefold.tools.definitions import TOOLS

MEDIA = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "document", "media"})


def open_messages(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the open part: the latest user message, everything after it, and unanswered messages before it.

    New messages cannot be found by comparing lists: summaries replace messages, and an application may pass all of them
    in each call.
    """
    spoken = [message for message in messages if not is_summary(message)]
    latest = _last(spoken, HumanMessage, len(spoken))
    return spoken[_last(spoken, AIMessage, max(0, latest)) + 1 :]


def prompt_of(messages: Sequence[BaseMessage]) -> HumanMessage | None:
    """Return the latest message of the user, or None."""
    prompts = [message for message in messages if isinstance(message, HumanMessage) and not is_summary(message)]
    return prompts[-1] if prompts else None


def earlier_messages(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages before the open part, which a model reads anyway."""
    current = {id(message) for message in open_messages(messages)}
    return [message for message in messages if id(message) not in current]


def is_summary(message: BaseMessage) -> bool:
    """Return True for a summary that replaces older messages."""
    return message.additional_kwargs.get("lc_source") == "summarization"


def text_of(message: BaseMessage) -> str:
    """Return the text of a message. Images and files become a mark; thinking is left out."""
    return "\n".join(filter(None, [str(message.text), *_marks(message)]))


def with_block(messages: Sequence[BaseMessage], block: str) -> list[BaseMessage]:
    """Return the messages with the block after the prompt.

    The prompt is copied, so that no state keeps recalled text that a later forget must erase. A prompt cache keeps
    everything before the block.
    """
    prompt = prompt_of(messages) if block else None
    return [_extended(message, block) if message is prompt else message for message in messages]


def turns_of(messages: Sequence[BaseMessage]) -> list[TurnIn]:
    """Return messages as turns with the ids of the messages."""
    turns: list[TurnIn] = []
    groups: dict[str | None, str] = {}
    for message in messages:
        if message.id:
            # Some models number their calls from 1 in each answer: a result belongs to the latest call with its id.
            groups.update((call["id"], id_or_hash(message.id)) for call in _calls(message))
            turns += _turns(message, groups)
    return turns


def _turns(message: BaseMessage, groups: Mapping[str | None, str]) -> Iterator[TurnIn]:
    match message:
        case HumanMessage():
            yield from _message_turn(message, role="user", name=id_or_none(message.name))
        case AIMessage():
            tool_calls = _calls(message)
            yield from _message_turn(message, role="assistant", group=id_or_hash(message.id) if tool_calls else None)
            yield from (_call_turn(message, n, call) for n, call in enumerate(tool_calls) if call["name"] not in TOOLS)
        case ToolMessage() if message.name not in TOOLS:
            group = groups.get(message.tool_call_id) or id_or_hash(message.tool_call_id)
            yield from _message_turn(
                message, role="tool", kind="tool_result", name=id_or_none(message.name), group=group
            )
        case _:  # system prompts, which every run repeats, and results of the memory tools
            pass


def _message_turn(message: BaseMessage, **fields: Any) -> Iterator[TurnIn]:
    content = text_of(message)
    if content:
        yield calls.turn_in({"id": id_or_hash(message.id), "content": middle_cut(content, MAX_CONTENT_CHARS), **fields})


def _call_turn(message: BaseMessage, number: int, call: ToolCall) -> TurnIn:
    arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
    return calls.turn_in(
        {
            "id": id_or_hash(f"{message.id}/{number}"),  # the id of a call may be missing or not unique
            "role": "assistant",
            "kind": "tool_call",
            "name": id_or_none(call["name"]),
            "group": id_or_hash(message.id),
            "content": middle_cut(f"{call['name']}({arguments})", MAX_CONTENT_CHARS),
        }
    )


def _calls(message: BaseMessage) -> list[ToolCall]:
    return message.tool_calls if isinstance(message, AIMessage) else []


def _marks(message: BaseMessage) -> Iterator[str]:
    blocks = cast(Iterable[Any], message.content if isinstance(message.content, list) else [])
    for block in blocks:
        kind = cast(dict[str, Any], block).get("type") if isinstance(block, dict) else None
        if kind in MEDIA:
            yield f"[{kind.removesuffix('_url').removeprefix('input_')}]"


def _last(messages: Sequence[BaseMessage], kind: type[BaseMessage], end: int) -> int:
    """Return the index of the last message of a kind before `end`, or -1."""
    return next((index for index in range(end - 1, -1, -1) if isinstance(messages[index], kind)), -1)


def _extended(message: BaseMessage, block: str) -> BaseMessage:
    content: Any = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{block}"})
    return message.model_copy(update={"content": [*content, {"type": "text", "text": block}]})
