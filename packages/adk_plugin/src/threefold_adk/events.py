"""Convert events of ADK to turns and back. The content is text; the payload is JSON for exact replay. Pure.

The session service, the memory service and the plugin store the same turn for one event, with the id of the event, so
that an event is stored once.
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
"""The author of events of the user; every other author is an agent."""

ADKS_OWN = "adk_"
"""Prefix of the names of calls by which ADK asks the user for something."""

NOT_JSON = (ValueError, TypeError, RecursionError)
"""Errors for values that cannot be JSON: cycles, keys that are not text, too many levels."""

RECALLED = "(recalled memory, not kept in the log)"


def turn_of(event: Event) -> TurnIn:
    """Return the turn of an event.

    It has no content if the event has no text, and no payload if the event cannot be JSON or is too large.
    """
    return without_recalled(
        turn_in(
            {
                **_speaker(event),
                "id": id_or_hash(event.id),
                "content": middle_cut(text_of(event), MAX_CONTENT_CHARS),
                "payload": _payload(event),
                "created_at": _time(event.timestamp),
            }
        )
    )


def event_of(turn: Turn) -> Event | None:
    """Return the event of a turn; None if the turn is not of an event, or was erased."""
    try:
        data: Any = json.loads(turn.payload or "null")
        if isinstance(data, dict) and id_or_hash(cast(dict[str, Any], data).get("id")) == turn.id:
            return Event.model_validate(data)
    except NOT_JSON:
        pass
    return None


def spoken_turns(events: Iterable[Event]) -> list[TurnIn]:
    """Return the turns of complete events with text. Payloads that may contain credentials are left out."""
    spoken = [(event, turn_of(event)) for event in events if not event.partial]
    return [
        turn.model_copy(update={"payload": None}) if _may_hold_credentials(event) else turn
        for event, turn in spoken
        if turn.content
    ]


def text_of(event: Event) -> str:
    """Return the text of an event, transcriptions included."""
    transcripts = [spoken.text for spoken in (event.input_transcription, event.output_transcription) if spoken]
    return "\n".join(filter(None, [words_of(event.content), *transcripts]))


def words_of(content: Content | None) -> str:
    """Return the text of a content. Files become a mark; thinking is left out."""
    return "\n".join(filter(None, map(_text_of_part, (content and content.parts) or [])))


def _speaker(event: Event) -> dict[str, Any]:
    """Return role, kind, name and group of an event.

    A call and its results are one group with the id of the first call, because the results of calls that are made
    together arrive together.
    """
    results, called = event.get_function_responses(), event.get_function_calls()
    if results:
        return {"role": "tool", "kind": "tool_result", **_tool(results)}
    if called:
        return {"role": "assistant", "kind": "tool_call", **_tool(called)}
    if not text_of(event):
        return {"role": "system"}  # a change of state or a compaction
    if event.author == USER:
        return {"role": "user"}
    return {"role": "assistant", "name": id_or_none(event.author)}


def _tool(used: Sequence[FunctionCall | FunctionResponse]) -> dict[str, Any]:
    return {"name": id_or_none(used[0].name), "group": id_or_none(used[0].id)}


def _text_of_part(part: Part) -> str | None:
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
    """Return True if the event is a request of ADK to the user or its answer, which may contain keys and tokens."""
    used = [*event.get_function_calls(), *event.get_function_responses()]
    return bool(event.actions.requested_auth_configs) or any(str(each.name).startswith(ADKS_OWN) for each in used)


def _is_silent(tool: str | None) -> bool:
    """Return True for tools whose calls are not recorded: memory tools, transfers, and requests of ADK, which may
    contain credentials."""
    return tool in TOOLS or tool == "transfer_to_agent" or str(tool).startswith(ADKS_OWN)


def _result(response: dict[str, Any]) -> str:
    """Return the answer of a tool as text. ADK wraps an answer that is not a dict in `result`."""
    result = response["result"] if response.keys() == {"result"} else response
    return result if isinstance(result, str) else _json(result)


def _time(timestamp: float) -> datetime | None:
    """Return the time of an event; None if the timestamp is out of range, for example in milliseconds."""
    try:
        return datetime.fromtimestamp(timestamp, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _payload(event: Event) -> str | None:
    try:
        values = _without_memories(event).model_dump(mode="json", exclude_none=True, fallback=str)
        payload = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        if clean_text(payload) != payload:  # a lone surrogate must be escaped
            payload = json.dumps(values)
    except NOT_JSON:
        return None
    return payload if len(payload) <= MAX_PAYLOAD_CHARS else None


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except NOT_JSON:
        return f"[{type(value).__name__}]"


def _without_memories(event: Event) -> Event:
    """Return the event without the answers of ADK's `load_memory`: a copy would outlive an erasure."""
    if not any(answer.name == "load_memory" for answer in event.get_function_responses()):
        return event
    kept = event.model_copy(deep=True)
    for answer in kept.get_function_responses():
        if answer.name == "load_memory":
            answer.response = {"result": RECALLED}
    return kept
