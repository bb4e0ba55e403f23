"""Facts: saved, superseded, restored, deleted. A superseded version stays as history, out of every search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, and_, bindparam, func, insert, or_, select, update

from threefold.contract import Memory, SourceRange
from threefold_server.clock import from_micros
from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.storage.engine.prepared import Pending, Prepared, PreparedAmong
from threefold_server.storage.engine.scope import FACTS, managed, visible, visible_to
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import fact_sources, facts, owners, sessions
from threefold_server.storage.engine.types import AnyRow

HISTORY = 500
"""Superseded versions that a recall as of an earlier moment reads: they are in no index."""


def add(connection: Connection, values: dict[str, Any]) -> None:
    """Insert one fact (column values by name)."""
    connection.execute(insert(facts).values(values))


def find(connection: Connection, scope: ScopeFilter, fact: UUID, now: int) -> AnyRow | None:
    """One fact that the caller manages and that has not expired, or None: someone else's looks like an unknown one."""
    statement = select(facts).where(managed(FACTS, scope), facts.c.fact == fact, _alive(now))
    return connection.execute(statement).one_or_none()


def count(connection: Connection, owner: UUID) -> int:
    """How many facts an owner has, with every version."""
    return connection.execute(select(func.count()).where(facts.c.owner == owner)).scalar_one()


def values_of(row: AnyRow) -> dict[str, Any]:
    """All columns of a fact by name."""
    return {column.name: getattr(row, column.name) for column in facts.c}


def history(connection: Connection, owner: UUID, root: UUID) -> Sequence[AnyRow]:
    """Every version of a fact, oldest first."""
    statement = (
        select(facts)
        .where(facts.c.owner == owner, facts.c.root == root)
        .order_by(facts.c.valid_from, facts.c.created_at, facts.c.fact)
    )
    return connection.execute(statement).all()


def change(connection: Connection, owner: UUID, fact: UUID, **values: Any) -> None:
    """Set columns of one fact."""
    connection.execute(update(facts).where(facts.c.owner == owner, facts.c.fact == fact).values(**values))


def versions_by_key(connection: Connection, owner: UUID, keys: Sequence[UUID]) -> dict[UUID, AnyRow]:
    """Versions of facts, current or not, by key."""
    statement = select(facts).where(facts.c.owner == owner, facts.c.fact.in_(keys))
    return {row.fact: row for row in connection.execute(statement)}


def copy_sources(connection: Connection, owner: UUID, old: UUID, new: UUID) -> None:
    """Let a new version of a fact rest on the turns of the old one."""
    rested = select(fact_sources).where(fact_sources.c.owner == owner, fact_sources.c.fact == old)
    copies = [{**row, "fact": new} for row in connection.execute(rested).mappings()]
    if copies:
        connection.execute(insert(fact_sources), copies)


def add_sources(
    connection: Connection, owner: UUID, fact: UUID, session: UUID, ranges: Sequence[tuple[int, int]]
) -> None:
    """Let a fact rest on ranges of turns as well: together one more support of it."""
    of_fact = and_(fact_sources.c.owner == owner, fact_sources.c.fact == fact)
    used = connection.execute(select(func.coalesce(func.max(fact_sources.c.support), 0)).where(of_fact)).scalar_one()
    rows = [
        {
            "owner": owner,
            "fact": fact,
            "session": session,
            "from_seq": from_seq,
            "upto_seq": upto_seq,
            "support": used + 1,
        }
        for from_seq, upto_seq in ranges
    ]
    connection.execute(insert_into(connection, fact_sources).on_conflict_do_nothing(), rows)


def resting_on(connection: Connection, owner: UUID, session: UUID, from_seq: int, upto_seq: int) -> Sequence[AnyRow]:
    """Every version of any fact that rests on one of these turns, with the range (from_seq, upto_seq) it rests on."""
    statement = (
        select(facts, fact_sources.c.from_seq, fact_sources.c.upto_seq)
        .join_from(
            facts,
            fact_sources,
            and_(facts.c.owner == fact_sources.c.owner, facts.c.fact == fact_sources.c.fact),
        )
        .where(
            fact_sources.c.owner == owner,
            fact_sources.c.session == session,
            fact_sources.c.from_seq <= upto_seq,
            fact_sources.c.upto_seq >= from_seq,
        )
    )
    return connection.execute(statement).all()


def touch_owner(connection: Connection, owner: UUID) -> int:
    """Note that the owner's facts move, so that a consolidation under way compares again; returns how often they did.
    To come first: it locks the owner, so that changes of one fact go one after another and a forget wholly before or
    after."""
    statement = update(owners).where(owners.c.owner == owner).values(facts_rev=owners.c.facts_rev + 1)
    return connection.execute(statement.returning(owners.c.facts_rev)).scalar_one_or_none() or 0


def revision(connection: Connection, owner: UUID) -> int:
    """How often the owner's facts have moved so far."""
    return int(connection.execute(select(owners.c.facts_rev).where(owners.c.owner == owner)).scalar_one())


def to_memories(connection: Connection, rows: Sequence[AnyRow], user: str | None) -> list[Memory]:
    """Facts as the contract shows them, with their sources. `user` is the reader; shared facts name their writer."""
    sources = _sources(connection, rows)
    return [_to_shared(row) if row.shared else _to_memory(row, user, sources.get(row.fact, [])) for row in rows]


def _sources(connection: Connection, rows: Sequence[AnyRow]) -> dict[UUID, list[SourceRange]]:
    found: dict[UUID, list[SourceRange]] = {}
    for fact, session_id, from_seq, upto_seq in _SOURCES.all(connection, [(row.owner, row.fact) for row in rows]):
        found.setdefault(fact, []).append(SourceRange(session_id=session_id, from_seq=from_seq, upto_seq=upto_seq))
    return found


def _to_shared(row: AnyRow) -> Memory:
    """A shared fact names its writer, but not the writer's session or what was said there."""
    return _to_memory(row, row.writer, []).model_copy(update={"session_id": None})


def _to_memory(row: AnyRow, user: str | None, sources: list[SourceRange]) -> Memory:
    return Memory.model_construct(  # validated when it was written
        id=row.fact.hex,
        kind="fact",
        text=row.text,
        user=user,
        agent=row.agent,
        session_id=row.session_id,
        visibility=Reach(row.visibility).name,
        shared=row.shared,
        origin=row.origin,
        trust=row.trust,
        sources=sources,
        created_at=from_micros(row.created_at),
        event_at=from_micros(row.event_at),
        valid_from=from_micros(row.valid_from),
        valid_to=_optional(row.valid_to),
        superseded_by=None if row.superseded_by is None else row.superseded_by.hex,
        expires_at=_optional(row.expires_at),
        access_count=row.access_count,
        pinned=row.pinned,
        metadata=json.loads(row.metadata),
    )


def _optional(micros: int | None) -> Any:
    return None if micros is None else from_micros(micros)


def _alive(now: int) -> Any:
    return or_(facts.c.expires_at.is_(None), facts.c.expires_at > now, facts.c.pinned)


def current(now: int) -> Any:
    """Facts that hold now: neither superseded nor expired."""
    return and_(facts.c.valid_to.is_(None), _alive(now))


def get(connection: Connection, owner: UUID, fact: UUID) -> AnyRow:
    """The row of a fact that is known to be there."""
    return connection.execute(select(facts).where(facts.c.owner == owner, facts.c.fact == fact)).one()


def by_keys(connection: Connection, owner: UUID | None, keys: Sequence[UUID]) -> Sequence[AnyRow]:
    """Current facts of an owner, or (owner None) of the shared partition, that a search has found."""
    wanted = [(key,) for key in keys]
    return _SHARED.all(connection, wanted) if owner is None else _OWN.all(connection, wanted, owner=owner)


def send_citations(connection: Connection, owner: UUID) -> Pending[list[Any]]:
    """(fact, valid_from, valid_to, session, from_seq, upto_seq) of the turns that each version of an owner's facts
    rests on; the rows when called."""
    return _CITED.send(connection, owner=owner)


def send_history(connection: Connection, scope: ScopeFilter, at: int) -> Pending[list[Any]]:
    """The superseded versions that held at a moment, as far as the scope sees them; their rows when called."""
    return _HISTORY.send(connection, **visible_to(scope), at=at)


_CITED = Prepared(
    select(
        *(fact_sources.c.fact, facts.c.valid_from, facts.c.valid_to),
        *(fact_sources.c.session, fact_sources.c.from_seq, fact_sources.c.upto_seq),
    )
    .join_from(fact_sources, facts, and_(fact_sources.c.owner == facts.c.owner, fact_sources.c.fact == facts.c.fact))
    .where(fact_sources.c.owner == bindparam("owner"))
)
_HISTORY = Prepared(
    select(facts)
    .where(visible(FACTS), facts.c.valid_from <= bindparam("at"), facts.c.valid_to > bindparam("at"))
    .order_by(facts.c.valid_from.desc())
    .limit(HISTORY)
)

_CURRENT = select(facts).where(facts.c.valid_to.is_(None))
_OWN = PreparedAmong(_CURRENT.where(facts.c.owner == bindparam("owner")), facts.c.fact)
_SHARED = PreparedAmong(_CURRENT.where(facts.c.shared), facts.c.fact)
_SOURCES = PreparedAmong(
    select(fact_sources.c.fact, sessions.c.session_id, fact_sources.c.from_seq, fact_sources.c.upto_seq)
    .join_from(
        fact_sources,
        sessions,
        and_(fact_sources.c.owner == sessions.c.owner, fact_sources.c.session == sessions.c.session),
    )
    .order_by(fact_sources.c.fact, sessions.c.session_id, fact_sources.c.from_seq),
    fact_sources.c.owner,
    fact_sources.c.fact,
)
