"""`ThreefoldMemoryService` by its contract, and used by the tools and contexts of ADK."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import Session
from google.adk.tools import load_memory, preload_memory
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from conformance.adapter import ToolCall
from conformance.adk_plugin import message
from fixtures.line import Line
from plugins.adk.models import APP, Talk, turns, words
from threefold import CircuitBreaker, InvalidRequest, NotFound, Policy, Unreachable
from threefold.contract.facts import RESERVED_METADATA
from threefold_adk import ThreefoldMemoryService, ThreefoldSessionService
from threefold_adk.events import RECALLED, words_of
from threefold_adk.memory import NO_SESSION

pytestmark = pytest.mark.anyio

ANA: dict[str, Any] = {"app_name": APP, "user_id": "ana"}


def memory(line: Line, **options: Any) -> ThreefoldMemoryService:
    return ThreefoldMemoryService(line.async_client(), **options)


def session(*words: str, app: str = APP, user: str = "ana", name: str = "s") -> Session:
    """Return a session whose events have their text as id."""
    events = [Event(id=text, author="user", content=message(text), timestamp=0.0) for text in words]
    return Session(id=name, app_name=app, user_id=user, events=events)


async def found(service: ThreefoldMemoryService, query: str = "the code", **who: str) -> list[str]:
    answer = await service.search_memory(**{**ANA, **who}, query=query)
    return [words_of(entry.content) for entry in answer.memories]


async def test_repeatedly_added_session_is_stored_once(line: Line) -> None:
    service = memory(line)
    for _ in range(3):
        await service.add_session_to_memory(session("One.", "Two."))
    await service.add_session_to_memory(session("One.", "Two.", "Three."))
    assert words(line) == ["One.", "Two.", "Three."]


async def test_partly_loaded_session_replaces_nothing(line: Line) -> None:
    service = memory(line)
    await service.add_session_to_memory(session("One.", "Two."))
    await service.add_session_to_memory(session("Two.", "Three."))
    assert words(line) == ["One.", "Two.", "Three."]


async def test_event_is_recognised_by_its_id_if_its_fields_change(line: Line) -> None:
    service = memory(line)
    await service.add_session_to_memory(session("One.", "Two."))
    later = session("One.", "Two.", "Three.")
    later.events[0].timestamp = 1.0
    await service.add_session_to_memory(later)
    assert words(line) == ["One.", "Two.", "Three."]


async def test_events_are_added_to_their_session(line: Line) -> None:
    service = memory(line)
    events = session("One.", "Two.").events
    await service.add_events_to_memory(**ANA, events=events[:1], session_id="s")
    await service.add_events_to_memory(**ANA, events=events, session_id="s")
    await service.add_session_to_memory(session("Two.", "Three."))
    assert words(line) == ["One.", "Two.", "Three."]


async def test_events_without_a_session_are_found(line: Line) -> None:
    service = memory(line)
    await service.add_events_to_memory(**ANA, events=session("The code is 4711.").events)
    assert await found(service) == ["The code is 4711."]
    assert words(line, NO_SESSION) == ["The code is 4711."]


async def test_events_without_words_are_not_stored(line: Line) -> None:
    thought = Event(author="helper", content=types.Content(parts=[types.Part(text="Hmm.", thought=True)]))
    await memory(line).add_events_to_memory(**ANA, events=[thought, Event(author="user")], session_id="s")
    assert line.asked == []


async def test_memory_is_separate_per_app_and_user(line: Line) -> None:
    """Users reported that a memory service answered with rows of other users."""
    service = memory(line)
    owners = {("x", "a"): "one", ("x", "a.b"): "two", ("x.a", "b"): "three", ("x", "A"): "four"}
    for (app, user), code in owners.items():
        await service.add_session_to_memory(session(f"The code is {code}.", app=app, user=user))
    for (app, user), code in owners.items():
        assert await found(service, app_name=app, user_id=user) == [f"The code is {code}."]


async def test_found_memory_has_author_and_time(line: Line) -> None:
    service = memory(line)
    event = Event(id="e1", author="keys", timestamp=0.0, content=message("The code is 4711."))
    await service.add_events_to_memory(**ANA, events=[event], session_id="s")
    (entry,) = (await service.search_memory(**ANA, query="the code")).memories
    assert entry == MemoryEntry(
        id="e1",
        author="keys",
        timestamp="1970-01-01T00:00:00+00:00",
        content=types.Content(role="model", parts=[types.Part(text="The code is 4711.")]),
    )


async def test_options_are_sent_with_the_search(line: Line) -> None:
    service = memory(line, options={"top_k": 1})
    await service.add_session_to_memory(session("The code is 4711.", "The code was 0815."))
    assert len(await found(service)) == 1


async def test_saved_memories_are_found_with_their_metadata(line: Line) -> None:
    service = memory(line)
    entry = MemoryEntry(content=message("The code is 4711."), custom_metadata={"source": "letter"})
    await service.add_memory(**ANA, memories=[entry], custom_metadata={"batch": 1, "source": "unknown"})
    (known,) = (await service.search_memory(**ANA, query="the code")).memories
    assert words_of(known.content) == "The code is 4711."
    assert known.custom_metadata == {"batch": 1, "source": "letter"}


@pytest.mark.parametrize("key", sorted(RESERVED_METADATA)[:2])
async def test_metadata_cannot_set_the_owner(line: Line, key: str) -> None:
    entry = MemoryEntry(content=message("The code is 4711."), custom_metadata={key: "bob"})
    with pytest.raises(InvalidRequest, match=key):
        await memory(line).add_memory(**ANA, memories=[entry])


async def test_deleted_memory_is_not_added_again(line: Line) -> None:
    service = memory(line)
    await service.add_session_to_memory(session("The code is 4711.", "Bye."))
    (entry,) = (await service.search_memory(**ANA, query="the code")).memories
    await service.delete_memory(**ANA, memory_id=entry.id)
    await service.add_session_to_memory(session("The code is 4711.", "Bye."))
    assert await found(service) == []
    assert "4711" not in "".join(f"{turn.content}{turn.payload}" for turn in turns(line))


async def test_saved_memory_can_be_deleted(line: Line) -> None:
    service = memory(line)
    await service.add_memory(**ANA, memories=[MemoryEntry(content=message("The code is 4711."))])
    (entry,) = (await service.search_memory(**ANA, query="the code")).memories
    await service.delete_memory(**ANA, memory_id=entry.id)
    assert await found(service) == []


async def test_memory_of_another_user_cannot_be_deleted(line: Line) -> None:
    service = memory(line)
    await service.add_session_to_memory(session("The code is 4711."))
    with pytest.raises(NotFound):
        await service.delete_memory(app_name=APP, user_id="bob", memory_id="The code is 4711.")
    with pytest.raises(InvalidRequest, match="memory_id"):
        await service.delete_memory(**ANA)
    assert await found(service) == ["The code is 4711."]


async def test_memory_tools_of_adk_work(line: Line) -> None:
    service = memory(line)
    await service.add_session_to_memory(session("The code is 4711.", name="earlier"))
    replies = [ToolCall("load_memory", {"query": "code"}), "4711."]
    talk = Talk(memory=service, replies=replies, tools=[load_memory, preload_memory])
    await talk.say("Which is the code?")
    assert "The code is 4711." in talk.script.prompts[0]  # preloaded
    parts = [part for content in talk.model.requests[1].contents for part in content.parts or []]
    loaded = [part.function_response.model_dump_json() for part in parts if part.function_response]
    assert "The code is 4711." in loaded[0]
    await service.add_session_to_memory(await talk.session())
    stored = "".join(f"{turn.content}{turn.payload}" for turn in turns(line))
    assert "The code is 4711." not in stored  # the result of the search is not stored again
    assert RECALLED not in "".join(words(line))


async def test_tool_context_adds_memory(line: Line) -> None:
    service = memory(line)

    async def keep(tool_context: ToolContext) -> str:
        """Keep this conversation."""
        await tool_context.add_session_to_memory()
        await tool_context.add_events_to_memory(events=tool_context.session.events)
        entry = MemoryEntry(content=message("Ana is a pilot."))
        await tool_context.add_memory(memories=[entry])
        return "Kept."

    talk = Talk(memory=service, replies=[ToolCall("keep", {})], tools=[keep])
    await talk.say("The code is 4711.")
    assert words(line) == ["The code is 4711.", "keep({})"]
    assert await found(service, "pilot") == ["Ana is a pilot."]


async def test_event_added_by_a_tool_is_not_part_of_the_session(line: Line) -> None:
    """Otherwise the run that adds the event would see it, and its session would be stale."""
    service = memory(line)

    async def note(tool_context: ToolContext) -> str:
        """Take a note."""
        event = Event(author="user", content=message("The code is 4711."))
        await tool_context.add_events_to_memory(events=[*tool_context.session.events, event])
        return "Noted down."

    sessions = ThreefoldSessionService(line.async_client())
    talk = Talk(memory=service, sessions=sessions, replies=[ToolCall("note", {}), "Done."], tools=[note])
    assert await talk.say("Remember that.") == "Done."
    assert words(line) == ["Remember that.", "note({})", "The code is 4711.", "Noted down.", "Done."]
    assert "The code is 4711." not in (await talk.session()).model_dump_json()
    assert await found(service) == ["The code is 4711."]


async def test_outage_queues_events_and_search_finds_nothing(line: Line) -> None:
    service = memory(line, policy=Policy(breaker=CircuitBreaker(threshold=100)))
    line.is_cut = True
    await service.add_session_to_memory(session("The code is 4711."))
    assert await found(service) == []
    assert service.stats.outages == 2
    with pytest.raises(Unreachable):
        await service.add_memory(**ANA, memories=[MemoryEntry(content=message("Hello."))])
    line.is_cut = False
    await service.add_session_to_memory(session("Bye.", name="other"))
    assert await found(service) == ["The code is 4711."]


async def test_strict_raises_for_events(line: Line) -> None:
    service = memory(line, policy=Policy(failure_mode="strict"))
    line.is_cut = True
    with pytest.raises(Unreachable):
        await service.add_session_to_memory(session("The code is 4711."))


async def test_wildcard_is_refused_as_a_user(line: Line) -> None:
    with pytest.raises(InvalidRequest, match="user"):
        await found(memory(line), user_id="*")


async def test_close_closes_the_connections(line: Line) -> None:
    service = memory(line)
    assert await found(service) == []
    await service.close()
    assert await found(service) == []


@pytest.mark.parametrize(
    ("role", "author", "origin"),
    [
        ("user", None, "user"),
        (None, "user", "user"),
        (None, None, "user"),
        ("model", None, "assistant"),
        ("user", "helper", "assistant"),
        ("model", "user", "assistant"),
    ],
)
async def test_entry_of_a_model_is_the_assistants(
    line: Line, role: str | None, author: str | None, origin: str
) -> None:
    service = memory(line)
    content = types.Content(role=role, parts=[types.Part(text="Ana agreed to pay.")])
    await service.add_memory(**ANA, memories=[MemoryEntry(content=content, author=author)])
    facts = await line.async_client("ana").acting_as(user="ana", agent=APP).list(kinds=["fact"])
    assert [fact.origin for fact in facts.items] == [origin]
