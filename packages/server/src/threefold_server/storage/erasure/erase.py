"""Erasure in every tier. Each function runs inside the one transaction of a forget and counts the rows it erases."""

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
    beliefs,
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
from threefold_server.storage.erasure import erased_ids
from threefold_server.storage.knowledge import belief_standing
from threefold_server.storage.memories import index, revisions
from threefold_server.storage.sessions.tasks import schedule
from threefold_server.storage.threads.threads import Thread, checkpoint_mark, checkpoint_marks, lock, namespace_key

T = TypeVar("T")
Counts = Counter[str]
AT_ONCE = 1_000  # values in one condition; SQLite accepts 32,766 per statement
BLANKED_AT_ONCE = 200  # each turn is one condition, and SQLite allows expressions of depth 1,000
LATE_WRITER_MICROS = 7 * DAY
"""The time for which late writes of erased turns are refused: longer than any client spools."""


def erase_sessions(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase whole sessions (a condition on `sessions`) and everything that was derived from them only."""
    counts: Counts = Counter()
    for batch in _batches(_lock_sessions(connection, owner, condition)):
        counts += _erase_locked(connection, owner, batch, now)
    return counts


def erase_facts(connection: Connection, owner: UUID, condition: ColumnElement[bool]) -> Counts:
    """Erase facts (a condition on `facts`), each with all of its versions."""
    roots = select(facts.c.root).where(facts.c.owner == owner, condition)
    ids = select(facts.c.fact).where(facts.c.owner == owner, facts.c.root.in_(roots))
    found = list(connection.execute(ids).scalars())
    counts: Counts = Counter()
    for batch in _batches(found):
        bar_sources(connection, owner, batch)
        counts += _delete_facts(connection, owner, batch)
    return counts


def erase_items(connection: Connection, owner: UUID, condition: ColumnElement[bool]) -> Counts:
    """Erase items (a condition on `items`)."""
    chosen = select(items.c.item).where(items.c.owner == owner, condition).order_by(items.c.item).with_for_update()
    counts: Counts = Counter()
    for batch in _batches(list(connection.execute(chosen).scalars())):
        counts["index"] += index.remove(connection, owner, batch)
        of_batch = and_(items.c.owner == owner, items.c.item.in_(batch))
        counts["items"] += connection.execute(delete(items).where(of_batch)).rowcount
    return counts


def erase_beliefs(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase beliefs (a condition on `beliefs`) with their history and experiments.

    Beliefs that rest on them stay, and become unsupported where no other support set holds.
    """
    found = list(connection.execute(select(beliefs.c.belief).where(beliefs.c.owner == owner, condition)).scalars())
    counts: Counts = Counter()
    for batch in _batches(found):
        chosen = belief_standing.of_beliefs(owner, batch)
        counts["beliefs"] += connection.execute(delete(beliefs).where(chosen)).rowcount
    changed = belief_standing.recompute(connection, owner, found, belief_standing.Change(now, "forgotten"))
    counts["unsupported_beliefs"] = len(changed.unsupported)
    return counts


def bar_sources(connection: Connection, owner: UUID, keys: Sequence[UUID]) -> None:
    """Bar the sources of facts from extraction, so that a rebuild does not bring deleted facts back."""
    of_facts = and_(fact_sources.c.owner == owner, fact_sources.c.fact.in_(keys))
    start = (fact_sources.c.owner, fact_sources.c.session, fact_sources.c.from_seq)
    ranges = select(*start, func.max(fact_sources.c.upto_seq)).where(of_facts).group_by(*start)
    columns = ["owner", "session", "from_seq", "upto_seq"]
    statement = insert_into(connection, barred_sources).from_select(columns, ranges)
    longest = case(
        (statement.excluded.upto_seq > barred_sources.c.upto_seq, statement.excluded.upto_seq),
        else_=barred_sources.c.upto_seq,
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["owner", "session", "from_seq"], set_={"upto_seq": longest})
    )


def blank_turns(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase the content of turns (a condition on `turns`), and what was derived from it. The numbers of turns stay."""
    within = and_(turns.c.owner == owner, condition, turns.c.erased.is_(False))
    found = connection.execute(select(turns.c.session, turns.c.seq, turns.c.turn_id).where(within)).all()
    by_session: dict[UUID, list[int]] = defaultdict(list)
    for row in found:
        by_session[row.session].append(row.seq)
    for batch in _batches(sorted(by_session)):
        _lock_sessions(connection, owner, sessions.c.session.in_(batch))
    _stop_late_writers(connection, owner, found, now)
    counts: Counts = Counter()
    for session, seqs in by_session.items():
        for batch in _batches(sorted(seqs), BLANKED_AT_ONCE):
            counts += _blank_in_session(connection, owner, session, batch, now)
    return counts


def erase_threads(connection: Connection, owner: UUID, condition: ColumnElement[bool], now: int) -> Counts:
    """Erase threads (a condition on `threads`) with all their checkpoints."""
    counts: Counts = Counter()
    for thread in lock(connection, and_(threads.c.owner == owner, condition)):
        marks = [(thread.key, mark) for mark in checkpoint_marks(connection, thread)]
        erased_ids.mark_erased(connection, owner, marks, now + LATE_WRITER_MICROS)
        counts["checkpoints"] += connection.execute(delete(checkpoints).where(thread.rows(checkpoints))).rowcount
        counts["threads"] += connection.execute(delete(threads).where(thread.rows(threads))).rowcount
    return counts


def refuse_late_checkpoint(connection: Connection, thread: Thread, ns: str, checkpoint_id: str, now: int) -> None:
    """Mark a checkpoint that came too late as erased, as if it had been erased with its thread.

    Its writes may have come before it and created the thread again: they are deleted.
    """
    namespace = namespace_key(ns)
    mark = (thread.key, checkpoint_mark(namespace, checkpoint_id))
    erased_ids.mark_erased(connection, thread.owner, [mark], now + LATE_WRITER_MICROS)
    of_checkpoint = and_(checkpoint_writes.c.place == namespace, checkpoint_writes.c.checkpoint_id == checkpoint_id)
    connection.execute(delete(checkpoint_writes).where(thread.rows(checkpoint_writes), of_checkpoint))
    empty = not_(or_(*(exists().where(thread.rows(table)) for table in (checkpoints, checkpoint_writes))))
    connection.execute(delete(threads).where(thread.rows(threads), empty))


def erase_owner(connection: Connection, owner: UUID, now: int) -> None:
    """Delete the owner's name and open work, once nothing else is left.

    The row stays as long as the marks of erased turns, one of which is added for this: late writers reference it.
    """
    erased_ids.mark_erased(connection, owner, [(owner, "")], now + LATE_WRITER_MICROS)
    connection.execute(delete(tasks).where(tasks.c.owner == owner))
    connection.execute(update(owners).where(owners.c.owner == owner).values(name=""))


def raise_epoch(connection: Connection, owner: UUID) -> None:
    """Raise the epoch of an owner: no running consolidation stores its result, and processes drop its index."""
    connection.execute(
        update(owners)
        .where(owners.c.owner == owner)
        .values(
            erase_epoch=owners.c.erase_epoch + 1,
            facts_rev=owners.c.facts_rev + 1,
            index_rev=owners.c.index_rev + 1,
            index_cut=owners.c.index_rev + 1,
        )
    )


def delete_digests(connection: Connection, owner: UUID, session: UUID, from_seq: int, now: int) -> int:
    """Delete the digest versions that cover a turn from `from_seq` on, and fold the other turns again."""
    deleted = connection.execute(
        delete(digests).where(digests.c.owner == owner, digests.c.session == session, digests.c.upto_seq >= from_seq)
    ).rowcount
    if deleted:
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
    return deleted


def _lock_sessions(connection: Connection, owner: UUID, condition: ColumnElement[bool]) -> list[UUID]:
    """Lock sessions against writers, so that all turns that are erased are seen and marked.

    All transactions lock sessions before tasks; otherwise writers and forgets would deadlock.
    """
    chosen = select(sessions.c.session).where(sessions.c.owner == owner, condition)
    return list(connection.execute(chosen.order_by(sessions.c.session).with_for_update()).scalars())


def _batches(items: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _erase_locked(connection: Connection, owner: UUID, keys: Sequence[UUID], now: int) -> Counts:
    within = and_(turns.c.owner == owner, turns.c.session.in_(keys))
    found = connection.execute(select(turns.c.session, turns.c.turn_id, turns.c.erased).where(within)).all()
    _stop_late_writers(connection, owner, found, now)
    digest_count = select(func.count()).where(digests.c.owner == owner, digests.c.session.in_(keys))
    counts = Counter(turns=sum(not row.erased for row in found), digests=_count(connection, digest_count))
    counts += _erase_unsupported_facts(
        connection,
        owner,
        now,
        supports=and_(fact_sources.c.owner == owner, fact_sources.c.session.in_(keys)),
        of_sessions=and_(facts.c.owner == owner, facts.c.session.in_(keys)),
    )
    counts["index"] += index.remove(connection, owner, keys)
    connection.execute(delete(tasks).where(tasks.c.owner == owner, tasks.c.subject.in_(keys)))
    condition = and_(sessions.c.owner == owner, sessions.c.session.in_(keys))
    counts["sessions"] += connection.execute(delete(sessions).where(condition)).rowcount
    return counts


def _blank_in_session(connection: Connection, owner: UUID, session: UUID, seqs: Sequence[int], now: int) -> Counts:
    chosen = and_(turns.c.owner == owner, turns.c.session == session, turns.c.seq.in_(seqs))
    tokens = _count(connection, select(func.coalesce(func.sum(turns.c.tokens), 0)).where(chosen))
    overlapping = or_(*(and_(fact_sources.c.from_seq <= seq, fact_sources.c.upto_seq >= seq) for seq in seqs))
    counts = _erase_unsupported_facts(
        connection,
        owner,
        now,
        supports=and_(fact_sources.c.owner == owner, fact_sources.c.session == session, overlapping),
    )
    counts["digests"] += delete_digests(connection, owner, session, seqs[0], now)
    counts["index"] += index.remove(connection, owner, [session], seqs)
    counts["turns"] += connection.execute(
        update(turns)
        .where(chosen)
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
    of_sessions: ColumnElement[bool] | None = None,
) -> Counts:
    """Delete supports of facts, and the facts that have no support left.

    Args:
        supports: A condition on `fact_sources`. A support is deleted as a whole, with its other ranges of turns.
        of_sessions: A condition on `facts` for the facts of erased sessions. Saved facts of other sessions need no
            support.
    """
    deleted = connection.execute(select(fact_sources.c.fact, fact_sources.c.support).where(supports)).all()
    for batch in _batches(sorted({(row.fact, row.support) for row in deleted})):
        of_batch = tuple_(fact_sources.c.fact, fact_sources.c.support).in_(batch)
        connection.execute(delete(fact_sources).where(fact_sources.c.owner == owner, of_batch))
    candidates = {row.fact for row in deleted}
    kept = select(facts.c.fact).where(facts.c.owner == owner, facts.c.extracted_by.is_(None))
    if of_sessions is not None:
        kept = kept.where(not_(of_sessions))
        candidates |= set(connection.execute(select(facts.c.fact).where(of_sessions)).scalars())
    supported = select(fact_sources.c.fact).where(fact_sources.c.owner == owner)
    counts: Counts = Counter()
    for batch in _batches(sorted(candidates)):
        unsupported = and_(facts.c.fact.in_(batch), facts.c.fact.not_in(supported), facts.c.fact.not_in(kept))
        found = connection.execute(select(facts.c.fact, facts.c.root).where(facts.c.owner == owner, unsupported)).all()
        counts += _delete_facts(connection, owner, [row.fact for row in found])
        revisions.close_gaps(connection, owner, {row.root for row in found}, now)
    return counts


def _delete_facts(connection: Connection, owner: UUID, keys: Sequence[UUID]) -> Counts:
    chosen = and_(facts.c.owner == owner, facts.c.fact.in_(keys))
    return Counter(
        index=index.remove(connection, owner, keys), facts=connection.execute(delete(facts).where(chosen)).rowcount
    )


def _stop_late_writers(connection: Connection, owner: UUID, erased: Sequence[AnyRow], now: int) -> None:
    pairs = ((row.session, row.turn_id) for row in erased if row.turn_id is not None)
    erased_ids.mark_erased(connection, owner, pairs, now + LATE_WRITER_MICROS)


def _count(connection: Connection, statement: Select[Any]) -> int:
    return int(connection.execute(statement).scalar_one())
