"""Turns as memories: read by key, and those that are not in the index yet. No text of a turn is stored twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Integer, and_, bindparam, case, func, null, or_, select

from threefold.contract import Memory, SourceRange
from threefold.render import strip_block
from threefold_server.clock import from_micros
from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.rules.candidates import TurnKey
from threefold_server.rules.trust import origin_of, trust_of
from threefold_server.storage.engine import excerpts
from threefold_server.storage.engine.deadline import check_in_time
from threefold_server.storage.engine.prepared import Pending, Prepared, PreparedAmong
from threefold_server.storage.engine.scope import TURNS, visible, visible_to
from threefold_server.storage.engine.tables import sessions, tasks, turns
from threefold_server.storage.engine.types import AnyRow
from threefold_server.text.redaction import Redact

RECALLABLE = and_(turns.c.erased.is_(False), turns.c.role != "system")
"""The condition for turns that are memories. System prompts are not: they are instructions, and as each session repeats
them, a search would find them before the conversation."""

UNINDEXED_TURNS = 500
"""Most turns that a recall reads because they are not in the index yet, newest first. It takes about 50 ms. There are
more after an import; they are indexed at about 2,000 turns a second."""

UNINDEXED_CHARS = 100_000
"""Most characters that a recall reads of these turns together. Reading the words of more took half of its deadline. The
other turns are found once they are indexed."""

MEMORY_CHARS = 20_000
"""Most characters of a memory's text; a longer turn is shown as head and tail. Searching ten turns of 1,000,000
characters for secrets took 5 s."""

_OUTLINE = [column for column in turns.c if column.name not in ("content", "payload")]

RECALLABLE_TURNS = (
    select(
        *_OUTLINE,
        *excerpts.columns(turns.c.content, MEMORY_CHARS, excerpts.end_of(MEMORY_CHARS)),
        sessions.c.agent,
        sessions.c.session_id,
    )
    .join_from(turns, sessions, and_(turns.c.owner == sessions.c.owner, turns.c.session == sessions.c.session))
    .where(RECALLABLE)
)
"""A statement for all recallable turns, with the agent and the id of their session; further conditions can be added."""

VISIBLE_TURNS = RECALLABLE_TURNS.where(visible(TURNS))
"""The statement for those of a scope. Its values come from `visible_to`."""


def by_keys(connection: Connection, scope: ScopeFilter, keys: Sequence[TurnKey]) -> Sequence[Any]:
    """Return the turns with these keys (session, seq) that are visible to the scope."""
    return _BY_KEYS.all(connection, keys, **visible_to(scope))


def send_unindexed(connection: Connection, scope: ScopeFilter) -> Pending[list[Any]]:
    """Send for the visible turns that are not in the index yet, newest first.

    `content` is None in rows that do not fit `UNINDEXED_CHARS`.
    """
    rows = _UNINDEXED.send(connection, **visible_to(scope), most=UNINDEXED_CHARS)
    if connection.dialect.name != "sqlite":
        return rows
    return lambda: _add_contents(connection, scope.owner, rows())


def _add_contents(connection: Connection, owner: UUID, rows: Sequence[Any]) -> list[Any]:
    """Add the contents that fit to the rows, one statement each: SQLite would copy all contents while it sorts."""
    left = UNINDEXED_CHARS
    found: list[Any] = []
    for row in rows:
        check_in_time()
        [(content,)] = _CONTENT.all(connection, owner=owner, session=row.session, seq=row.seq, most=left)
        left -= len(content or "")
        found.append(row._replace(content=content))
    return found


def to_memory(row: AnyRow, user: str | None, redact: Redact) -> Memory:
    """Return a row of `RECALLABLE_TURNS` as a model of the contract, without secrets and recalled blocks."""
    check_in_time()
    return Memory.model_construct(  # validated at the write
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


_BY_KEYS = PreparedAmong(VISIBLE_TURNS, turns.c.session, turns.c.seq)
_CONTENT = Prepared(
    select(case((func.length(turns.c.content) <= bindparam("most", type_=Integer), turns.c.content))).where(
        turns.c.owner == bindparam("owner"),
        turns.c.session == bindparam("session"),
        turns.c.seq == bindparam("seq", type_=Integer),
    )
)


def _unindexed(dialect: str) -> Any:
    # With a join, the database reads each session that has unindexed turns from its watermark on. With a condition on
    # the turns of the owner, it read all 20,000 turns of a session to find the newest one. `kind + ""` keeps SQLite
    # from looking up the task for each turn of the owner: 25 ms for 20,000 turns.
    content = null().label("content") if dialect == "sqlite" else turns.c.content
    unindexed = (
        select(*_OUTLINE, content)
        .join_from(turns, sessions, and_(turns.c.owner == sessions.c.owner, turns.c.session == sessions.c.session))
        .join(tasks, and_(tasks.c.owner == turns.c.owner, tasks.c.subject == turns.c.session))
        .where(
            RECALLABLE,
            visible(TURNS),
            tasks.c.kind + "" == "index",
            or_(tasks.c.due_at.is_not(None), tasks.c.parked.is_not(None)),
            turns.c.seq > tasks.c.upto,
        )
        .order_by(turns.c.event_at.desc(), turns.c.seq.desc())
        .limit(UNINDEXED_TURNS)
    )
    return unindexed if dialect == "sqlite" else _limit_contents(unindexed.subquery())


def _limit_contents(unindexed: Any) -> Any:
    """Return a statement for these rows, with the newest contents that fit. Postgres knows a text's size unread."""
    size, most = func.octet_length(unindexed.c.content), bindparam("most", type_=Integer)
    order = (unindexed.c.event_at.desc(), unindexed.c.seq.desc())
    used = func.sum(case((size <= most, size), else_=0)).over(order_by=order)
    content = case((and_(size <= most, used <= most), unindexed.c.content)).label("content")
    return select(*(column for column in unindexed.c if column.name != "content"), content).order_by(*order)


_UNINDEXED = Prepared(_unindexed)
