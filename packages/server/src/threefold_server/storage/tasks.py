"""Background work as rows: what is due, who holds it, how far it came, and why it stopped.

A task is keyed by (owner, subject, kind): pending work is derived from state, so a crash loses nothing.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, case, func, null

from threefold_server.storage.sessions import upsert
from threefold_server.storage.tables import tasks

TaskKind = Literal["index", "fold", "extract"]


def schedule(connection: Connection, owner: UUID, subject: UUID, kind: TaskKind, due_at: int) -> None:
    """Make a task due, unless it is due already (or waits for its next attempt) or is parked."""
    statement = upsert(connection, tasks).values(owner=owner, subject=subject, kind=kind, due_at=due_at)
    due = case(
        (tasks.c.parked.is_not(None), null()), else_=func.coalesce(tasks.c.due_at, statement.excluded.due_at)
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["owner", "subject", "kind"], set_={"due_at": due})
    )
