"""Reads across owners for administrators: who has stored memory, how much, and its content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Table, exists, func, literal, or_, select, true, tuple_

from threefold.contract import Memory
from threefold.contract.admin import AdminListRequest, Owner, StoreUsage
from threefold_server.clock import from_micros
from threefold_server.storage.engine.tables import beliefs, facts, items, owners, passages, sessions, threads, turns
from threefold_server.storage.engine.types import AnyRow, row_value
from threefold_server.storage.memories import facts as fact_store
from threefold_server.storage.memories import turn_memories
from threefold_server.storage.memories.listing import FACT, TURN, Position, after_position, merge_page
from threefold_server.storage.store.system import task_counts
from threefold_server.text.redaction import Redact

_HELD = (sessions, facts, items, threads, beliefs)
"""Tables of memory. An owner without rows in these has no stored data; other rows depend on them or record erasures."""

_HAS_MEMORY = or_(*(exists().where(table.c.owner == owners.c.owner) for table in _HELD))


def with_memory(connection: Connection) -> list[UUID]:
    """Return all owners with stored memory."""
    return list(connection.execute(select(owners.c.owner).where(_HAS_MEMORY).order_by(owners.c.owner)).scalars())


def owner_page(
    connection: Connection, after: tuple[int, UUID] | None, limit: int
) -> list[tuple[tuple[int, str], Owner]]:
    """Return owners with stored memory, oldest first, each with its position for paging."""
    statement = select(owners, *_sums(lambda table: table.c.owner == owners.c.owner))
    if after is not None:
        statement = statement.where(tuple_(owners.c.created_at, owners.c.owner) > row_value(*after))
    ordered = statement.where(_HAS_MEMORY).order_by(owners.c.created_at, owners.c.owner).limit(limit)
    return [((row.created_at, row.owner.hex), _to_owner(row)) for row in connection.execute(ordered)]


def usage(connection: Connection, now: int) -> StoreUsage:
    """Return the counts of the whole store."""
    held = select(func.count()).select_from(owners).where(_HAS_MEMORY).scalar_subquery()
    indexed = select(func.count()).select_from(passages).scalar_subquery()
    held_here = select(held.label("owners"), indexed.label("passages"), *_sums(lambda _: true()))
    counts = {str(name): int(value) for name, value in connection.execute(held_here).mappings().one().items()}
    states: Counter[str] = Counter()
    for (_, state), count in task_counts(connection, now).items():
        states[state] += count
    return StoreUsage(**counts, tasks=dict(states))


def memories(
    connection: Connection,
    owner: UUID | None,
    request: AdminListRequest,
    after: Position | None,
    now: int,
    redact: Redact,
) -> tuple[list[tuple[Position, Memory]], int]:
    """Return a page of memories of one owner or (None) of all, newest first, with any visibility; see `merge_page`."""
    limit = request.limit + 1
    rows: list[list[tuple[Position, Memory]]] = []
    if "fact" in request.kinds:
        rows.append(_facts(connection, true() if owner is None else facts.c.owner == owner, after, now, limit))
    if "turn" in request.kinds:
        rows.append(_turns(connection, true() if owner is None else turns.c.owner == owner, after, limit, redact))
    return merge_page(rows, request.limit)


def _sums(whose: Callable[[Table], ColumnElement[bool]]) -> list[Any]:
    def total(value: ColumnElement[Any], table: Table, name: str) -> Any:
        counted = select(func.coalesce(value, 0)).select_from(table).where(whose(table))
        return counted.scalar_subquery().label(name)

    return [
        *(total(func.count(), table, table.name) for table in _HELD),
        total(func.sum(sessions.c.turns), sessions, "turns"),
        total(func.sum(sessions.c.tokens), sessions, "tokens"),
    ]


def _to_owner(row: AnyRow) -> Owner:
    return Owner(
        kind=row.kind,
        name=row.name,
        sessions=row.sessions,
        turns=int(row.turns),
        tokens=int(row.tokens),
        facts=row.facts,
        items=row.items,
        threads=row.threads,
        created_at=from_micros(row.created_at),
    )


def _facts(
    connection: Connection, whose: ColumnElement[bool], after: Position | None, now: int, limit: int
) -> list[tuple[Position, Memory]]:
    further = after_position(after, FACT, literal(0), facts.c.event_at, (facts.c.fact,))
    ordered = select(facts).where(whose, fact_store.current(now), further)
    rows = connection.execute(ordered.order_by(facts.c.event_at.desc(), facts.c.fact.desc()).limit(limit)).all()
    positions = [Position(0, row.event_at, FACT, row.fact.hex, 0) for row in rows]
    return list(zip(positions, _named(connection, rows, fact_store.to_memories(connection, rows, None)), strict=True))


def _turns(
    connection: Connection, whose: ColumnElement[bool], after: Position | None, limit: int, redact: Redact
) -> list[tuple[Position, Memory]]:
    further = after_position(after, TURN, literal(0), turns.c.event_at, (turns.c.session, turns.c.seq))
    newest = (turns.c.event_at.desc(), turns.c.session.desc(), turns.c.seq.desc())
    rows = connection.execute(turn_memories.RECALLABLE_TURNS.where(whose, further).order_by(*newest).limit(limit)).all()
    positions = [Position(0, row.event_at, TURN, row.session.hex, row.seq) for row in rows]
    found = [turn_memories.to_memory(row, None, redact) for row in rows]
    return list(zip(positions, _named(connection, rows, found), strict=True))


def _named(connection: Connection, rows: Sequence[AnyRow], found: Iterable[Memory]) -> list[Memory]:
    """Return the memories with the names of their users. Memories of an agent for itself have no user."""
    whose = select(owners.c.owner, owners.c.name).where(
        owners.c.kind == "user", owners.c.owner.in_({row.owner for row in rows})
    )
    names = {row.owner: row.name for row in connection.execute(whose)}
    return [memory.model_copy(update={"user": names.get(row.owner)}) for row, memory in zip(rows, found, strict=True)]
