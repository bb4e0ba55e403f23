"""Erasure in every tier. Each function runs inside the one transaction of a forget and returns what it removed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, func, or_, select, update

from threefold_server.storage import erasures, index
from threefold_server.storage.tables import (
    digests,
    fact_sources,
    facts,
    owners,
    sessions,
    tasks,
    turns,
)
from threefold_server.storage.tasks import schedule

Counts = Counter[str]
LATE_WRITER_MICROS = 7 * 86_400 * 1_000_000
"""Late writers of erased turns are stopped for 7 days: longer than any client spools."""


def erase_sessions(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase whole sessions (a condition on `sessions`) with all that was derived from them alone."""
    target = select(sessions.c.session).where(sessions.c.owner == owner, condition)
    within = and_(turns.c.owner == owner, turns.c.session.in_(target))
    _stop_late_writers(connection, owner, within, now)
    counts = Counter(
        turns=_count(connection, select(func.count()).where(within, turns.c.erased.is_(False))),
        digests=_count(connection, select(func.count()).where(digests.c.owner == owner, digests.c.session.in_(target))),
    )
    counts += _erase_unsupported_facts(
        connection,
        owner,
        supports=and_(fact_sources.c.owner == owner, fact_sources.c.session.in_(target)),
        contributed=and_(facts.c.owner == owner, facts.c.session.in_(target)),
    )
    counts["index"] += index.remove(connection, owner, target)
    connection.execute(delete(tasks).where(tasks.c.owner == owner, tasks.c.subject.in_(target)))
    counts["sessions"] += connection.execute(delete(sessions).where(sessions.c.owner == owner, condition)).rowcount
    return counts


def erase_facts(connection: Connection, owner: UUID, condition: ColumnElement[bool]) -> Counts:
    """Erase facts (a condition on `facts`), each with every version of its history."""
    roots = select(facts.c.root).where(facts.c.owner == owner, condition)
    ids = select(facts.c.fact).where(facts.c.owner == owner, facts.c.root.in_(roots))
    found = list(connection.execute(ids).scalars())
    counts: Counts = Counter()
    for start in range(0, len(found), 1_000):
        batch = found[start : start + 1_000]
        counts["index"] += index.remove(connection, owner, batch)
        counts["facts"] += connection.execute(
            delete(facts).where(facts.c.owner == owner, facts.c.fact.in_(batch))
        ).rowcount
    return counts


def blank_turns(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase the content of turns (a condition on `turns`) but keep their place, and all that rested on them."""
    within = and_(turns.c.owner == owner, condition, turns.c.erased.is_(False))
    _stop_late_writers(connection, owner, within, now)
    places: dict[UUID, list[int]] = defaultdict(list)
    for session, seq in connection.execute(select(turns.c.session, turns.c.seq).where(within)):
        places[session].append(seq)
    counts: Counts = Counter()
    for session, seqs in places.items():
        counts += _blank_in_session(connection, owner, session, sorted(seqs), now)
    return counts


def erase_owner(connection: Connection, owner: UUID) -> None:
    """Remove the owner's own row, and with it its name, once nothing is left of it."""
    connection.execute(delete(owners).where(owners.c.owner == owner))


def next_epoch(connection: Connection, owner: UUID) -> None:
    """Void every consolidation of this owner that is under way."""
    connection.execute(
        update(owners)
        .where(owners.c.owner == owner)
        .values(erase_epoch=owners.c.erase_epoch + 1, facts_rev=owners.c.facts_rev + 1)
    )


def drop_digests(connection: Connection, owner: UUID, session: UUID, from_seq: int, now: int) -> int:
    """Drop the digest versions that cover a turn from `from_seq` on; the rest is folded anew."""
    dropped = connection.execute(
        delete(digests).where(digests.c.owner == owner, digests.c.session == session, digests.c.upto_seq >= from_seq)
    ).rowcount
    if dropped:
        covered = (
            select(func.coalesce(func.max(digests.c.covered_tokens), 0))
            .where(digests.c.owner == owner, digests.c.session == session)
            .scalar_subquery()
        )
        connection.execute(
            update(sessions)
            .where(sessions.c.owner == owner, sessions.c.session == session)
            .values(digested_tokens=covered)
        )
        schedule(connection, owner, session, "fold", now)
    return dropped


def _blank_in_session(connection: Connection, owner: UUID, session: UUID, seqs: Sequence[int], now: int) -> Counts:
    here = and_(turns.c.owner == owner, turns.c.session == session, turns.c.seq.in_(seqs))
    tokens = _count(connection, select(func.coalesce(func.sum(turns.c.tokens), 0)).where(here))
    touched = or_(*(and_(fact_sources.c.from_seq <= seq, fact_sources.c.upto_seq >= seq) for seq in seqs))
    counts = _erase_unsupported_facts(
        connection, owner, supports=and_(fact_sources.c.owner == owner, fact_sources.c.session == session, touched)
    )
    counts["digests"] += drop_digests(connection, owner, session, seqs[0], now)
    counts["index"] += index.remove(connection, owner, [session], seqs)
    counts["turns"] += connection.execute(
        update(turns)
        .where(here)
        .values(erased=True, content="", payload=None, name=None, turn_group=None, tokens=0, turn_id=None)
    ).rowcount
    connection.execute(
        update(sessions)
        .where(sessions.c.owner == owner, sessions.c.session == session)
        .values(tokens=sessions.c.tokens - tokens)
    )
    return counts


def _erase_unsupported_facts(
    connection: Connection,
    owner: UUID,
    *,
    supports: ColumnElement[bool],
    contributed: ColumnElement[bool] | None = None,
) -> Counts:
    """Take away supports (a condition on `fact_sources`); facts that nothing supports any more go with them."""
    lost = set(connection.execute(select(fact_sources.c.fact).where(supports)).scalars())
    connection.execute(delete(fact_sources).where(supports))
    if contributed is not None:
        lost |= set(connection.execute(select(facts.c.fact).where(contributed)).scalars())
    if not lost:
        return Counter()
    supported = select(fact_sources.c.fact).where(fact_sources.c.owner == owner)
    return erase_facts(connection, owner, and_(facts.c.fact.in_(lost), facts.c.fact.not_in(supported)))


def _stop_late_writers(connection: Connection, owner: UUID, within: ColumnElement[bool], now: int) -> None:
    statement = select(turns.c.session, turns.c.turn_id).where(within, turns.c.turn_id.is_not(None))
    pairs = ((row.session, row.turn_id) for row in connection.execute(statement))
    erasures.mark_erased(connection, owner, pairs, now + LATE_WRITER_MICROS)


def _count(connection: Connection, statement: Select[Any]) -> int:
    return int(connection.execute(statement).scalar_one())
