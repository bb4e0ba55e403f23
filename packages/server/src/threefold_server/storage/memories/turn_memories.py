"""Turns as long-term memory. No text is copied: a turn is found through its session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Integer, and_, bindparam, case, func, null, or_, select

from threefold.contract import Memory, SourceRange
from threefold.render import strip_block
from threefold_server.clock import from_micros
from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.rules.trust import origin_of, trust_of
from threefold_server.storage.engine import excerpts
from threefold_server.storage.engine.deadline import check_in_time
from threefold_server.storage.engine.prepared import Pending, Prepared, PreparedAmong
from threefold_server.storage.engine.scope import TURNS, visible, visible_to
from threefold_server.storage.engine.tables import sessions, tasks, turns
from threefold_server.storage.engine.types import AnyRow
from threefold_server.text.redaction import Redact

IS_MEMORY = and_(turns.c.erased.is_(False), turns.c.role != "system")
"""System prompts are instructions, not talk: restated in every session, they would drown what was said."""

TAIL_TURNS = 500
"""Turns too new for the index that a recall reads, newest first: about 50 ms. A larger backlog, after an import, is
indexed at some 2,000 turns a second."""

TAIL_CHARS = 100_000
"""Characters of such turns that a recall reads, in all: reading the words of more took half of its deadline. The others
are found once they are indexed."""

MEMORY_CHARS = 20_000
"""Of a longer turn a memory shows head and tail. Ten turns of 1,000,000 characters took 5 s to look through for
secrets."""

_OUTLINE = [column for column in turns.c if column.name not in ("content", "payload")]

EVERY = (
    select(
        *_OUTLINE,
        *excerpts.columns(turns.c.content, MEMORY_CHARS, excerpts.end_of(MEMORY_CHARS)),
        sessions.c.agent,
        sessions.c.session_id,
    )
    .join_from(turns, sessions, and_(turns.c.owner == sessions.c.owner, turns.c.session == sessions.c.session))
    .where(IS_MEMORY)
)
"""Every turn with the place of its session, as a statement to narrow further."""

VISIBLE = EVERY.where(visible(TURNS))
"""Those of a scope, whose values come from `visible_to`."""


def by_place(connection: Connection, scope: ScopeFilter, places: Sequence[tuple[UUID, int]]) -> Sequence[Any]:
    """Turns at (session, seq), as far as the scope sees them."""
    return _AT_PLACES.all(connection, places, **visible_to(scope))


def send_unindexed(connection: Connection, scope: ScopeFilter) -> Pending[list[Any]]:
    """Send for the turns too new for the index; their rows when called, the newest first.

    `content` is None in those beyond `TAIL_CHARS`.
    """
    rows = _UNINDEXED.send(connection, **visible_to(scope), most=TAIL_CHARS)
    if connection.dialect.name != "sqlite":
        return rows
    return lambda: _with_contents(connection, scope.owner, rows())


def _with_contents(connection: Connection, owner: UUID, rows: Sequence[Any]) -> list[Any]:
    """Read the contents one by one, as far as they fit: SQLite would take all of them along while it sorts."""
    left = TAIL_CHARS
    found: list[Any] = []
    for row in rows:
        check_in_time()
        [(content,)] = _CONTENT.all(connection, owner=owner, session=row.session, seq=row.seq, most=left)
        left -= len(content or "")
        found.append(row._replace(content=content))
    return found


def to_memory(row: AnyRow, user: str | None, redact: Redact) -> Memory:
    """A turn with its session, as a memory of the contract: without secrets and recalled blocks."""
    check_in_time()
    return Memory.model_construct(  # validated when it was written
        id=row.turn_id,
        kind="turn",
        text=excerpts.shown(row, lambda text: redact(strip_block(text))),
        cut=excerpts.is_cut(row),
        user=user,
        agent=row.agent,
        session_id=row.session_id,
        visibility=Reach(row.visibility).name,
        origin=origin_of(row),
        trust=trust_of(row),
        sources=[SourceRange(session_id=row.session_id, from_seq=row.seq, upto_seq=row.seq)],
        role=row.role,
        name=row.name and redact(row.name),
        created_at=from_micros(row.created_at, row.utc_offset),
        event_at=from_micros(row.event_at, row.utc_offset),
    )


_AT_PLACES = PreparedAmong(VISIBLE, turns.c.session, turns.c.seq)
_CONTENT = Prepared(
    select(case((func.length(turns.c.content) <= bindparam("most", type_=Integer), turns.c.content))).where(
        turns.c.owner == bindparam("owner"),
        turns.c.session == bindparam("session"),
        turns.c.seq == bindparam("seq", type_=Integer),
    )
)


def _unindexed(dialect: str) -> Any:
    # A join, so that the database reads each open session from its watermark on: as a condition on every turn of the
    # owner it read all 20,000 of a session to find the newest one. The kind's sum keeps SQLite from looking up the task
    # of each turn of the owner by its key: 25 ms at 20,000.
    content = null().label("content") if dialect == "sqlite" else turns.c.content
    waiting = (
        select(*_OUTLINE, content)
        .join_from(turns, sessions, and_(turns.c.owner == sessions.c.owner, turns.c.session == sessions.c.session))
        .join(tasks, and_(tasks.c.owner == turns.c.owner, tasks.c.subject == turns.c.session))
        .where(
            IS_MEMORY,
            visible(TURNS),
            tasks.c.kind + "" == "index",
            or_(tasks.c.due_at.is_not(None), tasks.c.parked.is_not(None)),
            turns.c.seq > tasks.c.upto,
        )
        .order_by(turns.c.event_at.desc(), turns.c.seq.desc())
        .limit(TAIL_TURNS)
    )
    return waiting if dialect == "sqlite" else _within(waiting.subquery())


def _within(waiting: Any) -> Any:
    """The same rows with the contents that fit, the newest first. Postgres knows the size of a text unread."""
    size, most = func.octet_length(waiting.c.content), bindparam("most", type_=Integer)
    order = (waiting.c.event_at.desc(), waiting.c.seq.desc())
    used = func.sum(case((size <= most, size), else_=0)).over(order_by=order)
    content = case((and_(size <= most, used <= most), waiting.c.content)).label("content")
    return select(*(column for column in waiting.c if column.name != "content"), content).order_by(*order)


_UNINDEXED = Prepared(_unindexed)
