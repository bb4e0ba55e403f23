"""`ThreefoldSessionService` beyond the services of ADK: network faults, memory, erasure, and foreign turns."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.genai import types

from fixtures.line import Line
from plugins.adk.models import APP
from plugins.adk.sessions import START, WHO, changed, get, open_sessions, said, words
from threefold import AsyncMemoryClient, InvalidRequest, MemoryClient, TurnIn, Unreachable
from threefold.contract import MAX_PAGE, TurnPage
from threefold_adk import ThreefoldSessionService
from threefold_adk.events import turn_of
from threefold_server.local import LocalService

pytestmark = pytest.mark.anyio


@pytest.fixture
def ours(line: Line) -> ThreefoldSessionService:
    """Sessions on each database in turn."""
    return open_sessions(line)


async def test_event_is_one_call(line: Line, ours: ThreefoldSessionService) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    line.asked.clear()
    for number in range(3):
        await ours.append_event(session, said(f"Word {number}"))
        await ours.append_event(session, changed({"step": number}))
    assert line.asked == ["POST /v1/write"] * 6
    line.asked.clear()
    await ours.append_event(session, changed({"user:a": 1, "user:b": 2, "app:c": 3}))
    assert line.asked == ["POST /v1/write"] + ["POST /v1/items/batch"] * 2


async def test_events_of_a_session_are_memory(ours: ThreefoldSessionService, memory: MemoryClient) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    await ours.append_event(session, said("My cat is called Tom"))
    await ours.append_event(session, said("A fine name", author="guide"))
    await ours.append_event(session, changed({"step": 1}))
    found = memory.recall("What is the cat called?", session_id="another")
    assert "My cat is called Tom" in found.block
    turns = memory.turns("s").turns
    assert [(turn.id, turn.role, turn.name) for turn in turns] == [
        (event.id, *voice)
        for event, voice in zip(session.events, [("user", None), ("assistant", "guide"), ("system", None)], strict=True)
    ]


async def test_memory_service_recognises_events_of_the_session(
    ours: ThreefoldSessionService, memory: MemoryClient
) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    await ours.append_event(session, said("My cat is called Tom"))
    flushed = [turn_of(event) for event in (await get(ours)).events]
    assert memory.write("s", flushed).duplicates == 1
    await ours.append_event(session, said("And the dog Rex"))


async def test_lost_answer_stores_no_event_twice(line: Line, ours: ThreefoldSessionService) -> None:
    line.losing = [lambda: None]
    session = await ours.create_session(**WHO, session_id="s", state={"step": 0})
    for delta in ({}, {"step": 1, "user:a": 1}):
        line.losing = [lambda: None]
        await ours.append_event(session, said("Hello", changes=delta))
    await ours.append_event(session, said("Goodbye"))
    stored = await get(ours)
    assert words(stored) == words(session) == ["Hello", "Hello", "Goodbye"]
    assert stored.state == {"step": 1, "user:a": 1}


async def test_event_may_be_appended_again_after_a_crash(ours: ThreefoldSessionService) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    event = said("Hello", changes={"step": 1})
    crashed = event.model_copy(deep=True)
    await ours.append_event(session, crashed)
    for recent in (None, 0):
        again = await get(ours, num_recent_events=recent)
        await ours.append_event(again, event)
        await ours.append_event(again, event)
        assert words(again) == ["Hello"]
        await ours.append_event(again, said("Next"))
    assert words(await get(ours)) == ["Hello", "Next", "Next"]
    assert (await get(ours)).state == {"step": 1}


async def test_state_of_the_user_lost_in_a_crash_is_stored_on_retry(
    ours: ThreefoldSessionService, memory: MemoryClient
) -> None:
    await ours.create_session(**WHO, session_id="s")
    event = said("I am Ana", changes={"user:name": "Ana"})
    memory.write("s", [turn_of(event)])
    await ours.append_event(await get(ours), event)
    assert (await get(ours)).state == {"user:name": "Ana"}
    assert words(await get(ours)) == ["I am Ana"]


async def test_event_of_another_writer_after_a_lost_answer_makes_the_session_stale(
    line: Line, ours: ThreefoldSessionService, memory: MemoryClient
) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    line.losing = [lambda: memory.write("s", [turn_of(said("From another"))])]
    await ours.append_event(session, said("Hello"))
    with pytest.raises(StaleSessionError, match="Session s was changed since it was read"):
        await ours.append_event(session, said("Goodbye"))
    assert words(await get(ours)) == ["Hello", "From another"]


async def test_event_stored_while_a_session_is_read_makes_it_stale(
    ours: ThreefoldSessionService, memory: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    await ours.append_event(session, said("Hello"))
    read_turns = AsyncMemoryClient.turns

    async def late_turns(self: AsyncMemoryClient, session_id: str, **options: Any) -> TurnPage:
        memory.write("s", [turn_of(said("From another"))])
        return await read_turns(self, session_id, **options)

    monkeypatch.setattr(AsyncMemoryClient, "turns", late_turns)
    seen = await get(ours)
    assert words(seen) == ["Hello"]
    with pytest.raises(StaleSessionError):
        await ours.append_event(seen, said("Goodbye"))


async def test_end_of_a_run_triggers_a_fold(sqlite_url: str) -> None:
    local = LocalService(database_url=sqlite_url, embedder="hash", compaction_trigger=1_000, compaction_target=5)
    with local as service, service.client("ana", APP) as memory:
        ours = ThreefoldSessionService(service.async_client(timeout=60.0))
        session = await ours.create_session(**WHO, session_id="s")
        for number, event in enumerate([said("I deploy to staging on Fridays"), said("Noted", author="guide")]):
            await ours.append_event(session, event)
            memory.wait("s", timeout=60)
            assert len(memory.digests("s").digests) == number


async def test_refused_event_can_be_appended_again(ours: ThreefoldSessionService) -> None:
    await ours.create_session(**WHO, session_id="s")
    stale = await get(ours)
    await ours.append_event(await get(ours), said("First"))
    event = said("Second", changes={"temp:a": 1, "step": 2})
    with pytest.raises(StaleSessionError):
        await ours.append_event(stale, event)
    await ours.append_event(await get(ours), event)
    assert words(await get(ours)) == ["First", "Second"]
    assert (await get(ours)).state == {"step": 2}


async def test_outage_is_raised_and_the_event_can_be_appended_later(line: Line, ours: ThreefoldSessionService) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    line.is_cut = True
    event = said("Hello")
    with pytest.raises(Unreachable):
        await ours.append_event(session, event)
    with pytest.raises(Unreachable):
        await get(ours)
    line.is_cut = False
    await ours.append_event(session, event)
    assert words(await get(ours)) == words(session) == ["Hello"]


async def test_sessions_may_change_different_keys_of_the_user_state(ours: ThreefoldSessionService) -> None:
    one, two = [await ours.create_session(**WHO) for _ in range(2)]
    await ours.append_event(one, changed({"user:a": 1, "app:a": 1}))
    await ours.append_event(two, changed({"user:b": 2, "app:b": 2}))
    assert await ours.get_user_state(**WHO) == {"a": 1, "b": 2}
    assert (await ours.create_session(**WHO)).state == {"user:a": 1, "user:b": 2, "app:a": 1, "app:b": 2}


async def test_invalid_state_stores_nothing_of_its_event(ours: ThreefoldSessionService) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    with pytest.raises(InvalidRequest, match="value: "):
        await ours.append_event(session, changed({"step": 1, "user:a": float("nan")}))
    assert session.events == (await get(ours)).events == []
    itself: dict[str, Any] = {}
    itself["again"] = itself
    for key, value in (("a", itself), ("\ud800", 1)):
        with pytest.raises(InvalidRequest, match="state: must be JSON: "):
            await ours.append_event(session, changed({key: value}))
    assert session.events == (await get(ours)).events == []
    await ours.append_event(session, changed({"step": object(), "user:a": object()}))
    assert {key: type(value) for key, value in (await get(ours)).state.items()} == {
        "step": str,
        "user:a": str,
    }
    await ours.append_event(session, changed({"user:a": b"\xff"}))
    assert (await get(ours)).state["user:a"] == "_w=="


async def test_long_session_is_read_page_by_page(
    line: Line, ours: ThreefoldSessionService, memory: MemoryClient
) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    everything = [f"Word {number}" for number in range(MAX_PAGE + MAX_PAGE // 2)]
    turns = [turn_of(said(word, number)) for number, word in enumerate(everything)]
    memory.write("s", turns[:MAX_PAGE])
    memory.write("s", turns[MAX_PAGE:])
    assert words(await get(ours)) == everything
    assert words(await get(ours, num_recent_events=MAX_PAGE + 1)) == everything[-MAX_PAGE - 1 :]
    line.asked.clear()
    assert words(await get(ours, num_recent_events=3)) == everything[-3:]
    assert words(await get(ours, after_timestamp=START + MAX_PAGE)) == everything[MAX_PAGE:]
    assert line.asked.count("GET /v1/sessions/s/turns") == 2
    with pytest.raises(StaleSessionError):
        await ours.append_event(session, said("Next"))


async def test_foreign_and_erased_turns_are_no_events(ours: ThreefoldSessionService, memory: MemoryClient) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    for text in ("One", "Two", "Three"):
        await ours.append_event(session, said(text))
    memory.write("s", [TurnIn(role="user", content="By hand")])
    memory.delete_fact(session.events[1].id, sources=True)
    assert words(await get(ours)) == ["One", "Three"]
    assert words(await get(ours, num_recent_events=2)) == ["One", "Three"]
    await ours.append_event(await get(ours), said("Four"))
    assert words(await get(ours)) == ["One", "Three", "Four"]


async def test_recorded_turns_can_be_opened_as_a_session(ours: ThreefoldSessionService, memory: MemoryClient) -> None:
    event = said("My cat is called Tom")
    memory.write("s", [turn_of(event)])
    session = await get(ours)
    assert [each.id for each in session.events] == [event.id]
    assert (await ours.list_sessions(**WHO)).sessions == []
    await ours.append_event(session, said("Next", changes={"step": 1}))
    assert (await get(ours)).state == {"step": 1}


async def test_deleted_session_is_erased(ours: ThreefoldSessionService, memory: MemoryClient) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    event = said("My cat is called Tom")
    await ours.append_event(session, event)
    await ours.delete_session(**WHO, session_id="s")
    assert memory.recall("What is the cat called?", session_id="another").block == ""
    with pytest.raises(SessionNotFoundError):
        await ours.append_event(session, said("Late"))
    again = await ours.create_session(**WHO, session_id="s")
    with pytest.raises(InvalidRequest, match="was erased from session 's': give the event a new id"):
        await ours.append_event(again, event)
    assert (await get(ours)).events == []


async def test_session_of_another_framework_is_refused(ours: ThreefoldSessionService, memory: MemoryClient) -> None:
    for state in ("[]", "{", '{"format": "other/1"}', '{"format": "adk-session/1"}'):
        memory.write("s", [], state=state)
        with pytest.raises(InvalidRequest, match="session 's' does not hold a session of ADK"):
            await get(ours)
        assert (await ours.list_sessions(**WHO)).sessions == []


async def test_listing_sessions_requires_a_user(ours: ThreefoldSessionService) -> None:
    with pytest.raises(InvalidRequest, match="user_id: missing"):
        await ours.list_sessions(app_name="support")


async def test_oversized_event_is_refused_with_its_id(ours: ThreefoldSessionService) -> None:
    session = await ours.create_session(**WHO, session_id="s")
    image = types.Part(inline_data=types.Blob(data=bytes(3_000_001), mime_type="image/png"))
    with pytest.raises(InvalidRequest, match=r"event 'large': .*save its files as artifacts"):
        await ours.append_event(session, Event(author="user", id="large", content=types.Content(parts=[image])))
    assert (await get(ours)).events == []


async def test_visibility_of_the_service_applies_to_its_turns(line: Line, memory: MemoryClient) -> None:
    ours = open_sessions(line, visibility="session")
    session = await ours.create_session(**WHO, session_id="s")
    await ours.append_event(session, said("My cat is called Tom"))
    assert memory.recall("What is the cat called?", session_id="another").block == ""


@pytest.mark.parametrize("name", ["a b", "a/b", "a%2Fb", "..", "o'brien", 'a"q', "a\r\nb", "日本 😀", "x" * 512])
async def test_names_with_special_characters_are_exact(ours: ThreefoldSessionService, name: str) -> None:
    """Users reported that signs such as hyphen, comma or slash in an id gave no result or a 500."""
    for which in WHO | {"session_id": ""}:
        who: dict[str, Any] = {**WHO, "session_id": "s", which: name}
        owner = {key: who[key] for key in WHO}
        await ours.append_event(await ours.create_session(**who), said("Hello"))
        found = await ours.get_session(**who)
        assert found is not None
        assert words(found) == ["Hello"]
        assert [each.id for each in (await ours.list_sessions(**owner)).sessions] == [who["session_id"]]
        await ours.delete_session(**who)
        assert await ours.get_session(**who) is None


@pytest.mark.parametrize("name", ["*", " ", "a\0b", "\ud800", "x" * 513])
async def test_invalid_names_are_refused_by_every_method(ours: ThreefoldSessionService, name: str) -> None:
    """Users reported that signs such as hyphen, comma or slash in an id gave no result or a 500."""
    for which in WHO | {"session_id": ""}:
        who: dict[str, Any] = {**WHO, "session_id": "s", which: name}
        for refuse in (ours.create_session, ours.get_session, ours.delete_session):
            with pytest.raises(InvalidRequest):
                await refuse(**who)
