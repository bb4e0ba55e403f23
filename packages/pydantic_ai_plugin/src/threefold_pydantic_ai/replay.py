"""Read the stored messages of a session."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from pydantic_ai.messages import ModelMessage, repair_messages

from threefold import AsyncMemorySession, NotFound, ThreefoldError, calls
from threefold.calls import Call
from threefold.contract import MAX_PAGE, Turn, TurnPage
from threefold_pydantic_ai.messages import messages_of

Send = Callable[[Call[TurnPage]], Awaitable[TurnPage]]

log = logging.getLogger("threefold")


async def load_messages(session: AsyncMemorySession, limit: int, has_prompt: bool) -> list[ModelMessage]:
    """Return the messages of the newest `limit` turns of a session.

    In an outage, soft returns none; the window of the recall has the newest turns. If the run has a prompt, calls that
    were never answered get an answer; without a prompt they wait for their results.
    """
    try:
        messages = messages_of(await _newest_turns(session, limit))
    except NotFound:
        return []
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        log.warning("cannot read the messages of the session: %s", error)
        return []
    return repair_messages(messages) if has_prompt else messages


async def turns_from(send: Send, session_id: str, first: int) -> list[Turn]:
    """Return the turns of a session from sequence number `first` on, with their payloads."""
    turns: list[Turn] = []
    more: str | None = str(first)
    while more is not None:
        page = await send(calls.turns(session_id, from_seq=int(more), limit=MAX_PAGE, payload=True))
        turns += page.turns
        more = page.next_cursor
    return turns


async def _newest_turns(session: AsyncMemorySession, limit: int) -> list[Turn]:
    status = await session.send(calls.status(session.session_id))
    return await turns_from(session.send, session.session_id, max(1, status.last_seq - limit + 1))
