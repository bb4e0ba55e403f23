"""All work across owners: claims of tasks, sweeps, counts and rebuilds.

These functions run in the scope "system", in which row-level security shows the rows of all owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    update,
)

from threefold.errors import EmbedderMismatch
from threefold_server.clock import MICROS
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import (
    barred_sources,
    digests,
    erased_turns,
    fact_sources,
    facts,
    items,
    metadata,
    model_use,
    owners,
    passages,
    sessions,
    store,
    tasks,
    threads,
    turns,
)
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.erasure import erase, forget_records
from threefold_server.storage.memories import facts as fact_store
from threefold_server.storage.memories import index
from threefold_server.storage.sessions.tasks import Claim, TaskKind, or_make_due
from threefold_server.text.indexed import fact_passages
from threefold_server.text.item_fields import stored_passages
from threefold_server.text.redaction import Redact

READS_THAT_EXTEND = 10
"""A fact that was read this often is useful: its lifetime is extended once."""

_EMBEDDER = "embedder"


def _parents(table: Table) -> set[Table]:
    return {key.column.table for key in table.foreign_keys}


_HOLDING = (erased_turns, *(t for t in metadata.sorted_tables if owners in _parents(t) and t not in (tasks, model_use)))
"""Tables whose rows keep the row of an erased owner. Its tasks have nothing left to do, its model use no reader."""

_REBUILT: tuple[TaskKind, ...] = ("index", "embed", "fold")


def claim_due(connection: Connection, wanted: Mapping[TaskKind, int], now: int, until: int) -> list[Claim]:
    """Claim due tasks, the longest due first. No two workers get the same task.

    Args:
        wanted: The most tasks to claim of each kind.
        until: The end of the leases (microseconds).
    """
    free = _free(now, until)
    claims = [claim for kind, limit in wanted.items() for claim in _claim(connection, kind, limit, now, free)]
    if claims:
        statement = update(tasks).where(
            *(tasks.c[name] == bindparam(f"key_{name}") for name in ("owner", "subject", "kind"))
        )
        connection.execute(
            statement.values(lease=bindparam("token"), lease_until=until),
            [
                {"key_owner": claim.owner, "key_subject": claim.subject, "key_kind": claim.kind, "token": claim.lease}
                for claim in claims
            ],
        )
    return claims


def can_claim(connection: Connection, kinds: Sequence[TaskKind], now: int, until: int) -> bool:
    """Return whether `claim_due` would claim a task. It only reads, so that no writer waits for it."""
    statement = select(literal(1)).where(tasks.c.kind.in_(kinds), tasks.c.due_at <= now, _free(now, until))
    return connection.execute(statement.limit(1)).first() is not None


def due_tasks(connection: Connection, kinds: Sequence[TaskKind], now: int) -> int:
    """Return the number of tasks that are due or running."""
    statement = select(func.count()).where(tasks.c.kind.in_(kinds), tasks.c.due_at <= now)
    return int(connection.execute(statement).scalar_one())


def task_counts(connection: Connection, now: int) -> Counter[tuple[str, str]]:
    """Return the number of open tasks by kind and state."""
    state = case(
        (tasks.c.parked.is_not(None), "parked"),
        (tasks.c.lease_until > now, "running"),
        (tasks.c.due_at > now, "waiting"),
        else_="due",
    )
    statement = (
        select(tasks.c.kind, state, func.count())
        .where(or_(tasks.c.due_at.is_not(None), tasks.c.parked.is_not(None)))
        .group_by(tasks.c.kind, state)
    )
    return Counter({(kind, name): count for kind, name, count in connection.execute(statement)})


def parked_tasks(connection: Connection) -> Sequence[AnyRow]:
    """Return the number of parked tasks by kind and reason."""
    statement = select(tasks.c.kind, tasks.c.parked, func.count().label("count")).where(tasks.c.parked.is_not(None))
    return connection.execute(statement.group_by(tasks.c.kind, tasks.c.parked).order_by(tasks.c.kind)).all()


def stale_leases(connection: Connection, before: int) -> int:
    """Return the number of leases that ended before a time and were not claimed again."""
    statement = select(func.count()).select_from(tasks).where(tasks.c.lease_until < before)
    return int(connection.execute(statement).scalar_one())


def oldest_due(connection: Connection, now: int) -> int | None:
    """Return the due time of the task that has been due longest without a worker, or None."""
    free = or_(tasks.c.lease.is_(None), tasks.c.lease_until <= now)
    statement = select(func.min(tasks.c.due_at)).where(tasks.c.due_at <= now, tasks.c.parked.is_(None), free)
    return connection.execute(statement).scalar_one()


def newest_write(connection: Connection) -> int | None:
    """Return the time of the last write, by the clock of the server that wrote it."""
    return connection.execute(select(func.max(sessions.c.updated_at))).scalar_one()


def database_clock(connection: Connection) -> int | None:
    """Return the time of the database server; None on SQLite, which uses the clock of this process."""
    if connection.dialect.name == "sqlite":
        return None
    seconds = connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one()
    return int(seconds * MICROS)


def requeue_parked(connection: Connection, now: int) -> int:
    """Make all parked tasks due again; return their number."""
    statement = (
        update(tasks).where(tasks.c.parked.is_not(None)).values(parked=None, due_at=now, attempts=0, failure=None)
    )
    return connection.execute(statement).rowcount


def fold_idle(connection: Connection, since: int, until: int, target: int, now: int) -> None:
    """Queue a fold for sessions last written between two times that have more undigested tokens than the target."""
    idle = sessions.c.updated_at.between(since, until)
    _queue_sessions(connection, "fold", and_(idle, sessions.c.tokens - sessions.c.digested_tokens > target), now)


def sweep_expired_facts(connection: Connection, now: int, limit: int) -> int:
    """Delete up to `limit` expired facts with their passages, except pinned ones; return their number."""
    statement = (
        select(facts.c.owner, facts.c.fact)
        .where(facts.c.expires_at <= now, facts.c.pinned.is_(False))
        .order_by(facts.c.expires_at)
        .limit(limit)
    )
    by_owner: dict[UUID, list[UUID]] = {}
    for owner, fact in connection.execute(statement):
        by_owner.setdefault(owner, []).append(fact)
    for owner, expired in sorted(by_owner.items()):  # one order, so that two sweeps do not wait for each other
        erase.bar_sources(connection, owner, expired)
        index.remove(connection, owner, expired)
        connection.execute(delete(facts).where(facts.c.owner == owner, facts.c.fact.in_(expired)))
    return forget_records.note_deleted(connection, sum(map(len, by_owner.values())), now)


def sweep_expired_items(connection: Connection, now: int, limit: int) -> int:
    """Delete up to `limit` expired items; return their number."""
    expired = select(items.c.owner, items.c.item).where(items.c.expires_at <= now)
    found = connection.execute(expired.order_by(items.c.expires_at).limit(limit)).all()
    for owner in {row.owner for row in found}:
        still = and_(items.c.item.in_([row.item for row in found]), items.c.expires_at <= now)
        erase.erase_items(connection, owner, still)
    return forget_records.note_deleted(connection, len(found), now)


def sweep_erased_turns(connection: Connection, now: int) -> int:
    """Delete the expired marks of erased turns; return their number."""
    return connection.execute(delete(erased_turns).where(erased_turns.c.until <= now)).rowcount


def retire_turns(connection: Connection, before: int, now: int, limit: int) -> int:
    """Erase up to `limit` turns of one owner that are older than a time, as a forget does; return their number."""
    old = and_(turns.c.event_at < before, turns.c.erased.is_(False))
    chosen = select(owners.c.owner).where(exists().where(turns.c.owner == owners.c.owner, old)).limit(1)
    owner = connection.execute(chosen).scalar_one_or_none()
    if owner is None:
        return 0
    oldest = select(turns.c.session, turns.c.seq).where(turns.c.owner == owner, old)
    places = [tuple(row) for row in connection.execute(oldest.order_by(turns.c.event_at).limit(limit))]
    erase.raise_epoch(connection, owner)
    erase.blank_turns(connection, owner, tuple_(turns.c.session, turns.c.seq).in_(places), now)
    return forget_records.note_deleted(connection, len(places), now)


def retire_threads(connection: Connection, before: int, now: int, limit: int) -> int:
    """Erase up to `limit` threads without a write since a time; return the number of selected threads."""
    idle = threads.c.updated_at < before
    oldest = select(threads.c.owner, threads.c.thread).where(idle).order_by(threads.c.updated_at).limit(limit)
    by_owner: dict[UUID, list[UUID]] = {}
    for owner, thread in connection.execute(oldest):
        by_owner.setdefault(owner, []).append(thread)
    for owner, chosen in by_owner.items():
        erase.erase_threads(connection, owner, and_(threads.c.thread.in_(chosen), idle), now)
    return forget_records.note_deleted(connection, sum(map(len, by_owner.values())), now)


def drop_erased_owners(connection: Connection, now: int, limit: int) -> int:
    """Delete up to `limit` owners who were erased and of whom nothing is left, not even a mark of an erased turn.

    The key of an owner is a plain hash of its name, so it must not outlive what it protects.

    Returns:
        The number of deleted owners.
    """
    unused = and_(owners.c.name == "", *(~exists().where(table.c.owner == owners.c.owner) for table in _HOLDING))
    chosen = select(owners.c.owner).where(unused).limit(limit).with_for_update(skip_locked=True)
    found = connection.execute(chosen).scalars().all()
    # Checked again under the lock: a writer may have used the key since the first statement began.
    dropped = connection.execute(delete(owners).where(owners.c.owner.in_(found), unused)).rowcount
    return forget_records.note_deleted(connection, dropped, now)


def add_reads(connection: Connection, counts: Mapping[tuple[UUID, UUID], int], now: int) -> None:
    """Add buffered read counts by (owner, fact), and extend the lifetime of facts that were read often enough."""
    keys = sorted(counts)  # one order for all processes prevents deadlocks
    locked = select(owners.c.owner).where(owners.c.owner.in_({owner for owner, _ in keys})).order_by(owners.c.owner)
    connection.execute(locked.with_for_update(key_share=True)).all()  # before the facts, as every change of one does
    statement = update(facts).where(facts.c.owner == bindparam("key_owner"), facts.c.fact == bindparam("key_fact"))
    connection.execute(
        statement.values(access_count=facts.c.access_count + bindparam("reads")),
        [{"key_owner": owner, "key_fact": fact, "reads": counts[owner, fact]} for owner, fact in keys],
    )
    extended = (
        update(facts)
        .where(
            tuple_(facts.c.owner, facts.c.fact).in_(keys),
            facts.c.access_count >= READS_THAT_EXTEND,
            facts.c.expires_at > now,
            facts.c.pinned.is_(False),
            facts.c.extended.is_(False),
        )
        .values(expires_at=facts.c.expires_at + (facts.c.expires_at - facts.c.created_at), extended=True)
        .returning(facts.c.owner, facts.c.fact, facts.c.expires_at)
    )
    for owner, fact, expires_at in connection.execute(extended).all():
        here = and_(passages.c.owner == owner, passages.c.source == fact)
        rev = index.raise_revision(connection, owner)
        connection.execute(update(passages).where(here).values(expires_at=expires_at, rev=rev))


def held_for_all(connection: Connection, agent: str | None) -> list[str]:
    """Return the tables with rows that an agent (None: any) keeps for all users. No forget of a user reaches them."""

    def holds(table: Table) -> bool:
        theirs = true() if agent is None else table.c.agent == agent
        return bool(connection.execute(select(exists().where(table.c.for_all, theirs))).scalar_one())

    return [table.name for table in (items, threads) if holds(table)]


def claim_embedder(connection: Connection, name: str) -> None:
    """Record the embedder of this store at the first use; raise EmbedderMismatch if it has vectors of another one."""
    connection.execute(insert_into(connection, store).values(name=_EMBEDDER, value=name).on_conflict_do_nothing())
    if (stamp := embedder_stamp(connection)) != name:
        raise EmbedderMismatch(
            f"the vectors of this store were made by {stamp!r}, not by {name!r}; run `threefold reembed`",
            {"stored": stamp, "configured": name},
        )


def embedder_stamp(connection: Connection) -> str | None:
    """Return the name of the store's embedder; None before the first start."""
    return connection.execute(select(store.c.value).where(store.c.name == _EMBEDDER)).scalar_one_or_none()


def vectors_of_others(connection: Connection, embedder: str) -> int:
    """Return the number of vectors of other embedders."""
    statement = select(func.count()).select_from(passages).where(passages.c.embedder != embedder)
    return int(connection.execute(statement).scalar_one())


def owners_with_more_passages(connection: Connection, most: int) -> int:
    """Return how many owners have more than `most` passages in the pool that their recalls search."""
    own = select(passages.c.pool).where(passages.c.pool == passages.c.owner).group_by(passages.c.pool)
    return connection.execute(select(func.count()).select_from(own.having(func.count() > most).subquery())).scalar_one()


def all_owners(connection: Connection) -> list[UUID]:
    """Return all owners, also those whose memory was erased."""
    return list(connection.execute(select(owners.c.owner).order_by(owners.c.created_at)).scalars())


def rebuild_owner(
    connection: Connection, owner: UUID, now: int, trigger: int | None, redact: Redact, *, extract: bool
) -> None:
    """Delete everything that is derived from an owner's turns and facts, and queue the work that makes it again.

    Args:
        trigger: Sessions of more tokens get a digest again; None: no session.
        extract: Whether to also extract facts again, except those that were changed since their extraction.
    """
    fact_store.touch_owner(connection, owner)
    if extract:
        _redraw_facts(connection, owner, now)
    index.remove(connection, owner, select(passages.c.source).where(passages.c.owner == owner))
    connection.execute(delete(digests).where(digests.c.owner == owner))
    connection.execute(update(sessions).where(sessions.c.owner == owner).values(digested_tokens=0, digest_version=0))
    # This deletes the leases as well, so that running workers do not store results from the old state.
    connection.execute(delete(tasks).where(tasks.c.owner == owner, tasks.c.kind.in_(_REBUILT)))
    _queue_sessions(connection, "index", sessions.c.owner == owner, now)
    if trigger is not None:
        _queue_sessions(connection, "fold", and_(sessions.c.owner == owner, sessions.c.tokens > trigger), now)
    for row in connection.execute(select(facts).where(facts.c.owner == owner, fact_store.current(now))).all():
        index.add_fact(connection, row, fact_passages(row.text))
    for row in connection.execute(select(items).where(items.c.owner == owner)).mappings().all():
        place = {str(name): value for name, value in row.items()}
        texts = stored_passages(row["value"], row["fields"], redact)
        index.add_items(connection, [(place, len(texts), None)], embedder="")
    _queue_vectors(connection, passages.c.owner == owner, now)


def queue_extraction(connection: Connection, now: int) -> None:
    """Make the extraction of all sessions with unextracted turns due, also before they are idle.

    Extractions that wait for their next attempt keep waiting.
    """
    done = select(tasks.c.upto).where(
        tasks.c.owner == sessions.c.owner, tasks.c.subject == sessions.c.session, tasks.c.kind == "extract"
    )
    _queue_sessions(connection, "extract", sessions.c.last_seq > func.coalesce(done.scalar_subquery(), 0), now)
    idle_later = and_(tasks.c.kind == "extract", tasks.c.due_at > now, tasks.c.attempts == 0)
    connection.execute(update(tasks).where(idle_later).values(due_at=now))


def drop_vectors(connection: Connection, owner: UUID | None, embedder: str) -> None:
    """Delete the vectors of other embedders, of one owner or (None) of all."""
    affected = select(passages.c.owner).where(passages.c.embedder != embedder).distinct().order_by(passages.c.owner)
    for each in connection.execute(affected).scalars().all() if owner is None else [owner]:
        of_others = and_(passages.c.owner == each, passages.c.embedder != embedder)
        rev = index.raise_revision(connection, each)
        connection.execute(update(passages).where(of_others).values(embedder=None, vector=None, rev=rev))


def replace_embedder(connection: Connection, name: str, now: int) -> None:
    """Change the store's embedder and queue all vectors. Running tasks of the old embedder lose their leases."""
    drop_vectors(connection, None, name)
    statement = insert_into(connection, store).values(name=_EMBEDDER, value=name)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": name}))
    connection.execute(delete(tasks).where(tasks.c.kind == "embed"))
    _queue_vectors(connection, true(), now)


def _redraw_facts(connection: Connection, owner: UUID, now: int) -> None:
    """Delete the facts that can be extracted again, and queue their extraction.

    Facts that were pinned, edited or given metadata stay, and so do facts with several versions. Facts that share
    turns with a deleted fact stay as well, because nothing is extracted from these turns again.
    """
    other = facts.alias()
    revised = exists().where(other.c.owner == owner, other.c.root == facts.c.root, other.c.fact != facts.c.fact)
    barred = exists().where(
        fact_sources.c.owner == owner,
        fact_sources.c.fact == facts.c.fact,
        barred_sources.c.owner == owner,
        barred_sources.c.session == fact_sources.c.session,
        barred_sources.c.from_seq <= fact_sources.c.upto_seq,
        barred_sources.c.upto_seq >= fact_sources.c.from_seq,
    )
    untouched = and_(facts.c.extracted_by.is_not(None), facts.c.pinned.is_(False), facts.c.metadata == "{}")
    connection.execute(delete(facts).where(facts.c.owner == owner, untouched, ~revised, ~barred))
    connection.execute(delete(tasks).where(tasks.c.owner == owner, tasks.c.kind == "extract"))
    _queue_sessions(connection, "extract", sessions.c.owner == owner, now)


def _free(now: int, until: int) -> ColumnElement[bool]:
    """Return the condition for tasks without a valid lease.

    A lease that ends a whole lease time after one given now is older than a change that set the clock back. Without
    this condition, the task of a worker that died would wait until the clock reaches that time again.
    """
    before_the_step = tasks.c.lease_until > until + (until - now)
    return or_(tasks.c.lease.is_(None), tasks.c.lease_until <= now, before_the_step)


def _claim(connection: Connection, kind: TaskKind, limit: int, now: int, free: ColumnElement[bool]) -> list[Claim]:
    statement = (
        select(tasks.c.owner, tasks.c.subject, tasks.c.upto, owners.c.erase_epoch)
        .join_from(tasks, owners, tasks.c.owner == owners.c.owner)
        .where(tasks.c.kind == kind, tasks.c.due_at <= now, free)
        .order_by(tasks.c.due_at)
        .limit(limit)
        .with_for_update(of=tasks, skip_locked=True)
    )
    return [
        Claim(owner, subject, kind, upto, uuid4(), epoch)
        for owner, subject, upto, epoch in connection.execute(statement)
    ]


def _queue_sessions(connection: Connection, kind: TaskKind, which: ColumnElement[bool], now: int) -> None:
    chosen = select(sessions.c.owner, sessions.c.session, literal(kind), literal(now)).where(which)
    _queue(connection, chosen)


def _queue_vectors(connection: Connection, which: ColumnElement[bool], now: int) -> None:
    subject = case((passages.c.seq <= index.OF_FACT, passages.c.owner), else_=passages.c.source)
    chosen = select(passages.c.owner, subject, literal("embed"), literal(now)).distinct()
    _queue(connection, chosen.where(passages.c.embedder.is_(None), which))


def _queue(connection: Connection, chosen: Any) -> None:
    statement = insert_into(connection, tasks).from_select(["owner", "subject", "kind", "due_at"], chosen)
    connection.execute(or_make_due(statement))
