"""Messages of LangChain as memory sees them: the exchange that goes on, its words, and its turns. Pure."""

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


def exchange(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """What goes on now: the latest message of the user with all after it, and before it what nobody has answered.

    Never the messages that are new to a list: summaries replace them, and an application may pass in all of them anew.
    """
    said = [message for message in messages if not is_summary(message)]
    asked = _last(said, HumanMessage, len(said))
    return said[_last(said, AIMessage, max(0, asked)) + 1 :]


def prompt_of(messages: Sequence[BaseMessage]) -> HumanMessage | None:
    """The latest message of the user."""
    asked = [message for message in messages if isinstance(message, HumanMessage) and not is_summary(message)]
    return asked[-1] if asked else None


def before(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """What a model is shown anyway, besides the exchange."""
    now = {id(message) for message in exchange(messages)}
    return [message for message in messages if id(message) not in now]


def is_summary(message: BaseMessage) -> bool:
    """A summary that stands in for older messages is nobody's words."""
    return message.additional_kwargs.get("lc_source") == "summarization"


def text_of(message: BaseMessage) -> str:
    """The words of a message. Pictures and files leave a mark; thinking stays private."""
    return "\n".join(filter(None, [str(message.text), *_marks(message)]))


def with_block(messages: Sequence[BaseMessage], block: str) -> list[BaseMessage]:
    """The messages with recalled memory behind the prompt, in a copy: a prompt cache keeps all that comes before, and
    no state keeps what a later forget has to reach."""
    prompt = prompt_of(messages) if block else None
    return [_extended(message, block) if message is prompt else message for message in messages]


def turns_of(messages: Sequence[BaseMessage]) -> list[TurnIn]:
    """An exchange as turns, whose ids are those of the messages."""
    turns: list[TurnIn] = []
    groups: dict[str | None, str] = {}
    for message in messages:
        if message.id:
            # Models that count their calls anew in each answer use an id twice: a result belongs to the latest.
            groups.update((call["id"], id_or_hash(message.id)) for call in _calls(message))
            turns += _turns(message, groups)
    return turns


def _turns(message: BaseMessage, groups: Mapping[str | None, str]) -> Iterator[TurnIn]:
    match message:
        case HumanMessage():
            yield from _said(message, role="user", name=id_or_none(message.name))
        case AIMessage():
            asked = _calls(message)
            yield from _said(message, role="assistant", group=id_or_hash(message.id) if asked else None)
            yield from (_called(message, n, call) for n, call in enumerate(asked) if call["name"] not in TOOLS)
        case ToolMessage() if message.name not in TOOLS:
            group = groups.get(message.tool_call_id) or id_or_hash(message.tool_call_id)
            yield from _said(message, role="tool", kind="tool_result", name=id_or_none(message.name), group=group)
        case _:  # system prompts are restated in every run; what our own tools found is known already
            pass


def _said(message: BaseMessage, **fields: Any) -> Iterator[TurnIn]:
    content = text_of(message)
    if content:
        yield calls.turn_in({"id": id_or_hash(message.id), "content": middle_cut(content, MAX_CONTENT_CHARS), **fields})


def _called(message: BaseMessage, number: int, call: ToolCall) -> TurnIn:
    arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
    return calls.turn_in(
        {
            "id": id_or_hash(f"{message.id}/{number}"),  # the id of a call is the model's: missing, or there twice
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
    """The place of the last message of a kind before an end; -1 where there is none."""
    return next((place for place in range(end - 1, -1, -1) if isinstance(messages[place], kind)), -1)


def _extended(message: BaseMessage, block: str) -> BaseMessage:
    content: Any = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{block}"})
    return message.model_copy(update={"content": [*content, {"type": "text", "text": block}]})
