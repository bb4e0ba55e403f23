"""Sessions: each operation has the same result as on ADK's own services. What differs is in `DIFFERENCES`, below."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from threefold import InvalidRequest
from threefold_adk import ThreefoldSessionService

pytestmark = pytest.mark.anyio

WHO: dict[str, Any] = {"app_name": "guide", "user_id": "ana"}
START = 1_750_000_000.0


def said(text: str, number: int = 0, **delta: Any) -> Event:
    """What the user said `number` seconds later."""
    content = types.Content(role="user", parts=[types.Part(text=text)])
    actions = EventActions(state_delta=delta)
    return Event(author="user", invocation_id="i", content=content, actions=actions, timestamp=START + number)


def changed(**delta: Any) -> Event:
    """An event that says nothing."""
    return Event(author="guide", invocation_id="i", actions=EventActions(state_delta=delta))


async def get(sessions: BaseSessionService, session_id: str = "s", **config: Any) -> Session:
    found = await sessions.get_session(**WHO, session_id=session_id, config=GetSessionConfig(**config))
    assert found is not None
    return found


async def filled(sessions: BaseSessionService, count: int, session_id: str = "s") -> Session:
    session = await sessions.create_session(**WHO, session_id=session_id)
    for number in range(count):
        await sessions.append_event(session, said(f"Word {number}", number))
    return session


def words(session: Session) -> list[str]:
    return [str(part.text) for event in session.events for part in (event.content and event.content.parts) or []]


async def test_a_session_is_created_with_its_state(sessions: BaseSessionService) -> None:
    state = {"step": 1, "user:name": "Ana", "app:tone": "dry", "temp:draft": "x"}
    session = await sessions.create_session(**WHO, state=state, session_id="s")
    assert (session.id, session.app_name, session.user_id, session.events) == ("s", "guide", "ana", [])
    assert session.state == {"step": 1, "user:name": "Ana", "app:tone": "dry"}
    assert session.last_update_time > START
    assert (await get(sessions)).model_dump() == session.model_dump()


async def test_a_session_gets_an_id(sessions: BaseSessionService) -> None:
    made = [await sessions.create_session(**WHO) for _ in range(2)]
    assert len({session.id for session in made}) == 2
    assert (await get(sessions, made[0].id)).id == made[0].id


async def test_an_id_is_given_once(sessions: BaseSessionService) -> None:
    await sessions.create_session(**WHO, session_id="s")
    with pytest.raises(AlreadyExistsError, match="Session with id s already exists"):
        await sessions.create_session(**WHO, session_id="s", state={"user:name": "Eve"})
    assert (await get(sessions)).state == {}


async def test_an_unknown_session_is_none(sessions: BaseSessionService) -> None:
    await sessions.create_session(**WHO, session_id="s")
    assert await sessions.get_session(app_name="guide", user_id="bob", session_id="s") is None
    assert await sessions.get_session(app_name="other", user_id="ana", session_id="s") is None
    assert await sessions.get_session(**WHO, session_id="t") is None


async def test_events_are_kept_as_they_were(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    call = types.Part(function_call=types.FunctionCall(id="c", name="weather", args={"city": None}))
    result = types.Part(function_response=types.FunctionResponse(id="c", name="weather", response={"sky": "blue"}))
    image = types.Part(inline_data=types.Blob(data=b"\x00\xff", mime_type="image/png"))
    for parts in ([types.Part(text="Weather?"), image], [call], [result], [types.Part(text="Blue")]):
        content = types.Content(role="model", parts=parts)
        await sessions.append_event(session, Event(author="guide", invocation_id="i", content=content))
    assert [event.model_dump() for event in (await get(sessions)).events] == [e.model_dump() for e in session.events]
    assert len(session.events) == 4


async def test_state_follows_the_events(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s", state={"step": 1, "kept": True})
    delta = {"step": 2, "user:name": "Ana", "app:tone": "dry", "temp:draft": "x", "none": None, "deep": {"a": [1]}}
    event = await sessions.append_event(session, changed(**delta))
    stored = {key: value for key, value in delta.items() if key != "temp:draft"} | {"kept": True}
    assert session.state == {**stored, "temp:draft": "x"}
    assert "temp:draft" not in event.actions.state_delta
    assert (await get(sessions)).state == stored
    assert "temp:draft" not in (await get(sessions)).events[0].actions.state_delta


async def test_only_what_an_event_changes_is_stored(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s", state={"step": 1})
    session.state["step"] = 7
    await sessions.append_event(session, changed(other=1))
    assert (await get(sessions)).state == {"step": 1, "other": 1}


async def test_state_of_user_and_app_reaches_as_far_as_they_do(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, changed(**{"user:name": "Ana", "app:tone": "dry", "step": 1}))
    assert (await sessions.create_session(**WHO)).state == {"user:name": "Ana", "app:tone": "dry"}
    assert (await sessions.create_session(app_name="guide", user_id="bob")).state == {"app:tone": "dry"}
    assert (await sessions.create_session(app_name="other", user_id="ana")).state == {}
    assert await sessions.get_user_state(**WHO) == {"name": "Ana"}
    assert await sessions.get_user_state(app_name="guide", user_id="bob") == {}


async def test_partial_events_are_not_kept(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    partial = said("Hal", step=1)
    partial.partial = True
    assert await sessions.append_event(session, partial) is partial
    assert (session.events, session.state) == ([], {})
    assert (await get(sessions)).events == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, range(6)),
        ({"num_recent_events": 2}, range(4, 6)),
        ({"num_recent_events": 9}, range(6)),
        ({"num_recent_events": 0}, range(0)),
        ({"after_timestamp": START + 3}, range(3, 6)),
        ({"after_timestamp": START + 9}, range(0)),
        ({"after_timestamp": START + 1, "num_recent_events": 2}, range(4, 6)),
        ({"after_timestamp": START + 5, "num_recent_events": 2}, range(5, 6)),
    ],
)
async def test_the_newest_events(sessions: BaseSessionService, config: dict[str, Any], expected: range) -> None:
    await filled(sessions, 6)
    window = await get(sessions, **config)
    assert words(window) == [f"Word {number}" for number in expected]
    await sessions.append_event(window, said("Next", 6, step=1))
    assert words(await get(sessions)) == [*(f"Word {number}" for number in range(6)), "Next"]


async def test_sessions_are_listed_the_oldest_first(sessions: BaseSessionService) -> None:
    for name in ("a", "b", "c"):
        await sessions.create_session(**WHO, session_id=name, state={"name": name, "user:name": "Ana"})
    await sessions.create_session(app_name="guide", user_id="bob", session_id="d")
    await sessions.create_session(app_name="other", user_id="ana", session_id="e")
    await sessions.append_event(await get(sessions, "a"), changed(step=1))
    listed = (await sessions.list_sessions(**WHO)).sessions
    assert [session.id for session in listed] == ["b", "c", "a"]
    assert [session.events for session in listed] == [[], [], []]
    assert listed[2].state == {"name": "a", "step": 1, "user:name": "Ana"}
    assert (await sessions.list_sessions(app_name="guide", user_id="eve")).sessions == []


async def test_a_deleted_session_is_gone(sessions: BaseSessionService) -> None:
    session = await filled(sessions, 2)
    await sessions.append_event(session, changed(step=1, **{"user:name": "Ana"}))
    await sessions.delete_session(**WHO, session_id="s")
    assert await sessions.get_session(**WHO, session_id="s") is None
    assert (await sessions.list_sessions(**WHO)).sessions == []
    with pytest.raises(SessionNotFoundError, match="Session s not found"):
        await sessions.append_event(session, said("Late"))
    assert await sessions.get_session(**WHO, session_id="s") is None
    await sessions.delete_session(**WHO, session_id="s")
    again = await sessions.create_session(**WHO, session_id="s")
    assert (again.events, again.state) == ([], {"user:name": "Ana"})


async def test_an_event_of_no_session_is_refused(sessions: BaseSessionService) -> None:
    with pytest.raises(SessionNotFoundError, match="Session s not found"):
        await sessions.append_event(Session(id="s", **WHO), said("Hello"))


async def test_branches_that_share_a_session_append_side_by_side(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    branches = [said(f"Branch {number}", number, **cast(Any, {f"b{number}": number})) for number in range(8)]
    await asyncio.gather(*(sessions.append_event(session, event) for event in branches))
    stored = await get(sessions)
    assert sorted(words(stored)) == sorted(words(session)) == [f"Branch {number}" for number in range(8)]
    assert stored.state == session.state == {f"b{number}": number for number in range(8)}


async def test_a_session_is_loaded_as_often_as_one_likes(sessions: BaseSessionService) -> None:
    """Field case 308."""
    await filled(sessions, 3)
    assert words(await get(sessions)) == words(await get(sessions)) == ["Word 0", "Word 1", "Word 2"]
    await sessions.append_event(await get(sessions), said("Word 3", 3))
    assert words(await get(sessions)) == ["Word 0", "Word 1", "Word 2", "Word 3"]


async def test_a_session_is_never_stale_for_its_only_writer(sessions: BaseSessionService) -> None:
    """Field case 501: not within one microsecond, nor where the clock steps back, nor where fresh copies alternate."""
    session = await sessions.create_session(**WHO, session_id="s")
    for number, second in enumerate([0, 0, 0, 5, 1]):
        await sessions.append_event(session, said(f"Word {number}", second))
    for number in (5, 6):
        await sessions.append_event(await get(sessions), said(f"Word {number}", 9))
    assert sorted(words(await get(sessions))) == [f"Word {number}" for number in range(7)]


async def test_times_are_exact_in_any_zone(sessions: BaseSessionService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case 807."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    session = await sessions.create_session(**WHO, session_id="s")
    event = said("Hello")
    event.timestamp = 1_750_000_000.123457
    await sessions.append_event(session, event)
    monkeypatch.undo()
    time.tzset()
    stored = await get(sessions)
    assert stored.events[0].timestamp == event.timestamp
    assert await get(sessions, after_timestamp=event.timestamp) == stored


async def test_look_alikes_never_meet(sessions: BaseSessionService) -> None:
    """Field case 116."""
    names = [("x", "a"), ("x", "a.b"), ("x.a", "b"), ("x", "b")]
    for app, user in names:
        state = {"own": f"{app} {user}", "user:own": f"{app} {user}"}
        await sessions.create_session(app_name=app, user_id=user, session_id="s", state=state)
    for app, user in names:
        found = await sessions.get_session(app_name=app, user_id=user, session_id="s")
        assert found is not None
        assert found.state == {"own": f"{app} {user}", "user:own": f"{app} {user}"}
        assert len((await sessions.list_sessions(app_name=app, user_id=user)).sessions) == 1


async def test_a_session_that_was_made_elsewhere(sessions: BaseSessionService) -> None:
    session = await filled(sessions, 2)
    copied = Session.model_validate_json(session.model_dump_json())
    await sessions.append_event(copied, said("Word 2", 2))
    await sessions.append_event(copied, said("Word 3", 3, step=1))
    assert words(copied) == words(await get(sessions)) == [f"Word {number}" for number in range(4)]


async def a_stale_append(sessions: BaseSessionService) -> list[str]:
    await filled(sessions, 1)
    one, two = await get(sessions), copy.deepcopy(await get(sessions))
    await sessions.append_event(one, said("From one", 1))
    try:
        await sessions.append_event(two, said("From two", 2, step=1))
    except StaleSessionError as error:
        assert "moved on" in str(error) or "modified in storage" in str(error)
        assert words(two) == ["Word 0"]
        await sessions.append_event(await get(sessions), said("From two, again", 2))
    return words(await get(sessions))


async def an_append_to_a_copy_that_has_seen_nothing(sessions: BaseSessionService) -> str | None:
    await filled(sessions, 1)
    try:
        await sessions.append_event(Session(id="s", **WHO), said("From nowhere", 2))
    except StaleSessionError as error:
        return type(error).__name__
    return None


async def an_event_twice(sessions: BaseSessionService) -> list[str] | str:
    session = await filled(sessions, 1)
    try:
        await sessions.append_event(session, session.events[0].model_copy(deep=True))
    except Exception as error:  # noqa: BLE001 - one of SQLAlchemy
        return type(error).__name__
    return words(await get(sessions))


async def a_clock_that_steps_back(sessions: BaseSessionService) -> list[str]:
    session = await sessions.create_session(**WHO, session_id="s")
    for number, second in enumerate([5, 1]):
        await sessions.append_event(session, said(f"Word {number}", second))
    return words(await get(sessions))


async def blanks_around_an_id(sessions: BaseSessionService) -> str:
    return (await sessions.create_session(**WHO, session_id=" s ")).id


async def values_that_are_no_json(sessions: BaseSessionService) -> Any:
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, changed(both=(1, 2)))
    return (await get(sessions)).state["both"]


async def sessions_of_all_users(sessions: BaseSessionService) -> list[str] | str:
    await sessions.create_session(**WHO, session_id="s")
    try:
        return [session.id for session in (await sessions.list_sessions(app_name="guide")).sessions]
    except InvalidRequest as error:
        return str(error).partition(":")[0]


async def the_time_of_the_last_update(sessions: BaseSessionService) -> str:
    await filled(sessions, 1)
    return "of the event" if (await get(sessions)).last_update_time == START else "of its append"


DIFFERENCES: dict[Callable[[BaseSessionService], Awaitable[Any]], tuple[Any, Any, Any]] = {
    # operation: result on ThreefoldSessionService, InMemorySessionService, DatabaseSessionService
    a_stale_append: (
        ["Word 0", "From one", "From two, again"],
        ["Word 0", "From one", "From two"],
        ["Word 0", "From one", "From two, again"],
    ),
    an_append_to_a_copy_that_has_seen_nothing: ("StaleSessionError", None, "StaleSessionError"),
    an_event_twice: (["Word 0"], ["Word 0"], "IntegrityError"),
    a_clock_that_steps_back: (["Word 0", "Word 1"], ["Word 0", "Word 1"], ["Word 1", "Word 0"]),
    blanks_around_an_id: (" s ", "s", " s "),
    values_that_are_no_json: ([1, 2], (1, 2), [1, 2]),
    sessions_of_all_users: ("user_id", ["s"], ["s"]),
    the_time_of_the_last_update: ("of its append", "of the event", "of the event"),
}


@pytest.mark.parametrize("operation", DIFFERENCES, ids=lambda operation: operation.__name__)
async def test_what_differs(
    sessions: BaseSessionService, operation: Callable[[BaseSessionService], Awaitable[Any]]
) -> None:
    of_ours, in_memory, in_database = DIFFERENCES[operation]
    theirs = in_memory if isinstance(sessions, InMemorySessionService) else in_database
    assert await operation(sessions) == (of_ours if isinstance(sessions, ThreefoldSessionService) else theirs)
