"""Erasure in every tier. Each function runs inside the one transaction of a forget and returns what it removed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
    tuple_,
    update,
)

from threefold_server.clock import DAY
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import (
    barred_sources,
    checkpoint_writes,
    checkpoints,
    digests,
    fact_sources,
    facts,
    items,
    owners,
    sessions,
    tasks,
    threads,
    turns,
)
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.erasure import erasures
from threefold_server.storage.memories import index, revisions
from threefold_server.storage.sessions.tasks import schedule
from threefold_server.storage.threads.threads import Thread, lock, mark, marks_of, place_key

T = TypeVar("T")
Counts = Counter[str]
AT_ONCE = 1_000  # values of one condition; SQLite takes 32,766 in all
BLANKED_AT_ONCE = 200  # each becomes a condition, and SQLite allows expressions of depth 1,000
LATE_WRITER_MICROS = 7 * DAY
"""Late writers of erased turns are stopped for 7 days: longer than any client spools."""


def erase_sessions(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase whole sessions (a condition on `sessions`) with all that was derived from them alone."""
    counts: Counts = Counter()
    for batch in _batches(_lock_sessions(connection, owner, condition)):
        counts += _erase_locked(connection, owner, batch, now)
    return counts


def erase_facts(connection: Connection, owner: UUID, condition: ColumnElement[bool]) -> Counts:
    """Erase facts (a condition on `facts`), each with every version of its history."""
    roots = select(facts.c.root).where(facts.c.owner == owner, condition)
    ids = select(facts.c.fact).where(facts.c.owner == owner, facts.c.root.in_(roots))
    found = list(connection.execute(ids).scalars())
    counts: Counts = Counter()
    for batch in _batches(found):
        bar_sources(connection, owner, batch)
        counts += _delete_facts(connection, owner, batch)
    return counts


def erase_items(connection: Connection, owner: UUID, condition: ColumnElement[bool]) -> Counts:
    """Erase items of frameworks' stores (a condition on `items`)."""
    chosen = select(items.c.item).where(items.c.owner == owner, condition).order_by(items.c.item).with_for_update()
    counts: Counts = Counter()
    for batch in _batches(list(connection.execute(chosen).scalars())):
        counts["index"] += index.remove(connection, owner, batch)
        these = and_(items.c.owner == owner, items.c.item.in_(batch))
        counts["items"] += connection.execute(delete(items).where(these)).rowcount
    return counts


def bar_sources(connection: Connection, owner: UUID, these: Sequence[UUID]) -> None:
    """Let the turns that facts rest on give none again: what somebody took out must not come back by a rebuild."""
    of_these = and_(fact_sources.c.owner == owner, fact_sources.c.fact.in_(these))
    place = (fact_sources.c.owner, fact_sources.c.session, fact_sources.c.from_seq)
    ranges = select(*place, func.max(fact_sources.c.upto_seq)).where(of_these).group_by(*place)
    columns = ["owner", "session", "from_seq", "upto_seq"]
    statement = insert_into(connection, barred_sources).from_select(columns, ranges)
    longer = case(
        (statement.excluded.upto_seq > barred_sources.c.upto_seq, statement.excluded.upto_seq),
        else_=barred_sources.c.upto_seq,
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["owner", "session", "from_seq"], set_={"upto_seq": longer})
    )


def blank_turns(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase the content of turns (a condition on `turns`) but keep their place, and all that rested on them."""
    within = and_(turns.c.owner == owner, condition, turns.c.erased.is_(False))
    found = connection.execute(select(turns.c.session, turns.c.seq, turns.c.turn_id).where(within)).all()
    places: dict[UUID, list[int]] = defaultdict(list)
    for row in found:
        places[row.session].append(row.seq)
    for batch in _batches(sorted(places)):
        _lock_sessions(connection, owner, sessions.c.session.in_(batch))
    _stop_late_writers(connection, owner, found, now)
    counts: Counts = Counter()
    for session, seqs in places.items():
        for batch in _batches(sorted(seqs), BLANKED_AT_ONCE):
            counts += _blank_in_session(connection, owner, session, batch, now)
    return counts


def erase_threads(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase threads of graphs (a condition on `threads`) with all their checkpoints."""
    counts: Counts = Counter()
    for thread in lock(connection, and_(threads.c.owner == owner, condition)):
        marks = [(thread.key, known) for known in marks_of(connection, thread)]
        erasures.mark_erased(connection, owner, marks, now + LATE_WRITER_MICROS)
        counts["checkpoints"] += connection.execute(delete(checkpoints).where(thread.rows(checkpoints))).rowcount
        counts["threads"] += connection.execute(delete(threads).where(thread.rows(threads))).rowcount
    return counts


def refuse_late(connection: Connection, thread: Thread, ns: str, checkpoint_id: str, now: int) -> None:
    """Refuse a checkpoint that came too late, whatever names it, as if it had been erased with its thread.

    Writes on top of it may have come before it, and have begun the thread anew: they go.
    """
    place = place_key(ns)
    erasures.mark_erased(connection, thread.owner, [(thread.key, mark(place, checkpoint_id))], now + LATE_WRITER_MICROS)
    of_it = and_(checkpoint_writes.c.place == place, checkpoint_writes.c.checkpoint_id == checkpoint_id)
    connection.execute(delete(checkpoint_writes).where(thread.rows(checkpoint_writes), of_it))
    empty = not_(or_(*(exists().where(thread.rows(table)) for table in (checkpoints, checkpoint_writes))))
    connection.execute(delete(threads).where(thread.rows(threads), empty))


def erase_owner(connection: Connection, owner: UUID, now: int) -> None:
    """Delete the owner's name and open work, once nothing else is left.

    The row stays as long as the marks of erased turns, one of which is added for this: late writers reference it.
    """
    erasures.mark_erased(connection, owner, [(owner, "")], now + LATE_WRITER_MICROS)
    connection.execute(delete(tasks).where(tasks.c.owner == owner))
    connection.execute(update(owners).where(owners.c.owner == owner).values(name=""))


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


def _lock_sessions(connection: Connection, owner: UUID, condition: ColumnElement[bool]) -> list[UUID]:
    """Wait for the writers of these sessions and let no other begin, so that whatever goes has been seen and marked.

    Sessions before tasks, like everybody: writers and forgets would wait for each other otherwise.
    """
    chosen = select(sessions.c.session).where(sessions.c.owner == owner, condition)
    return list(connection.execute(chosen.order_by(sessions.c.session).with_for_update()).scalars())


def _batches(items: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _erase_locked(connection: Connection, owner: UUID, these: Sequence[UUID], now: int) -> Counts:
    within = and_(turns.c.owner == owner, turns.c.session.in_(these))
    found = connection.execute(select(turns.c.session, turns.c.turn_id, turns.c.erased).where(within)).all()
    _stop_late_writers(connection, owner, found, now)
    of_these = select(func.count()).where(digests.c.owner == owner, digests.c.session.in_(these))
    counts = Counter(turns=sum(not row.erased for row in found), digests=_count(connection, of_these))
    counts += _erase_unsupported_facts(
        connection,
        owner,
        now,
        supports=and_(fact_sources.c.owner == owner, fact_sources.c.session.in_(these)),
        contributed=and_(facts.c.owner == owner, facts.c.session.in_(these)),
    )
    counts["index"] += index.remove(connection, owner, these)
    connection.execute(delete(tasks).where(tasks.c.owner == owner, tasks.c.subject.in_(these)))
    condition = and_(sessions.c.owner == owner, sessions.c.session.in_(these))
    counts["sessions"] += connection.execute(delete(sessions).where(condition)).rowcount
    return counts


def _blank_in_session(connection: Connection, owner: UUID, session: UUID, seqs: Sequence[int], now: int) -> Counts:
    here = and_(turns.c.owner == owner, turns.c.session == session, turns.c.seq.in_(seqs))
    tokens = _count(connection, select(func.coalesce(func.sum(turns.c.tokens), 0)).where(here))
    touched = or_(*(and_(fact_sources.c.from_seq <= seq, fact_sources.c.upto_seq >= seq) for seq in seqs))
    counts = _erase_unsupported_facts(
        connection, owner, now, supports=and_(fact_sources.c.owner == owner, fact_sources.c.session == session, touched)
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
        .values(tokens=sessions.c.tokens - tokens, turns=sessions.c.turns - len(seqs))
    )
    return counts


def _erase_unsupported_facts(
    connection: Connection,
    owner: UUID,
    now: int,
    *,
    supports: ColumnElement[bool],
    contributed: ColumnElement[bool] | None = None,
) -> Counts:
    """Take away supports (a condition on `fact_sources`), each with all the turns it is made of; facts that nothing
    supports any more go with them. What somebody saved stands by itself, until its session goes."""
    torn = connection.execute(select(fact_sources.c.fact, fact_sources.c.support).where(supports)).all()
    for batch in _batches(sorted({(row.fact, row.support) for row in torn})):
        parts = tuple_(fact_sources.c.fact, fact_sources.c.support).in_(batch)
        connection.execute(delete(fact_sources).where(fact_sources.c.owner == owner, parts))
    lost = {row.fact for row in torn}
    saved = select(facts.c.fact).where(facts.c.owner == owner, facts.c.extracted_by.is_(None))
    if contributed is not None:
        saved = saved.where(not_(contributed))
        lost |= set(connection.execute(select(facts.c.fact).where(contributed)).scalars())
    supported = select(fact_sources.c.fact).where(fact_sources.c.owner == owner)
    counts: Counts = Counter()
    for batch in _batches(sorted(lost)):
        alone = and_(facts.c.fact.in_(batch), facts.c.fact.not_in(supported), facts.c.fact.not_in(saved))
        gone = connection.execute(select(facts.c.fact, facts.c.root).where(facts.c.owner == owner, alone)).all()
        counts += _delete_facts(connection, owner, [row.fact for row in gone])
        revisions.close_gaps(connection, owner, {row.root for row in gone}, now)
    return counts


def _delete_facts(connection: Connection, owner: UUID, these: Sequence[UUID]) -> Counts:
    of_these = and_(facts.c.owner == owner, facts.c.fact.in_(these))
    return Counter(
        index=index.remove(connection, owner, these), facts=connection.execute(delete(facts).where(of_these)).rowcount
    )


def _stop_late_writers(connection: Connection, owner: UUID, gone: Sequence[AnyRow], now: int) -> None:
    pairs = ((row.session, row.turn_id) for row in gone if row.turn_id is not None)
    erasures.mark_erased(connection, owner, pairs, now + LATE_WRITER_MICROS)


def _count(connection: Connection, statement: Select[Any]) -> int:
    return int(connection.execute(statement).scalar_one())
