"""Pages of one ordered list of facts and turns.

The order is (access count, event time, kind, key), descending. If the request orders by time, the access count is 0 in
all positions. Facts and turns are two queries in the same order, whose results are merged.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, false, literal, or_, select, true, tuple_

from threefold.contract import ListRequest, Memory
from threefold_server.rules.access import ScopeFilter
from threefold_server.rules.paging import fill_page
from threefold_server.storage.engine.scope import FACTS, visible, visible_to
from threefold_server.storage.engine.tables import facts, turns
from threefold_server.storage.engine.types import row_value
from threefold_server.storage.memories import facts as fact_store
from threefold_server.storage.memories import turn_memories
from threefold_server.text.redaction import Redact

PAGE_CHARS = 1_000_000
"""Characters of text after which a page ends, even if it has fewer memories than requested."""

TURN, FACT = 0, 1
POSITION_TYPES = (int, int, int, str, int)


class Position(NamedTuple):
    """The place of one memory in the order, where the next page starts.

    `key` is the key of the fact or of the session, in hexadecimal digits. `seq` is 0 for a fact.
    """

    access: int
    event_at: int
    kind: int
    key: str
    seq: int


def page(
    connection: Connection, scope: ScopeFilter, request: ListRequest, after: Position | None, now: int, redact: Redact
) -> tuple[list[tuple[Position, Memory]], int]:
    """Return memories after a position, each with its own position, and how many of them belong to the page.

    If there is a next page, the list has one memory more than the page.
    """
    rows: list[Iterable[tuple[Position, Memory]]] = []
    if "fact" in request.kinds:
        rows.append(_facts(connection, scope, request, after, now))
    if "turn" in request.kinds and "long_term" in request.include:
        rows.append(_turns(connection, scope, request, after, redact))
    return merge_page(rows, request.limit)


def merge_page(
    rows: Sequence[Iterable[tuple[Position, Memory]]], limit: int
) -> tuple[list[tuple[Position, Memory]], int]:
    """Merge rows in descending order into one page; see `fill_page`."""
    merged = heapq.merge(*rows, key=lambda row: row[0], reverse=True)
    return fill_page(merged, limit, lambda row: len(row[1].text), PAGE_CHARS)


def _facts(
    connection: Connection, scope: ScopeFilter, request: ListRequest, after: Position | None, now: int
) -> list[tuple[Position, Memory]]:
    access: ColumnElement[int] = facts.c.access_count if request.order == "access_count" else literal(0)
    statement = (
        select(facts)
        .where(
            or_(
                visible(FACTS) if "long_term" in request.include else false(),
                facts.c.shared if "shared" in request.include else false(),
            ),
            fact_store.current(now),
            after_position(after, FACT, access, facts.c.event_at, (facts.c.fact,)),
        )
        .order_by(access.desc(), facts.c.event_at.desc(), facts.c.fact.desc())
        .limit(request.limit + 1)
    )
    rows = connection.execute(statement, visible_to(scope)).all()
    by_access = request.order == "access_count"
    positions = [Position(row.access_count if by_access else 0, row.event_at, FACT, row.fact.hex, 0) for row in rows]
    return list(zip(positions, fact_store.to_memories(connection, rows, scope.user), strict=True))


def _turns(
    connection: Connection, scope: ScopeFilter, request: ListRequest, after: Position | None, redact: Redact
) -> Iterator[tuple[Position, Memory]]:
    statement = (
        turn_memories.VISIBLE_TURNS.where(
            after_position(after, TURN, literal(0), turns.c.event_at, (turns.c.session, turns.c.seq))
        )
        .order_by(turns.c.event_at.desc(), turns.c.session.desc(), turns.c.seq.desc())
        .limit(request.limit + 1)
    )
    for row in connection.execute(statement, visible_to(scope)):
        position = Position(0, row.event_at, TURN, row.session.hex, row.seq)
        yield position, turn_memories.to_memory(row, scope.user, redact)


def after_position(
    after: Position | None,
    kind: int,
    access: ColumnElement[int],
    event_at: ColumnElement[int],
    key: tuple[ColumnElement[Any], ...],
) -> ColumnElement[bool]:
    """Return the condition that a row of this kind comes after the position."""
    if after is None:
        return true()
    same_time = (access == after.access) & (event_at == after.event_at)
    earlier = or_(access < after.access, and_(access == after.access, event_at < after.event_at))
    if kind != after.kind:
        return or_(earlier, same_time) if kind < after.kind else earlier
    values = (UUID(after.key), after.seq)[: len(key)]
    return or_(earlier, and_(same_time, tuple_(*key) < row_value(*values)))
