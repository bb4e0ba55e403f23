"""Rows of facts and of their sources: insert, change, read, and the conversion to the contract."""

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
"""Most superseded versions that a recall as of an earlier time reads. They are not in the search index."""


def add(connection: Connection, values: dict[str, Any]) -> None:
    """Insert one fact. `values` are the columns by name."""
    connection.execute(insert(facts).values(values))


def find(connection: Connection, scope: ScopeFilter, fact: UUID, now: int) -> AnyRow | None:
    """Return a fact that the caller manages and that has not expired, or None.

    A fact of somebody else gives None, as an unknown one does.
    """
    statement = select(facts).where(managed(FACTS, scope), facts.c.fact == fact, _not_expired(now))
    return connection.execute(statement).one_or_none()


def count(connection: Connection, owner: UUID) -> int:
    """Return the number of facts of an owner, all versions counted."""
    return connection.execute(select(func.count()).where(facts.c.owner == owner)).scalar_one()


def values_of(row: AnyRow) -> dict[str, Any]:
    """Return all columns of a fact by name."""
    return {column.name: getattr(row, column.name) for column in facts.c}


def history(connection: Connection, owner: UUID, root: UUID) -> Sequence[AnyRow]:
    """Return all versions of a fact, oldest first."""
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
    """Return versions of facts by key, superseded ones as well."""
    statement = select(facts).where(facts.c.owner == owner, facts.c.fact.in_(keys))
    return {row.fact: row for row in connection.execute(statement)}


def copy_sources(connection: Connection, owner: UUID, old: UUID, new: UUID) -> None:
    """Give a new version of a fact the sources of the old one."""
    sources = select(fact_sources).where(fact_sources.c.owner == owner, fact_sources.c.fact == old)
    copies = [{**row, "fact": new} for row in connection.execute(sources).mappings()]
    if copies:
        connection.execute(insert(fact_sources), copies)


def add_sources(
    connection: Connection, owner: UUID, fact: UUID, session: UUID, ranges: Sequence[tuple[int, int]]
) -> None:
    """Add ranges of turns to the sources of a fact. Together they are one more support of it."""
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
    """Return all versions of all facts that have one of these turns as a source.

    Each row has the columns `from_seq` and `upto_seq` of that source as well.
    """
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
    """Raise the revision of the owner's facts and return it, so that a running consolidation compares again.

    Call it first in a transaction: it locks the owner, so that changes of one fact run one after another, and a forget
    runs completely before or after them.
    """
    statement = update(owners).where(owners.c.owner == owner).values(facts_rev=owners.c.facts_rev + 1)
    return connection.execute(statement.returning(owners.c.facts_rev)).scalar_one_or_none() or 0


def revision(connection: Connection, owner: UUID) -> int:
    """Return the revision of the owner's facts."""
    return int(connection.execute(select(owners.c.facts_rev).where(owners.c.owner == owner)).scalar_one())


def to_memories(connection: Connection, rows: Sequence[AnyRow], user: str | None) -> list[Memory]:
    """Return facts as models of the contract, with their sources.

    Args:
        user: The reader, as the user of the facts. Shared facts name their writer instead.
    """
    sources = _sources(connection, rows)
    return [_to_shared(row) if row.shared else _to_memory(row, user, sources.get(row.fact, [])) for row in rows]


def _sources(connection: Connection, rows: Sequence[AnyRow]) -> dict[UUID, list[SourceRange]]:
    found: dict[UUID, list[SourceRange]] = {}
    for fact, session_id, from_seq, upto_seq in _SOURCES.all(connection, [(row.owner, row.fact) for row in rows]):
        found.setdefault(fact, []).append(SourceRange(session_id=session_id, from_seq=from_seq, upto_seq=upto_seq))
    return found


def _to_shared(row: AnyRow) -> Memory:
    """Return a shared fact, which names its writer, without the writer's session and sources."""
    return _to_memory(row, row.writer, []).model_copy(update={"session_id": None})


def _to_memory(row: AnyRow, user: str | None, sources: list[SourceRange]) -> Memory:
    return Memory.model_construct(  # validated at the write
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


def _not_expired(now: int) -> Any:
    return or_(facts.c.expires_at.is_(None), facts.c.expires_at > now, facts.c.pinned)


def current(now: int) -> Any:
    """Return the condition that a fact is neither superseded nor expired."""
    return and_(facts.c.valid_to.is_(None), _not_expired(now))


def get(connection: Connection, owner: UUID, fact: UUID) -> AnyRow:
    """Return the row of a fact that exists."""
    return connection.execute(select(facts).where(facts.c.owner == owner, facts.c.fact == fact)).one()


def by_keys(connection: Connection, owner: UUID | None, keys: Sequence[UUID]) -> Sequence[AnyRow]:
    """Return the current facts with these keys: of an owner, or of the shared partition if the owner is None."""
    rows = [(key,) for key in keys]
    return _SHARED.all(connection, rows) if owner is None else _OWN.all(connection, rows, owner=owner)


def send_citations(connection: Connection, owner: UUID) -> Pending[list[Any]]:
    """Send for the sources of all versions of an owner's facts.

    The rows are (fact, valid_from, valid_to, session, from_seq, upto_seq).
    """
    return _CITED.send(connection, owner=owner)


def send_history(connection: Connection, scope: ScopeFilter, at: int) -> Pending[list[Any]]:
    """Send for the superseded versions that were valid at the time `at` and are visible to the scope."""
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
