"""Events of ADK as turns: words for memory, and the framework's own JSON for exact replay. Pure.

Whoever stores an event stores this turn, under the event's id: what the session service, the memory service and the
plugin write of one event is one turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from google.adk.events.event import Event
from google.genai.types import Blob, Content, FileData, FunctionCall, FunctionResponse, Part
from pydantic_core import PydanticSerializationError

from threefold import TurnIn
from threefold.calls import id_or_hash, id_or_none, turn_in
from threefold.contract import MAX_CONTENT_CHARS, MAX_PAYLOAD_CHARS
from threefold.policy import middle_cut
from threefold.session import without_recalled
from threefold.tools import TOOLS

RECALLED = "(recalled memory, not kept in the log)"


def turn_of(event: Event) -> TurnIn:
    """The turn of an event. It has no content where nobody says anything, and no payload where there is no JSON of it,
    or too much."""
    return without_recalled(
        turn_in(
            {
                **_voice(event),
                "id": id_or_hash(event.id),
                "content": middle_cut(words_of(event.content), MAX_CONTENT_CHARS),
                "payload": _payload(event),
                "created_at": datetime.fromtimestamp(event.timestamp, UTC),
            }
        )
    )


def spoken_turns(events: Iterable[Event]) -> list[TurnIn]:
    """The turns of those events in which something is said: what there is to remember."""
    return [turn for turn in (turn_of(event) for event in events if not event.partial) if turn.content]


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
    if event.author == "user":
        return {"role": "user"}
    return {"role": "assistant", "name": id_or_none(event.author)}


def _tool(used: Sequence[FunctionCall | FunctionResponse]) -> dict[str, Any]:
    return {"name": id_or_none(used[0].name), "group": id_or_none(used[0].id)}


def _said(part: Part) -> str:
    match part:
        case Part(thought=True):
            return ""
        case Part(text=str(text)):
            return text
        case Part(function_call=FunctionCall(name=name, args=arguments)):
            return "" if _is_silent(name) else f"{name}({_json(arguments or {})})"
        case Part(function_response=FunctionResponse(name=name, response=response)):
            return "" if _is_silent(name) else _result(response or {})
        case Part(inline_data=Blob(mime_type=kind, data=data)):
            return f"[{kind}, {len(data or b'')} bytes]"
        case Part(file_data=FileData(mime_type=kind, file_uri=uri)):
            return f"[{kind} {uri}]"
        case _:
            return ""


def _is_silent(tool: str | None) -> bool:
    """What our tools look up is known, and what ADK asks for on its own account may be a credential."""
    return tool in TOOLS or tool == "transfer_to_agent" or str(tool).startswith("adk_")


def _result(response: dict[str, Any]) -> str:
    """What a tool answered; ADK puts what is no dict below `result`."""
    result = response["result"] if response.keys() == {"result"} else response
    return result if isinstance(result, str) else _json(result)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _payload(event: Event) -> str | None:
    try:
        payload = _without_memories(event).model_dump_json(exclude_none=True)
    except PydanticSerializationError:  # no JSON, or not even Unicode
        return None
    return payload if len(payload) <= MAX_PAYLOAD_CHARS else None


def _without_memories(event: Event) -> Event:
    """ADK's own `load_memory` answers memories without a fence: a copy of them would outlive their erasure."""
    if not any(answer.name == "load_memory" for answer in event.get_function_responses()):
        return event
    kept = event.model_copy(deep=True)
    for answer in kept.get_function_responses():
        if answer.name == "load_memory":
            answer.response = {"result": RECALLED}
    return kept
