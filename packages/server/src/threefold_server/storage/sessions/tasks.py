"""Background work as rows: what is due, who holds it, how far it came, and why it stopped.

A task is keyed by (owner, subject, kind): pending work is derived from state, so a crash loses nothing. Whoever works
on one holds its lease, a token that a later holder replaces; nothing is stored without `hold` in the same transaction.

Locks are taken in one order, so that no two transactions wait for each other: owner, session, task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Connection, and_, bindparam, case, func, null, or_, select, update

from threefold.contract import SessionStatus
from threefold_server.clock import from_micros
from threefold_server.storage.engine.prepared import Prepared
from threefold_server.storage.engine.statements import insert_for
from threefold_server.storage.engine.tables import owners, passages, sessions, tasks
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.sessions import digests
from threefold_server.storage.sessions.sessions import own_session

TaskKind = Literal["index", "embed", "fold", "extract"]
"""Words into the index; their vectors (apart, as these may wait for a model); turns into digests; turns into facts."""

MAX_ATTEMPTS = 8


class LeaseLost(Exception):
    """Somebody else holds the task now, or a forget came between: what was worked out must not be stored."""


@dataclass(frozen=True)
class Claim:
    """A task that we hold. `upto` is its watermark and `erase_epoch` the owner's, both as they were when we read."""

    owner: UUID
    subject: UUID
    kind: TaskKind
    upto: int
    lease: UUID
    erase_epoch: int


def folds(tokens: Any, digested: Any, added: Any, above: Any) -> Any:
    """Whether the tokens of a session that no digest covers pass a mark; of numbers, or of columns."""
    return tokens + added - digested > above


def extracts(tokens: Any, added: Any, every: Any) -> Any:
    """Whether so many tokens have come once more; of numbers, or of columns."""
    return tokens // every != (tokens + added) // every


def schedule(connection: Connection, owner: UUID, subject: UUID, kind: TaskKind, due_at: int) -> None:
    """Make a task due, unless it is due already (or waits for its next attempt) or is parked."""
    _SCHEDULE.run(connection, owner=owner, subject=subject, kind=kind, due_at=due_at)


def restart(connection: Connection, owner: UUID, subject: UUID, kind: TaskKind, due_at: int) -> None:
    """Make a task due, and void what a worker is making of what was there before."""
    schedule(connection, owner, subject, kind, due_at)
    own = and_(tasks.c.owner == owner, tasks.c.subject == subject, tasks.c.kind == kind)
    connection.execute(update(tasks).where(own).values(lease=None, lease_until=None))


def appoint(connection: Connection, owner: UUID, subject: UUID, kind: TaskKind, due_at: int, now: int) -> None:
    """Make a task due at a moment, in place of any later or earlier one that has not come yet. One that is due, waits
    for its next attempt or is parked stays as it is."""
    _APPOINT.run(connection, owner=owner, subject=subject, kind=kind, due_at=due_at, now=now)


def or_make_due(statement: Any) -> Any:
    """An insert of tasks that makes those that are there due instead, unless they are due earlier, wait for their next
    attempt or are parked. One due later without a failure was made so before the clock was set back."""
    later = and_(tasks.c.failure.is_(None), tasks.c.due_at > statement.excluded.due_at)
    due = case(
        (tasks.c.parked.is_not(None), null()),
        (later, statement.excluded.due_at),
        else_=func.coalesce(tasks.c.due_at, statement.excluded.due_at),
    )
    return statement.on_conflict_do_update(index_elements=["owner", "subject", "kind"], set_={"due_at": due})


def or_appoint(statement: Any) -> Any:
    """An insert of tasks that moves those whose moment has not come yet."""
    due = case(
        (tasks.c.parked.is_not(None), null()),
        (or_(tasks.c.attempts > 0, tasks.c.due_at <= bindparam("now", type_=BigInteger)), tasks.c.due_at),
        else_=statement.excluded.due_at,
    )
    return statement.on_conflict_do_update(index_elements=["owner", "subject", "kind"], set_={"due_at": due})


def hold(connection: Connection, claim: Claim) -> AnyRow | None:
    """Lock everything that a commit rests on and check that it is as it was; returns the session, if the task has one.

    The owner is locked against a forget, which must come wholly before or after; the session against its writers, so
    that none is lost between reading the newest turn and being done.
    """
    epoch = select(owners.c.erase_epoch).where(owners.c.owner == claim.owner).with_for_update(read=True)
    if connection.execute(epoch).scalar_one_or_none() != claim.erase_epoch:
        raise LeaseLost("a forget came between")
    session = select(sessions).where(own_session(claim.owner, claim.subject)).with_for_update(key_share=True)
    found = connection.execute(session).one_or_none()
    task = select(tasks.c.lease, tasks.c.upto).where(_own(claim)).with_for_update()
    if connection.execute(task).one_or_none() != (claim.lease, claim.upto):
        raise LeaseLost("another worker took over")
    return found


def advance(connection: Connection, claim: Claim, upto: int) -> Claim:
    """Note progress: it moves the watermark and makes earlier failures void."""
    _update(connection, claim, upto=upto, attempts=0, failure=None)
    return replace(claim, upto=upto)


def finish(connection: Connection, claim: Claim, due_at: int | None = None) -> None:
    """Give the task back as done, or due again where more work came meanwhile."""
    _update(connection, claim, due_at=due_at, lease=None, lease_until=None, attempts=0, failure=None)


def failed_attempts(connection: Connection, claim: Claim) -> int:
    """How often in a row the task failed so far."""
    return connection.execute(select(tasks.c.attempts).where(_held(claim))).scalar_one_or_none() or 0


def retry_later(connection: Connection, claim: Claim, attempts: int, due_at: int, failure: str) -> None:
    """Give the task back for another attempt, after `attempts` failed ones."""
    _update(connection, claim, due_at=due_at, lease=None, lease_until=None, attempts=attempts, failure=failure)


def postpone(connection: Connection, claim: Claim, due_at: int, reason: str) -> None:
    """Give the task back until a moment before which it is not to be tried; that is no failed attempt."""
    _update(connection, claim, due_at=due_at, lease=None, lease_until=None, failure=reason)


def park(connection: Connection, claim: Claim, reason: str) -> None:
    """Give the task up until a person asks for it again."""
    _update(connection, claim, due_at=None, lease=None, lease_until=None, parked=reason)


def extend(connection: Connection, claim: Claim, until: int) -> bool:
    """Keep a lease alive; False if it is no longer ours."""
    return _update(connection, claim, lease_until=until)


def release(connection: Connection, claim: Claim) -> None:
    """Give the task back as it is: still due, for anybody."""
    _update(connection, claim, lease=None, lease_until=None)


def status(connection: Connection, owner: UUID, session: UUID, last_seq: int, now: int) -> SessionStatus:
    """How far the work on a session has come, and what it waits for."""
    statement = select(tasks).where(tasks.c.owner == owner, tasks.c.subject == session).order_by(tasks.c.kind)
    rows = connection.execute(statement).all()
    upto = {row.kind: row.upto for row in rows}
    digest = digests.latest(connection, owner, session)
    state, reason = _state(rows, now)
    return SessionStatus(
        last_seq=last_seq,
        indexed_upto=_indexed_upto(connection, owner, session, upto.get("index", 0)),
        digested_upto=digest.upto_seq if digest else 0,
        extracted_upto=upto.get("extract", 0),
        state=state,
        reason=reason,
    )


def _indexed_upto(connection: Connection, owner: UUID, session: UUID, words: int) -> int:
    """Turns have their vectors up to the first passage that still waits for one."""
    statement = select(func.min(passages.c.seq)).where(
        passages.c.owner == owner, passages.c.source == session, passages.c.embedder.is_(None)
    )
    waiting = connection.execute(statement).scalar_one()
    return words if waiting is None else min(words, waiting - 1)


def _state(rows: Sequence[AnyRow], now: int) -> tuple[Literal["idle", "pending", "running", "parked"], str | None]:
    for row in rows:
        if row.parked is not None:
            return "parked", f"{row.kind}: {row.parked}"
    if any(row.lease is not None and row.lease_until > now for row in rows):
        return "running", None
    for row in rows:
        if row.due_at is not None and row.failure is not None:
            at = from_micros(row.due_at).isoformat(timespec="seconds")
            return "pending", f"{row.kind}: attempt {row.attempts + 1} of {MAX_ATTEMPTS} follows at {at}: {row.failure}"
    due = any(row.due_at is not None and row.due_at <= now for row in rows)
    return "pending" if due else "idle", None


def _own(claim: Claim) -> ColumnElement[bool]:
    return and_(tasks.c.owner == claim.owner, tasks.c.subject == claim.subject, tasks.c.kind == claim.kind)


def _held(claim: Claim) -> ColumnElement[bool]:
    return and_(_own(claim), tasks.c.lease == claim.lease)


def _update(connection: Connection, claim: Claim, **values: Any) -> bool:
    """Change the task as long as we hold it; False if we do not."""
    return connection.execute(update(tasks).where(_held(claim)).values(**values)).rowcount == 1


def _schedule(dialect: str) -> Any:
    return or_make_due(_insert(dialect))


def _appoint(dialect: str) -> Any:
    return or_appoint(_insert(dialect))


def _insert(dialect: str) -> Any:
    names = ("owner", "subject", "kind", "due_at")
    return insert_for(dialect, tasks).values({name: bindparam(name) for name in names})


_SCHEDULE = Prepared(_schedule)
_APPOINT = Prepared(_appoint)
