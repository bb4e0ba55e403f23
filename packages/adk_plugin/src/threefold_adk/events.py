"""Events of ADK as turns and back: words for memory, the event's own JSON for exact replay. Pure.

Whatever stores an event stores this turn, under the event's id: what the session service, the memory service and the
plugin write of one event is there once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from google.adk.events.event import Event
from google.genai.types import (
    Blob,
    CodeExecutionResult,
    Content,
    ExecutableCode,
    FileData,
    FunctionCall,
    FunctionResponse,
    Part,
)

from threefold import TurnIn
from threefold.calls import turn_in
from threefold.checks import id_or_hash, id_or_none
from threefold.contract import MAX_CONTENT_CHARS, MAX_PAYLOAD_CHARS, Turn
from threefold.contract.common import clean_text
from threefold.graphemes import middle_cut
from threefold.session import without_recalled
from threefold.tools.definitions import TOOLS

USER = "user"
"""The author of what the user sends; every other author is an agent."""

ADKS_OWN = "adk_"
"""Begins the names of those calls by which ADK asks the user for something."""

NO_JSON = (ValueError, TypeError, RecursionError)
"""A cycle, a key that is no text, a thousand levels: what cannot be JSON, whatever is made of single values."""

RECALLED = "(recalled memory, not kept in the log)"


def turn_of(event: Event) -> TurnIn:
    """The turn of an event. It has no content where nobody says anything, and no payload where that is no JSON or too
    much of it: a tool may answer anything."""
    return without_recalled(
        turn_in(
            {
                **_voice(event),
                "id": id_or_hash(event.id),
                "content": middle_cut(text_of(event), MAX_CONTENT_CHARS),
                "payload": _payload(event),
                "created_at": _time(event.timestamp),
            }
        )
    )


def event_of(turn: Turn) -> Event | None:
    """The event behind a turn; None where something else was written, or an erasure took it."""
    try:
        data: Any = json.loads(turn.payload or "null")
        if isinstance(data, dict) and id_or_hash(cast(dict[str, Any], data).get("id")) == turn.id:
            return Event.model_validate(data)
    except NO_JSON:
        pass
    return None


def spoken_turns(events: Iterable[Event]) -> list[TurnIn]:
    """The turns of those events in which something is said: what there is to remember. No credential is."""
    spoken = [(event, turn_of(event)) for event in events if not event.partial]
    return [
        turn.model_copy(update={"payload": None}) if _may_hold_credentials(event) else turn
        for event, turn in spoken
        if turn.content
    ]


def text_of(event: Event) -> str:
    """The words of an event."""
    heard = [spoken.text for spoken in (event.input_transcription, event.output_transcription) if spoken]
    return "\n".join(filter(None, [words_of(event.content), *heard]))


def words_of(content: Content | None) -> str:
    """What is said. Files leave a mark; thinking stays private."""
    return "\n".join(filter(None, map(_said, (content and content.parts) or [])))


def _voice(event: Event) -> dict[str, Any]:
    """Who speaks. A call and its results are one group, which goes by the first call: results of calls that are made
    together come together, too."""
    answered, called = event.get_function_responses(), event.get_function_calls()
    if answered:
        return {"role": "tool", "kind": "tool_result", **_tool(answered)}
    if called:
        return {"role": "assistant", "kind": "tool_call", **_tool(called)}
    if not text_of(event):
        return {"role": "system"}  # a change of state, a compaction: nobody says anything
    if event.author == USER:
        return {"role": "user"}
    return {"role": "assistant", "name": id_or_none(event.author)}


def _tool(used: Sequence[FunctionCall | FunctionResponse]) -> dict[str, Any]:
    return {"name": id_or_none(used[0].name), "group": id_or_none(used[0].id)}


def _said(part: Part) -> str | None:
    match part:
        case Part(text=str(text)):
            return None if part.thought else text
        case Part(function_call=FunctionCall(name=name, args=arguments)):
            return None if _is_silent(name) else f"{name}({_json(arguments or {})})"
        case Part(function_response=FunctionResponse(name=name, response=response)):
            return None if _is_silent(name) else _result(response or {})
        case Part(inline_data=Blob(mime_type=kind, data=data)):
            return f"[{kind}, {len(data or b'')} bytes]"
        case Part(file_data=FileData(mime_type=kind, file_uri=uri)):
            return f"[{kind} {uri}]"
        case Part(executable_code=ExecutableCode(code=code)):
            return code
        case Part(code_execution_result=CodeExecutionResult(output=output)):
            return output
        case _:
            return None


def _may_hold_credentials(event: Event) -> bool:
    """What ADK asks the user for, and what it is given, may be keys and tokens."""
    used = [*event.get_function_calls(), *event.get_function_responses()]
    return bool(event.actions.requested_auth_configs) or any(str(each.name).startswith(ADKS_OWN) for each in used)


def _is_silent(tool: str | None) -> bool:
    """What our tools look up is known, and what ADK asks for on its own account may be a credential."""
    return tool in TOOLS or tool == "transfer_to_agent" or str(tool).startswith(ADKS_OWN)


def _result(response: dict[str, Any]) -> str:
    """What a tool answered; ADK puts what is no dict below `result`."""
    result = response["result"] if response.keys() == {"result"} else response
    return result if isinstance(result, str) else _json(result)


def _time(timestamp: float) -> datetime | None:
    """None where the clock that an event was stamped by is none, or counts milliseconds."""
    try:
        return datetime.fromtimestamp(timestamp, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _payload(event: Event) -> str | None:
    try:
        values = _without_memories(event).model_dump(mode="json", exclude_none=True, fallback=str)
        payload = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        if clean_text(payload) != payload:  # a lone surrogate has to be escaped
            payload = json.dumps(values)
    except NO_JSON:
        return None
    return payload if len(payload) <= MAX_PAYLOAD_CHARS else None


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except NO_JSON:
        return f"[{type(value).__name__}]"


def _without_memories(event: Event) -> Event:
    """ADK's own `load_memory` answers memories without a fence: a copy of them would outlive their erasure."""
    if not any(answer.name == "load_memory" for answer in event.get_function_responses()):
        return event
    kept = event.model_copy(deep=True)
    for answer in kept.get_function_responses():
        if answer.name == "load_memory":
            answer.response = {"result": RECALLED}
    return kept
