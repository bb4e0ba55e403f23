"""All differences between our sessions and those of the services of ADK."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session

from plugins.adk.models import APP
from plugins.adk.sessions import START, WHO, changed, filled, get, said, words
from threefold import InvalidRequest
from threefold_adk import ThreefoldSessionService

pytestmark = pytest.mark.anyio


async def a_stale_append(sessions: BaseSessionService) -> list[str]:
    await filled(sessions, 1)
    one, two = await get(sessions), copy.deepcopy(await get(sessions))
    await sessions.append_event(one, said("From one", 1))
    try:
        await sessions.append_event(two, said("From two", 2, changes={"step": 1}))
    except StaleSessionError:
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
    except Exception as error:  # noqa: BLE001 - an error of SQLAlchemy
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
    await sessions.append_event(session, changed({"both": (1, 2)}))
    return (await get(sessions)).state["both"]


async def sessions_of_all_users(sessions: BaseSessionService) -> list[str] | str:
    await sessions.create_session(**WHO, session_id="s")
    try:
        return [session.id for session in (await sessions.list_sessions(app_name=APP)).sessions]
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
async def test_differences_from_the_services_of_adk(
    sessions: BaseSessionService, operation: Callable[[BaseSessionService], Awaitable[Any]]
) -> None:
    of_ours, in_memory, in_database = DIFFERENCES[operation]
    theirs = in_memory if isinstance(sessions, InMemorySessionService) else in_database
    assert await operation(sessions) == (of_ours if isinstance(sessions, ThreefoldSessionService) else theirs)
