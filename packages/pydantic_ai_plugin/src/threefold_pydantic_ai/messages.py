"""Convert messages of Pydantic AI to turns and back. The content is text; the payload is JSON for exact replay."""

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
"""Marks recalled text in the metadata of a message."""

RECALLED = "(recalled memory, not kept in the log)"
SEPARATOR = "/"  # before the number of a part; run ids may contain it, so the last one counts


class Speaker(NamedTuple):
    """The speaker of a part. Adjacent parts of one speaker are one turn, but each call and each result is its own."""

    role: Role
    kind: TurnKind = "message"
    tool: str | None = None
    call: str | None = None


PartsBySpeaker = list[tuple[Speaker, list[Part]]]


def turns_of(message: ModelMessage, key: str, groups: Mapping[str, str]) -> list[TurnLike]:
    """Return a message as turns.

    The id of each turn starts with `key`. Its payload has only its own parts, so that no other turn keeps what an
    erasure removes. `groups` has the group of each tool call.
    """
    return _turns(message, _by_speaker(message), key, groups)


def whole_turns_of(message: ModelMessage, key: str, groups: Mapping[str, str]) -> list[TurnLike]:
    """Return a message as at least one turn, also if it has no text."""
    silent: PartsBySpeaker = [
        (Speaker("user" if isinstance(message, ModelRequest) else "assistant"), list(message.parts))
    ]
    return _turns(message, _by_speaker(message) or silent, key, groups)


def _turns(message: ModelMessage, by_speaker: PartsBySpeaker, key: str, groups: Mapping[str, str]) -> list[TurnLike]:
    turns: list[TurnLike] = []
    for number, (speaker, parts) in enumerate(by_speaker):
        turn = {
            "id": f"{key}{SEPARATOR}{number}",
            "role": speaker.role,
            "kind": speaker.kind,
            "name": id_or_none(speaker.tool),
            "group": id_or_none(speaker.call and groups.get(speaker.call, speaker.call)),
            "content": middle_cut(_text(parts), MAX_CONTENT_CHARS),
            "payload": _dump(_with_parts(message, parts)),
            "created_at": message.timestamp if message.timestamp and message.timestamp.tzinfo else None,
        }
        turns.append(turn)
    return turns


def messages_of(turns: Iterable[Turn]) -> list[ModelMessage]:
    """Return the messages of turns. A turn without a valid payload becomes a message with its text."""
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
    """Put the calls of one message, and thus their results, into one group."""
    called = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
    groups.update(dict.fromkeys(called, called[0] if called else ""))


def texts_of(messages: Iterable[ModelMessage]) -> set[str]:
    """Return the text of each turn of these messages."""
    return {_text(parts) for message in messages for _, parts in _by_speaker(message)}


def user_text(message: ModelMessage) -> str:
    """Return the text of the user in a message, without recalled text."""
    return _text([part for part in message.parts if isinstance(part, UserPromptPart)])


def _by_speaker(message: ModelMessage) -> PartsBySpeaker:
    """Return the parts by speaker. Parts without text, such as thinking, join the next part with text, or the last."""
    found: PartsBySpeaker = []
    silent: list[Part] = []
    own = [part for part in cast(Sequence[Part], message.parts) if not _is_recalled(part)]
    for speaker, run in groupby(own, key=_speaker_of):
        parts = [*silent, *run]
        silent = [] if speaker.call or _text(parts) else parts
        if not silent:
            found.append((speaker, parts))
    if silent and found:
        found[-1][1].extend(silent)
    elif silent:
        found.append((_speaker_of(silent[-1]), silent))
    return found


def _speaker_of(part: Part) -> Speaker:
    match part:
        case SystemPromptPart():
            return Speaker("system")
        case UserPromptPart():
            return Speaker("user")
        case SpeechPart():
            return Speaker("user" if part.speaker == "user" else "assistant")
        case ToolReturnPart():
            return Speaker("tool", "tool_result", part.tool_name, part.tool_call_id)
        case ToolCallPart():
            return Speaker("assistant", "tool_call", part.tool_name, part.tool_call_id)
        case TextPart() | ThinkingPart() | FilePart() | NativeToolCallPart() | NativeToolReturnPart():
            return Speaker("assistant")
        case _:
            return Speaker("system")


def _text(parts: Iterable[Part]) -> str:
    return "\n".join(filter(None, map(_text_of_part, parts)))


def _text_of_part(part: Part) -> str:
    """Return the text of a part. Files become a mark; thinking is left out."""
    match part:
        case UserPromptPart():
            content = [part.content] if isinstance(part.content, str) else part.content
            return "\n".join(filter(None, map(_text_of_content, content)))
        case ToolCallPart() if part.tool_name in TOOLS:
            return ""  # the query would be the best match for the next search for the same
        case BaseToolCallPart():
            return f"{part.tool_name}({_arguments(part)})"
        case BaseToolReturnPart():
            text = _result(part)
            files = [_text_of_content(file) for file in part.files]
            return "\n".join(filter(None, [strip_block(text), *files]))
        case FilePart():
            return _text_of_content(part.content)
        case SystemPromptPart() | TextPart() | CompactionPart():
            return part.content or ""
        case SpeechPart():
            return part.transcript or ""
        case _:
            return ""


def _arguments(part: BaseToolCallPart) -> str:
    """Return the arguments as the model wrote them; they need not be JSON."""
    return part.args if isinstance(part.args, str) else json.dumps(part.args or {}, ensure_ascii=False, default=str)


def _result(part: BaseToolReturnPart) -> str:
    try:
        return part.model_response_str(wrap_if_error=False)
    except PydanticSerializationError:  # the result is not JSON, or not Unicode
        return str(part.content)


def _text_of_content(content: UserContent) -> str:
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
    """Return True if the part has only recalled text."""
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return False
    return bool(part.content) and all(isinstance(item, TextContent) and _is_marked(item) for item in part.content)


def _is_marked(content: TextContent) -> bool:
    metadata: Any = content.metadata
    return isinstance(metadata, Mapping) and cast(Mapping[str, Any], metadata).get("origin") == ORIGIN


def _with_parts(message: ModelMessage, parts: Sequence[Part]) -> ModelMessage:
    return replace(message, parts=cast(Any, list(parts)))


def _dump(message: ModelMessage) -> str | None:
    """Return the message as JSON; None if it cannot be JSON or is too large, so that only its text is stored."""
    kept = _with_parts(message, [_without_recalled(part) for part in message.parts])
    try:
        payload = ModelMessagesTypeAdapter.dump_json([kept]).decode()[1:-1]
    except PydanticSerializationError:
        return None
    return payload if len(payload) <= MAX_PAYLOAD_CHARS else None


def _without_recalled(part: Part) -> Part:
    """Return a part without recalled text. A result is kept even if no text is left, because its call needs one."""
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
    """Return the text of a turn of another framework as a message; None for its system prompts and erased turns."""
    if turn.erased or turn.role == "system" or not turn.content:
        return None
    if turn.role == "assistant":
        return ModelResponse([TextPart(turn.content)], timestamp=turn.created_at)
    text = turn.content if turn.role == "user" else f"[{turn.name or 'tool'}] {turn.content}"
    return ModelRequest([UserPromptPart(text, timestamp=turn.created_at)], timestamp=turn.created_at)
