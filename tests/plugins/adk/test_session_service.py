"""What `ThreefoldSessionService` does beside ADK's own services: faults of the line, memory, erasure, foreign turns."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from plugins.adk.conftest import Line
from threefold import InvalidRequest, MemoryClient, TurnIn, Unreachable
from threefold.contract import MAX_PAGE
from threefold_adk import ThreefoldSessionService
from threefold_adk.events import turn_of
from threefold_server.local import LocalService

pytestmark = pytest.mark.anyio

WHO: dict[str, Any] = {"app_name": "support", "user_id": "ana"}


def said(text: str, author: str = "user", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    return Event(author=author, content=types.Content(role=role, parts=[types.Part(text=text)]), **fields)


def changed(delta: dict[str, Any]) -> Event:
    return Event(author="guide", actions=EventActions(state_delta=delta))


async def get(line: Line, **config: Any) -> Session:
    found = await line.sessions().get_session(**WHO, session_id="s", config=GetSessionConfig(**config))
    assert found is not None
    return found


def words(session: Session) -> list[str]:
    return [str(part.text) for event in session.events for part in (event.content and event.content.parts) or []]


async def test_an_event_costs_one_call(line: Line) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    line.asked.clear()
    for number in range(3):
        await sessions.append_event(session, said(f"Word {number}"))
        await sessions.append_event(session, changed({"step": number}))
    assert line.asked == ["POST /v1/write"] * 6
    line.asked.clear()
    await sessions.append_event(session, changed({"user:a": 1, "user:b": 2, "app:c": 3}))
    assert line.asked == ["POST /v1/write"] + ["POST /v1/items/batch"] * 2


async def test_what_is_said_in_a_session_is_memory(line: Line, memory: MemoryClient) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, said("My cat is called Tom"))
    await sessions.append_event(session, said("A fine name", author="guide"))
    await sessions.append_event(session, changed({"step": 1}))
    found = memory.recall("What is the cat called?", session_id="another")
    assert "My cat is called Tom" in found.block
    turns = memory.turns("s").turns
    assert [(turn.id, turn.role, turn.name) for turn in turns] == [
        (event.id, *voice)
        for event, voice in zip(session.events, [("user", None), ("assistant", "guide"), ("system", None)], strict=True)
    ]


async def test_the_memory_service_finds_the_events_there(line: Line, memory: MemoryClient) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, said("My cat is called Tom"))
    flushed = [turn_of(event) for event in (await get(line)).events]
    assert memory.write("s", flushed).duplicates == 1
    await sessions.append_event(session, said("And the dog Rex"))


async def test_a_lost_answer_doubles_nothing(line: Line) -> None:
    sessions = line.sessions()
    line.losing = [lambda: None]
    session = await sessions.create_session(**WHO, session_id="s", state={"step": 0})
    for delta in ({}, {"step": 1, "user:a": 1}):
        line.losing = [lambda: None]
        await sessions.append_event(session, said("Hello", actions=EventActions(state_delta=delta)))
    await sessions.append_event(session, said("Goodbye"))
    stored = await get(line)
    assert words(stored) == words(session) == ["Hello", "Hello", "Goodbye"]
    assert stored.state == {"step": 1, "user:a": 1}


async def test_an_event_is_appended_again_after_a_crash(line: Line) -> None:
    session = await line.sessions().create_session(**WHO, session_id="s")
    event = said("Hello", actions=EventActions(state_delta={"step": 1}))
    crashed = event.model_copy(deep=True)
    await line.sessions().append_event(session, crashed)
    for config in ({}, {"num_recent_events": 0}):
        again = await get(line, **config)
        await line.sessions().append_event(again, event)
        await line.sessions().append_event(again, event)
        assert words(again) == ["Hello"]
    stored = await get(line)
    await line.sessions().append_event(stored, said("Next"))
    assert words(await get(line)) == ["Hello", "Next"]
    assert (await get(line)).state == {"step": 1}


async def test_a_crash_before_the_state_of_the_user_is_made_good(line: Line, memory: MemoryClient) -> None:
    await line.sessions().create_session(**WHO, session_id="s")
    event = said("I am Ana", actions=EventActions(state_delta={"user:name": "Ana"}))
    memory.write("s", [turn_of(event)])
    await line.sessions().append_event(await get(line), event)
    assert (await get(line)).state == {"user:name": "Ana"}
    assert words(await get(line)) == ["I am Ana"]


async def test_behind_a_lost_answer_nobody_elses_event_is_overlooked(line: Line, memory: MemoryClient) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    line.losing = [lambda: memory.write("s", [turn_of(said("From another"))])]
    await sessions.append_event(session, said("Hello"))
    with pytest.raises(StaleSessionError, match="Session s has moved on since it was read"):
        await sessions.append_event(session, said("Goodbye"))
    assert words(await get(line)) == ["Hello", "From another"]


async def test_a_retry_after_a_refusal_goes_through(line: Line) -> None:
    await line.sessions().create_session(**WHO, session_id="s")
    stale = await get(line)
    await line.sessions().append_event(await get(line), said("First"))
    event = said("Second", actions=EventActions(state_delta={"temp:a": 1, "step": 2}))
    with pytest.raises(StaleSessionError):
        await line.sessions().append_event(stale, event)
    await line.sessions().append_event(await get(line), event)
    assert words(await get(line)) == ["First", "Second"]
    assert (await get(line)).state == {"step": 2}


async def test_an_outage_is_raised_and_overcome(line: Line) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    line.is_cut = True
    event = said("Hello")
    with pytest.raises(Unreachable):
        await sessions.append_event(session, event)
    with pytest.raises(Unreachable):
        await get(line)
    line.is_cut = False
    await sessions.append_event(session, event)
    assert words(await get(line)) == words(session) == ["Hello"]


async def test_two_sessions_change_different_keys_of_the_user_at_once(line: Line) -> None:
    sessions = line.sessions()
    one, two = [await sessions.create_session(**WHO) for _ in range(2)]
    await sessions.append_event(one, changed({"user:a": 1, "app:a": 1}))
    await sessions.append_event(two, changed({"user:b": 2, "app:b": 2}))
    assert await sessions.get_user_state(**WHO) == {"a": 1, "b": 2}
    assert (await sessions.create_session(**WHO)).state == {"user:a": 1, "user:b": 2, "app:a": 1, "app:b": 2}


async def test_state_that_cannot_be_kept_stores_nothing_of_its_event(line: Line) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    with pytest.raises(InvalidRequest, match="value: "):
        await sessions.append_event(session, changed({"step": 1, "user:a": float("nan")}))
    assert session.events == (await get(line)).events == []
    await sessions.append_event(session, changed({"step": object(), "user:a": object()}))
    assert {key: type(value) for key, value in (await get(line)).state.items()} == {"step": str, "user:a": str}


async def test_a_long_session_is_read_page_by_page(line: Line, memory: MemoryClient) -> None:
    session = await line.sessions().create_session(**WHO, session_id="s")
    memory.write("s", [turn_of(said(f"Word {number}")) for number in range(MAX_PAGE)])
    memory.write("s", [turn_of(said(f"Word {MAX_PAGE + number}")) for number in range(MAX_PAGE // 2)])
    everything = [f"Word {number}" for number in range(MAX_PAGE + MAX_PAGE // 2)]
    assert words(await get(line)) == everything
    assert words(await get(line, num_recent_events=MAX_PAGE + 1)) == everything[-MAX_PAGE - 1 :]
    line.asked.clear()
    await get(line, num_recent_events=3)
    assert line.asked.count("GET /v1/sessions/s/turns") == 1
    with pytest.raises(StaleSessionError):
        await line.sessions().append_event(session, said("Next"))


async def test_turns_of_others_and_erased_ones_are_no_events(line: Line, memory: MemoryClient) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    for text in ("One", "Two", "Three"):
        await sessions.append_event(session, said(text))
    memory.write("s", [TurnIn(role="user", content="By hand")])
    memory.delete_fact(session.events[1].id, sources=True)
    assert words(await get(line)) == ["One", "Three"]
    assert words(await get(line, num_recent_events=2)) == ["One", "Three"]
    await sessions.append_event(await get(line), said("Four"))
    assert words(await get(line)) == ["One", "Three", "Four"]


async def test_what_memory_heard_before_is_a_session(line: Line, memory: MemoryClient) -> None:
    event = said("My cat is called Tom")
    memory.write("s", [turn_of(event)])
    session = await get(line)
    assert [each.id for each in session.events] == [event.id]
    assert (await line.sessions().list_sessions(**WHO)).sessions == []
    await line.sessions().append_event(session, said("Next", actions=EventActions(state_delta={"step": 1})))
    assert (await get(line)).state == {"step": 1}


async def test_a_deleted_session_is_erased(line: Line, memory: MemoryClient) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    event = said("My cat is called Tom")
    await sessions.append_event(session, event)
    await sessions.delete_session(**WHO, session_id="s")
    assert memory.recall("What is the cat called?", session_id="another").block == ""
    with pytest.raises(SessionNotFoundError):
        await sessions.append_event(session, said("Late"))
    again = await sessions.create_session(**WHO, session_id="s")
    with pytest.raises(InvalidRequest, match="was deleted from session 's': give it a new id"):
        await sessions.append_event(again, event)
    assert (await get(line)).events == []


async def test_the_session_of_another_framework_is_refused(line: Line, memory: MemoryClient) -> None:
    for state in ("[]", "{", '{"format": "other/1"}', '{"format": "adk-session/1"}'):
        memory.write("s", [], state=state)
        with pytest.raises(InvalidRequest, match="session 's' holds the state of something else"):
            await get(line)
        assert (await line.sessions().list_sessions(**WHO)).sessions == []


async def test_sessions_are_listed_for_one_user(line: Line) -> None:
    with pytest.raises(InvalidRequest, match="user_id: needed"):
        await line.sessions().list_sessions(app_name="support")


async def test_an_event_that_is_too_large_is_refused_by_name(line: Line) -> None:
    sessions = line.sessions()
    session = await sessions.create_session(**WHO, session_id="s")
    image = types.Part(inline_data=types.Blob(data=bytes(3_000_001), mime_type="image/png"))
    with pytest.raises(InvalidRequest, match=r"event 'large': .*save its files as artifacts"):
        await sessions.append_event(session, Event(author="user", id="large", content=types.Content(parts=[image])))
    assert (await get(line)).events == []


async def test_visibility_is_that_of_the_service(service: LocalService, memory: MemoryClient) -> None:
    sessions = ThreefoldSessionService(service.async_client(timeout=60.0), visibility="session")
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, said("My cat is called Tom"))
    assert memory.recall("What is the cat called?", session_id="another").block == ""
