"""Events of ADK as turns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.openapi.models import APIKey
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.genai import types

from threefold import TurnIn
from threefold.contract import MAX_PAYLOAD_CHARS, Turn
from threefold_adk.events import RECALLED, event_of, spoken_turns, turn_of


def event(*parts: types.Part, author: str = "helper", **fields: Any) -> Event:
    return Event(author=author, content=types.Content(parts=list(parts)), **fields)


def called(name: str, **arguments: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=f"{name}-1", name=name, args=arguments))


def answered(name: str, **response: Any) -> types.Part:
    return types.Part(function_response=types.FunctionResponse(id=f"{name}-1", name=name, response=response))


def said(text: str, **fields: Any) -> types.Part:
    return types.Part(text=text, **fields)


def stored(turn: TurnIn) -> Turn:
    return Turn(seq=1, tokens=1, **turn.model_dump())


def test_event_of_a_user() -> None:
    turn = turn_of(event(said("Hello"), said("there."), author="user", id="e1", timestamp=0.5))
    assert (turn.id, turn.role, turn.kind, turn.name, turn.content) == ("e1", "user", "message", None, "Hello\nthere.")
    assert turn.created_at == datetime(1970, 1, 1, 0, 0, 0, 500_000, UTC)


def test_event_of_an_agent_has_its_name() -> None:
    turn = turn_of(event(said("Fine."), author="billing"))
    assert (turn.role, turn.name, turn.content) == ("assistant", "billing", "Fine.")


def test_call_and_result_are_one_group() -> None:
    call = turn_of(event(said("I look it up."), called("weather", town="Oslo")))
    assert (call.role, call.kind, call.name) == ("assistant", "tool_call", "weather")
    assert call.content == 'I look it up.\nweather({"town": "Oslo"})'
    result = turn_of(event(answered("weather", result="Sunny."), author="helper"))
    assert (result.role, result.kind, result.name, result.content) == ("tool", "tool_result", "weather", "Sunny.")
    assert result.group == call.group is not None


def test_parallel_calls_and_results_are_one_group() -> None:
    call = turn_of(event(called("weather"), called("clock")))
    result = turn_of(event(answered("weather", result="Sunny."), answered("clock", hour=9)))
    assert result.group == call.group
    assert result.content == 'Sunny.\n{"hour": 9}'


def test_thoughts_are_not_recorded() -> None:
    assert turn_of(event(said("Hmm.", thought=True), said("Yes."))).content == "Yes."


def test_transcription_is_text() -> None:
    heard = Event(author="user", input_transcription=types.Transcription(text="Hello."))
    assert (turn_of(heard).role, turn_of(heard).content) == ("user", "Hello.")


def test_code_and_its_output_are_text() -> None:
    code = types.Part(executable_code=types.ExecutableCode(code="print(1)", language=types.Language.PYTHON))
    output = types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="1"))
    assert turn_of(event(code, output)).content == "print(1)\n1"


def test_change_of_state_is_a_turn_without_text() -> None:
    turn = turn_of(Event(author="user"))
    assert (turn.role, turn.content) == ("system", "")


def test_files_are_recorded_as_marks() -> None:
    picture = types.Part(inline_data=types.Blob(mime_type="image/png", data=b"1234"))
    page = types.Part(file_data=types.FileData(mime_type="text/html", file_uri="https://example.org"))
    assert turn_of(event(picture, page)).content == "[image/png, 4 bytes]\n[text/html https://example.org]"


@pytest.mark.parametrize("name", ["search_memory", "load_memory", "transfer_to_agent", "adk_request_credential"])
def test_memory_tools_and_framework_requests_have_no_text(name: str) -> None:
    assert turn_of(event(called(name, query="secret"))).content == ""
    assert turn_of(event(answered(name, result="secret"))).content == ""


def test_events_are_restored_unchanged() -> None:
    rich = event(
        said("Look.", thought_signature=b"\xff\x00"),
        types.Part(inline_data=types.Blob(mime_type="image/png", data=bytes(range(256)))),
        called("weather", town="Oslo"),
        invocation_id="i1",
        branch="a.b",
        long_running_tool_ids={"weather-1"},
    )
    rich.actions.state_delta["user:town"] = "Oslo"
    assert event_of(stored(turn_of(rich))) == rich


def test_foreign_payload_is_no_event() -> None:
    turn = stored(turn_of(event(said("Hello."))))
    for payload in (None, "no JSON", "[]", '{"id": "another"}', "[" * 100_000):
        assert event_of(turn.model_copy(update={"payload": payload})) is None


def test_same_event_gives_the_same_turn() -> None:
    one = event(said("Hello."), called("weather", town="Oslo"))
    assert turn_of(one) == turn_of(Event.model_validate_json(one.model_dump_json()))


def test_result_of_load_memory_is_not_stored() -> None:
    found = event(answered("load_memory", result={"memories": [{"content": "the gate code is 4711"}]}))
    turn = turn_of(found)
    assert "4711" not in f"{turn.content}{turn.payload}"
    assert RECALLED in (turn.payload or "")
    assert found.get_function_responses()[0].response != {
        "result": RECALLED
    }  # the event that the model sees is not changed


def test_text_that_no_database_can_store_is_escaped_in_the_payload() -> None:
    broken = event(said("a\ud800b\x00"))
    turn = turn_of(broken)
    assert turn.content == "a\ufffdb\ufffd"
    assert event_of(stored(turn)) == broken


def test_oversized_payload_is_left_out() -> None:
    picture = types.Part(inline_data=types.Blob(mime_type="image/png", data=bytes(MAX_PAYLOAD_CHARS)))
    turn = turn_of(event(picture))
    assert (turn.content, turn.payload) == ("[image/png, 4000000 bytes]", None)


class Odd:
    """An object that JSON cannot represent."""

    def __str__(self) -> str:
        return "odd"


def cycle() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["again"] = found
    return found


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"deeper": found}
    return found


def test_tool_result_that_is_not_json_is_stored_as_text() -> None:
    turn = turn_of(event(answered("weather", result=Odd())))
    assert turn.content == '"odd"'
    kept = event_of(stored(turn))
    assert kept is not None
    assert kept.get_function_responses()[0].response == {"result": "odd"}


@pytest.mark.parametrize(
    ("broken", "is_kept"),
    [({("a", "b"): 1}, True), (nested(10_000), False), (cycle(), False)],
    ids=["keys", "levels", "cycle"],
)
def test_invalid_json_does_not_lose_the_text(broken: dict[Any, Any], is_kept: bool) -> None:
    turn = turn_of(event(said("Look."), answered("weather", result=broken)))
    assert turn.content == "Look.\n[dict]"
    assert (turn.payload is not None) is is_kept


@pytest.mark.parametrize("timestamp", [1_750_000_000_000.0, 1e300, float("nan"), float("inf")])
def test_invalid_timestamp_does_not_lose_the_event(timestamp: float) -> None:
    turn = turn_of(event(said("Hello."), timestamp=timestamp))
    assert (turn.content, turn.created_at) == ("Hello.", None)


def test_refused_id_is_replaced_by_a_stable_one() -> None:
    first, second = (turn_of(event(said("Hello."), id="*")).id for _ in range(2))
    assert first == second != "*"


def test_only_complete_texts_are_spoken_turns() -> None:
    events = [event(said("Hel"), partial=True), event(said("Hello.")), event(), Event(author="user")]
    assert [turn.content for turn in spoken_turns(events)] == ["Hello."]


def test_credentials_are_not_recorded() -> None:
    keys = event(said("Here."), answered("adk_request_credential", token="secret"), author="user")
    oauth = AuthCredential(auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(client_secret="secret"))
    waiting = event(answered("calendar", result="It needs a key."))
    scheme = APIKey.model_validate({"in": "header", "name": "key"})
    asked = AuthConfig(auth_scheme=scheme, raw_auth_credential=oauth, credential_key="calendar")
    waiting.actions.requested_auth_configs = {"calendar-1": asked}
    turns = spoken_turns([keys, waiting])
    assert [turn.content for turn in turns] == ["Here.", "It needs a key."]
    assert "secret" not in str(turns)
    assert "secret" in (turn_of(waiting).payload or "")  # the session keeps the complete event
