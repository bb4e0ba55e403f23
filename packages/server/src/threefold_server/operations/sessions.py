"""The end of a session: its turns are consolidated without waiting until it is idle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import anyio

from threefold.contract import SessionStatus
from threefold_server.operations.browse import session_status
from threefold_server.rules.access import Principal, session_scope
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.sessions import tasks

POLL_SECONDS = 0.05


async def end_session(service: Service, principal: Principal, session_id: str, wait: float) -> SessionStatus:
    """Make the tasks of a session due now, and return its status. Turns may still be appended later.

    Args:
        wait: Seconds to wait until the turns of now are consolidated; 0 returns at once.
    """
    status = await session_status(service, principal, session_id)
    session = session_scope(principal, session_id).session
    assert session is not None
    kinds: list[tasks.TaskKind] = ["index", "fold"] if service.settings.rolling_summary else ["index"]
    if service.extractor is not None:
        kinds.append("extract")
    make_due = partial(_schedule, owner=principal.owner, session=session, kinds=kinds, now=service.clock())
    await service.database.write(principal.owner, make_due)
    service.wake()
    target = status.last_seq
    status = await session_status(service, principal, session_id)
    with anyio.move_on_after(wait):
        while not _done(status, target):
            await anyio.sleep(POLL_SECONDS)
            status = await session_status(service, principal, session_id)
    return status


def _schedule(connection: Connection, owner: UUID, session: UUID, kinds: Sequence[tasks.TaskKind], now: int) -> None:
    for kind in kinds:
        tasks.reschedule(connection, owner, session, kind, now, now)


def _done(status: SessionStatus, target: int) -> bool:
    return status.state == "parked" or (status.indexed_upto >= target and status.state == "idle")
