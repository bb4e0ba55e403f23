"""Sessions: each operation has the same result as on the services of ADK."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions import BaseSessionService, Session
from google.genai import types

from plugins.adk.models import APP
from plugins.adk.sessions import START, WHO, changed, filled, get, said, words

pytestmark = pytest.mark.anyio


async def test_session_is_created_with_its_state(sessions: BaseSessionService) -> None:
    state = {"step": 1, "user:name": "Ana", "app:tone": "dry", "temp:draft": "x"}
    session = await sessions.create_session(**WHO, state=state, session_id="s")
    assert (session.id, session.app_name, session.user_id, session.events) == ("s", APP, "ana", [])
    assert session.state == {"step": 1, "user:name": "Ana", "app:tone": "dry"}
    assert session.last_update_time > START
    assert (await get(sessions)).model_dump() == session.model_dump()


async def test_session_gets_a_unique_id(sessions: BaseSessionService) -> None:
    made = [await sessions.create_session(**WHO) for _ in range(2)]
    assert len({session.id for session in made}) == 2
    assert (await get(sessions, made[0].id)).id == made[0].id


async def test_existing_id_is_refused(sessions: BaseSessionService) -> None:
    await sessions.create_session(**WHO, session_id="s")
    with pytest.raises(AlreadyExistsError, match="Session with id s already exists"):
        await sessions.create_session(**WHO, session_id="s", state={"user:name": "Eve"})
    assert (await get(sessions)).state == {}


async def test_one_of_two_concurrent_creations_is_refused(sessions: BaseSessionService) -> None:
    made = await asyncio.gather(
        *(sessions.create_session(**WHO, session_id="s", state={"step": 1}) for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in made if not isinstance(each, Session)) == ["AlreadyExistsError"]


async def test_unknown_session_is_none(sessions: BaseSessionService) -> None:
    await sessions.create_session(**WHO, session_id="s")
    assert await sessions.get_session(app_name=APP, user_id="bob", session_id="s") is None
    assert await sessions.get_session(app_name="other", user_id="ana", session_id="s") is None
    assert await sessions.get_session(**WHO, session_id="t") is None


async def test_events_are_stored_unchanged(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    call = types.Part(function_call=types.FunctionCall(id="c", name="weather", args={"city": None}))
    result = types.Part(function_response=types.FunctionResponse(id="c", name="weather", response={"sky": "blue"}))
    image = types.Part(inline_data=types.Blob(data=b"\x00\xff", mime_type="image/png"))
    for parts in ([types.Part(text="Weather?"), image], [call], [result], [types.Part(text="Blue")]):
        content = types.Content(role="model", parts=parts)
        await sessions.append_event(session, Event(author=APP, invocation_id="i", content=content))
    assert [event.model_dump() for event in (await get(sessions)).events] == [e.model_dump() for e in session.events]
    assert len(session.events) == 4


async def test_state_follows_the_events(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s", state={"step": 1, "kept": True})
    delta = {"step": 2, "user:name": "Ana", "app:tone": "dry", "temp:draft": "x", "none": None, "deep": {"a": [1]}}
    event = await sessions.append_event(session, changed(delta))
    stored = {key: value for key, value in delta.items() if key != "temp:draft"} | {"kept": True}
    assert session.state == {**stored, "temp:draft": "x"}
    assert "temp:draft" not in event.actions.state_delta
    assert (await get(sessions)).state == stored
    assert "temp:draft" not in (await get(sessions)).events[0].actions.state_delta


async def test_only_changes_of_events_are_stored(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s", state={"step": 1})
    session.state["step"] = 7
    await sessions.append_event(session, changed({"other": 1}))
    assert (await get(sessions)).state == {"step": 1, "other": 1}


async def test_user_and_app_state_is_shared_within_its_scope(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, changed({"user:name": "Ana", "app:tone": "dry", "step": 1}))
    assert (await sessions.create_session(**WHO)).state == {"user:name": "Ana", "app:tone": "dry"}
    assert (await sessions.create_session(app_name=APP, user_id="bob")).state == {"app:tone": "dry"}
    assert (await sessions.create_session(app_name="other", user_id="ana")).state == {}
    assert await sessions.get_user_state(**WHO) == {"name": "Ana"}
    assert await sessions.get_user_state(app_name=APP, user_id="bob") == {}


async def test_partial_events_are_not_stored(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    partial = said("Hal", changes={"step": 1})
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
async def test_newest_events_are_loaded(sessions: BaseSessionService, config: dict[str, Any], expected: range) -> None:
    await filled(sessions, 6)
    window = await get(sessions, **config)
    assert words(window) == [f"Word {number}" for number in expected]
    await sessions.append_event(window, said("Next", 6, changes={"step": 1}))
    assert words(await get(sessions)) == [*(f"Word {number}" for number in range(6)), "Next"]


async def test_sessions_are_listed_oldest_first(sessions: BaseSessionService) -> None:
    for name in ("a", "b", "c"):
        await sessions.create_session(**WHO, session_id=name, state={"name": name, "user:name": "Ana"})
    await sessions.create_session(app_name=APP, user_id="bob", session_id="d")
    await sessions.create_session(app_name="other", user_id="ana", session_id="e")
    await sessions.append_event(await get(sessions, "a"), changed({"step": 1}))
    listed = (await sessions.list_sessions(**WHO)).sessions
    assert [session.id for session in listed] == ["b", "c", "a"]
    assert [session.events for session in listed] == [[], [], []]
    assert listed[2].state == {"name": "a", "step": 1, "user:name": "Ana"}
    assert (await sessions.list_sessions(app_name=APP, user_id="eve")).sessions == []


async def test_deleted_session_is_gone(sessions: BaseSessionService) -> None:
    session = await filled(sessions, 2)
    await sessions.append_event(session, changed({"step": 1, "user:name": "Ana"}))
    await sessions.delete_session(**WHO, session_id="s")
    assert await sessions.get_session(**WHO, session_id="s") is None
    assert (await sessions.list_sessions(**WHO)).sessions == []
    with pytest.raises(SessionNotFoundError, match="Session s not found"):
        await sessions.append_event(session, said("Late"))
    assert await sessions.get_session(**WHO, session_id="s") is None
    await sessions.delete_session(**WHO, session_id="s")
    again = await sessions.create_session(**WHO, session_id="s")
    assert (again.events, again.state) == ([], {"user:name": "Ana"})


async def test_event_of_an_unknown_session_is_refused(sessions: BaseSessionService) -> None:
    with pytest.raises(SessionNotFoundError, match="Session s not found"):
        await sessions.append_event(Session(id="s", **WHO), said("Hello"))


async def test_parallel_branches_append_to_one_session(sessions: BaseSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    branches = [said(f"Branch {number}", number, changes={f"b{number}": number}) for number in range(8)]
    await asyncio.gather(*(sessions.append_event(session, event) for event in branches))
    stored = await get(sessions)
    assert sorted(words(stored)) == sorted(words(session)) == [f"Branch {number}" for number in range(8)]
    assert stored.state == session.state == {f"b{number}": number for number in range(8)}


async def test_session_loaded_twice_has_each_event_once(sessions: BaseSessionService) -> None:
    """Users reported that every event was loaded twice."""
    await filled(sessions, 3)
    assert words(await get(sessions)) == words(await get(sessions)) == ["Word 0", "Word 1", "Word 2"]
    await sessions.append_event(await get(sessions), said("Word 3", 3))
    assert words(await get(sessions)) == ["Word 0", "Word 1", "Word 2", "Word 3"]


async def test_session_is_never_stale_for_its_only_writer(sessions: BaseSessionService) -> None:
    """Users reported false errors about stale sessions.

    Events of the same microsecond, a clock that steps back, and alternating fresh copies are all accepted.
    """
    session = await sessions.create_session(**WHO, session_id="s")
    for number, second in enumerate([0, 0, 0, 5, 1]):
        await sessions.append_event(session, said(f"Word {number}", second))
    for number in (5, 6):
        await sessions.append_event(await get(sessions), said(f"Word {number}", 9))
    assert sorted(words(await get(sessions))) == [f"Word {number}" for number in range(7)]


async def test_times_are_exact_in_any_time_zone(sessions: BaseSessionService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users reported crashes and shifted times from naive timestamps."""
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


async def test_similar_names_of_apps_and_users_are_separate(sessions: BaseSessionService) -> None:
    """Users reported that a memory service answered with rows of other users."""
    names = [("x", "a"), ("x", "a.b"), ("x.a", "b"), ("x", "b")]
    for app, user in names:
        state = {"own": f"{app} {user}", "user:own": f"{app} {user}"}
        await sessions.create_session(app_name=app, user_id=user, session_id="s", state=state)
    for app, user in names:
        found = await sessions.get_session(app_name=app, user_id=user, session_id="s")
        assert found is not None
        assert found.state == {"own": f"{app} {user}", "user:own": f"{app} {user}"}
        assert len((await sessions.list_sessions(app_name=app, user_id=user)).sessions) == 1


async def test_copied_session_can_be_continued(sessions: BaseSessionService) -> None:
    session = await filled(sessions, 2)
    copied = Session.model_validate_json(session.model_dump_json())
    await sessions.append_event(copied, said("Word 2", 2))
    await sessions.append_event(copied, said("Word 3", 3, changes={"step": 1}))
    assert words(copied) == words(await get(sessions)) == [f"Word {number}" for number in range(4)]
