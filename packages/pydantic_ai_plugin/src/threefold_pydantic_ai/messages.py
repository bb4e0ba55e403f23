"""Messages of Pydantic AI as turns and back: words for memory, the framework's own JSON for exact replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, cast

from pydantic import ValidationError
from pydantic_ai.messages import (
    BaseToolCallPart,
    BaseToolReturnPart,
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserContent,
    UserPromptPart,
)
from pydantic_core import PydanticSerializationError

from threefold import strip_block
from threefold.calls import TurnLike
from threefold.checks import id_or_none
from threefold.contract import MAX_CONTENT_CHARS, MAX_PAYLOAD_CHARS, Role, Turn
from threefold.contract.common import TurnKind
from threefold.graphemes import middle_cut
from threefold.tools.definitions import TOOLS

Part = ModelRequestPart | ModelResponsePart

ORIGIN = "threefold"
"""Marks recalled text in a message's metadata."""

RECALLED = "(recalled memory, not kept in the log)"
SEPARATOR = "/"  # before the number of a part; run ids are opaque, so the last one counts


class Voice(NamedTuple):
    """Who speaks in a part. Neighbouring parts of one voice are one turn, but each call and each result is its own."""

    role: Role
    kind: TurnKind = "message"
    tool: str | None = None
    call: str | None = None


Voices = list[tuple[Voice, list[Part]]]


def turns_of(message: ModelMessage, key: str, groups: Mapping[str, str]) -> list[TurnLike]:
    """A message as turns with ids below `key`, each with the JSON of its own parts: what one of them loses by an
    erasure, no other one still tells. `groups` names the group of each tool call."""
    return _turns(message, _voices(message), key, groups)


def whole_turns_of(message: ModelMessage, key: str, groups: Mapping[str, str]) -> list[TurnLike]:
    """The same, with one turn at least: the place of a message that says nothing of its own."""
    silent: Voices = [(Voice("user" if isinstance(message, ModelRequest) else "assistant"), list(message.parts))]
    return _turns(message, _voices(message) or silent, key, groups)


def _turns(message: ModelMessage, voices: Voices, key: str, groups: Mapping[str, str]) -> list[TurnLike]:
    turns: list[TurnLike] = []
    for number, (voice, parts) in enumerate(voices):
        turn = {
            "id": f"{key}{SEPARATOR}{number}",
            "role": voice.role,
            "kind": voice.kind,
            "name": id_or_none(voice.tool),
            "group": id_or_none(voice.call and groups.get(voice.call, voice.call)),
            "content": middle_cut(_text(parts), MAX_CONTENT_CHARS),
            "payload": _dump(_with_parts(message, parts)),
            "created_at": message.timestamp if message.timestamp and message.timestamp.tzinfo else None,
        }
        turns.append(turn)
    return turns


def messages_of(turns: Iterable[Turn]) -> list[ModelMessage]:
    """The messages behind turns: equal to what was said, or as text where a payload is missing or not understood."""
    messages: list[ModelMessage] = []
    before = ""
    for turn in turns:
        whole = _load(turn)
        message = whole or _as_text(turn)
        if message is None:
            continue
        key = turn.id.rpartition(SEPARATOR)[0] if whole else ""
        if key and key == before and type(messages[-1]) is type(message):
            messages[-1] = _with_parts(message, [*messages[-1].parts, *message.parts])
        else:
            messages.append(message)
        before = key
    return messages


def learn_groups(message: ModelMessage, groups: dict[str, str]) -> None:
    """Calls that are made together, and so all their results, are one group."""
    called = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
    groups.update(dict.fromkeys(called, called[0] if called else ""))


def texts_of(messages: Iterable[ModelMessage]) -> set[str]:
    """The words of each turn in these messages."""
    return {_text(parts) for message in messages for _, parts in _voices(message)}


def user_text(message: ModelMessage) -> str:
    """What the user says in a message, recalled memory not being the user's."""
    return _text([part for part in message.parts if isinstance(part, UserPromptPart)])


def _voices(message: ModelMessage) -> Voices:
    """The parts by voice. Silent ones, such as thinking, go with the next one that says something, or the last."""
    found: Voices = []
    silent: list[Part] = []
    own = [part for part in cast(Sequence[Part], message.parts) if not _is_recalled(part)]
    for voice, run in groupby(own, key=_voice):
        parts = [*silent, *run]
        silent = [] if voice.call or _text(parts) else parts
        if not silent:
            found.append((voice, parts))
    if silent and found:
        found[-1][1].extend(silent)
    elif silent:
        found.append((_voice(silent[-1]), silent))
    return found


def _voice(part: Part) -> Voice:
    match part:
        case SystemPromptPart():
            return Voice("system")
        case UserPromptPart():
            return Voice("user")
        case SpeechPart():
            return Voice("user" if part.speaker == "user" else "assistant")
        case ToolReturnPart():
            return Voice("tool", "tool_result", part.tool_name, part.tool_call_id)
        case ToolCallPart():
            return Voice("assistant", "tool_call", part.tool_name, part.tool_call_id)
        case TextPart() | ThinkingPart() | FilePart() | NativeToolCallPart() | NativeToolReturnPart():
            return Voice("assistant")
        case _:
            return Voice("system")


def _text(parts: Iterable[Part]) -> str:
    return "\n".join(filter(None, map(_said, parts)))


def _said(part: Part) -> str:
    """The words of a part; files leave a mark, thinking stays private."""
    match part:
        case UserPromptPart():
            content = [part.content] if isinstance(part.content, str) else part.content
            return "\n".join(filter(None, map(_shown, content)))
        case ToolCallPart() if part.tool_name in TOOLS:
            return ""  # what was searched for would be the best match for the next such search
        case BaseToolCallPart():
            return f"{part.tool_name}({_arguments(part)})"
        case BaseToolReturnPart():
            text = _result(part)
            files = [_shown(file) for file in part.files]
            return "\n".join(filter(None, [strip_block(text), *files]))
        case FilePart():
            return _shown(part.content)
        case SystemPromptPart() | TextPart() | CompactionPart():
            return part.content or ""
        case SpeechPart():
            return part.transcript or ""
        case _:
            return ""


def _arguments(part: BaseToolCallPart) -> str:
    """The arguments as the model wrote them, which need not be JSON."""
    return part.args if isinstance(part.args, str) else json.dumps(part.args or {}, ensure_ascii=False, default=str)


def _result(part: BaseToolReturnPart) -> str:
    try:
        return part.model_response_str(wrap_if_error=False)
    except PydanticSerializationError:  # no JSON, or not even Unicode
        return str(part.content)


def _shown(content: UserContent) -> str:
    match content:
        case str():
            return content
        case TextContent():
            return content.content
        case CachePoint():
            return ""
        case BinaryContent():
            return f"[{content.media_type}, {len(content.data)} bytes]"
        case UploadedFile():
            return f"[file {content.file_id}]"
        case _:
            return f"[{content.kind}]" if content.url.startswith("data:") else f"[{content.kind} {content.url}]"


def _is_recalled(part: Part) -> bool:
    """Whether it is what memory said, and nobody else."""
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return False
    return bool(part.content) and all(isinstance(item, TextContent) and _is_marked(item) for item in part.content)


def _is_marked(content: TextContent) -> bool:
    about: Any = content.metadata
    return isinstance(about, Mapping) and cast(Mapping[str, Any], about).get("origin") == ORIGIN


def _with_parts(message: ModelMessage, parts: Sequence[Part]) -> ModelMessage:
    return replace(message, parts=cast(Any, list(parts)))


def _dump(message: ModelMessage) -> str | None:
    """The message's own JSON; None where it has none or a very large one, and the text has to do."""
    kept = _with_parts(message, [_without_recalled(part) for part in message.parts])
    try:
        payload = ModelMessagesTypeAdapter.dump_json([kept]).decode()[1:-1]
    except PydanticSerializationError:
        return None
    return payload if len(payload) <= MAX_PAYLOAD_CHARS else None


def _without_recalled(part: Part) -> Part:
    """A tool result that only tells memories has to stay, or its call would have no answer; not so its text."""
    if isinstance(part, ToolReturnPart) and isinstance(part.content, str) and strip_block(part.content) != part.content:
        return replace(part, content=strip_block(part.content) or RECALLED)
    return part


def _load(turn: Turn) -> ModelMessage | None:
    if turn.payload is None:
        return None
    try:
        return ModelMessagesTypeAdapter.validate_json(f"[{turn.payload}]")[0]
    except (ValidationError, IndexError):
        return None


def _as_text(turn: Turn) -> ModelMessage | None:
    """What another framework wrote. Its system prompts are not this agent's."""
    if turn.erased or turn.role == "system" or not turn.content:
        return None
    if turn.role == "assistant":
        return ModelResponse([TextPart(turn.content)], timestamp=turn.created_at)
    said = turn.content if turn.role == "user" else f"[{turn.name or 'tool'}] {turn.content}"
    return ModelRequest([UserPromptPart(said, timestamp=turn.created_at)], timestamp=turn.created_at)
