"""A session's own messages, read back."""

from __future__ import annotations

import logging

from pydantic_ai.messages import ModelMessage, repair_messages

from threefold import AsyncMemorySession, NotFound, ThreefoldError, calls
from threefold.contract import MAX_PAGE, Turn
from threefold_pydantic_ai.messages import messages_of

log = logging.getLogger("threefold")


async def load_messages(session: AsyncMemorySession, limit: int, goes_on: bool) -> list[ModelMessage]:
    """The newest messages of a session. Soft goes on without them in an outage: a recall tells the latest.

    Where the run `goes_on` with a new prompt, calls that were never answered get an answer; else they wait for theirs.
    """
    try:
        messages = messages_of(await _newest_turns(session, limit))
    except NotFound:
        return []
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        log.warning("the session's messages could not be read: %s", error)
        return []
    return repair_messages(messages) if goes_on else messages


async def _newest_turns(session: AsyncMemorySession, limit: int) -> list[Turn]:
    status = await session.send(calls.status(session.session_id))
    turns: list[Turn] = []
    first = max(1, status.last_seq - limit + 1)
    while first <= status.last_seq:
        page = await session.send(calls.turns(session.session_id, from_seq=first, limit=MAX_PAGE, payload=True))
        turns += page.turns
        first = page.turns[-1].seq + 1 if page.turns else status.last_seq + 1
    return turns
