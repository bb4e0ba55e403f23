"""Background work as rows: which tasks are due, which worker has the lease, the watermark, and the last failure.

The key of a task is (owner, subject, kind). Pending work is derived from stored state, so a crash loses nothing. A
worker that claims a task gets its lease, a token that the next claim replaces. A worker stores results only in a
transaction that calls `confirm_lease`, which checks the lease.

Locks are taken in the order owner, session, task, so that transactions do not deadlock.
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

TaskKind = Literal["index", "embed", "fold", "extract"]
"""`index` adds words to the search index, `embed` computes vectors (apart, as it may wait for a model), `fold` makes
digests of turns, `extract` draws facts from turns."""

MAX_ATTEMPTS = 8


class LeaseLost(Exception):
    """Another worker claimed the task, or a forget ran meanwhile: the result must not be stored."""


@dataclass(frozen=True)
class Claim:
    """A task that this worker has claimed. `upto` (its watermark) and `erase_epoch` (its owner's) are as claimed."""

    owner: UUID
    subject: UUID
    kind: TaskKind
    upto: int
    lease: UUID
    erase_epoch: int


def folds(tokens: Any, digested: Any, added: Any, above: Any) -> Any:
    """Return whether a fold is due: the undigested tokens of a session exceed `above`. Takes numbers or columns."""
    return tokens + added - digested > above


def extracts(tokens: Any, added: Any, every: Any) -> Any:
    """Return whether an extraction is due: the tokens passed a multiple of `every`. Takes numbers or columns."""
    return tokens // every != (tokens + added) // every


def schedule(connection: Connection, owner: UUID, subject: UUID, kind: TaskKind, due_at: int) -> None:
    """Make a task due at `due_at`, unless it is due earlier, waits for its next attempt or is parked."""
    _SCHEDULE.run(connection, owner=owner, subject=subject, kind=kind, due_at=due_at)


def restart(connection: Connection, owner: UUID, subject: UUID, kind: TaskKind, due_at: int) -> None:
    """Make a task due and end its lease, so that a running worker cannot store results from outdated rows."""
    schedule(connection, owner, subject, kind, due_at)
    own = and_(tasks.c.owner == owner, tasks.c.subject == subject, tasks.c.kind == kind)
    connection.execute(update(tasks).where(own).values(lease=None, lease_until=None))


def reschedule(connection: Connection, owner: UUID, subject: UUID, kind: TaskKind, due_at: int, now: int) -> None:
    """Make a task due at `due_at` and not at another time in the future that was set before.

    A task that is due now, waits for its next attempt or is parked does not change.
    """
    _RESCHEDULE.run(connection, owner=owner, subject=subject, kind=kind, due_at=due_at, now=now)


def or_make_due(statement: Any) -> Any:
    """Return an insert of tasks that makes existing ones due as `schedule` does.

    A task that is due later without a failure got its time before the clock was set back.
    """
    later = and_(tasks.c.failure.is_(None), tasks.c.due_at > statement.excluded.due_at)
    due = case(
        (tasks.c.parked.is_not(None), null()),
        (later, statement.excluded.due_at),
        else_=func.coalesce(tasks.c.due_at, statement.excluded.due_at),
    )
    return statement.on_conflict_do_update(index_elements=["owner", "subject", "kind"], set_={"due_at": due})


def or_reschedule(statement: Any) -> Any:
    """Return an insert of tasks that moves existing ones as `reschedule` does."""
    due = case(
        (tasks.c.parked.is_not(None), null()),
        (or_(tasks.c.attempts > 0, tasks.c.due_at <= bindparam("now", type_=BigInteger)), tasks.c.due_at),
        else_=statement.excluded.due_at,
    )
    return statement.on_conflict_do_update(index_elements=["owner", "subject", "kind"], set_={"due_at": due})


def confirm_lease(connection: Connection, claim: Claim) -> AnyRow | None:
    """Lock the rows of a claimed task and check that this worker may store its result.

    The lock on the owner keeps a forget out until the commit. The lock on the session keeps writers out, so that no
    turn is missed between the read of the newest turn and the end of the task.

    Returns:
        The row of the session, or None if the subject of the task is not a session.

    Raises:
        LeaseLost: Another worker claimed the task, or a forget ran since the claim.
    """
    if _EPOCH.all(connection, key_owner=claim.owner) != [(claim.erase_epoch,)]:
        raise LeaseLost("a forget ran since the claim")
    found = _SESSION.all(connection, key_owner=claim.owner, key_subject=claim.subject)
    if _LEASE.all(connection, **_key(claim)) != [(claim.lease, claim.upto)]:
        raise LeaseLost("another worker claimed the task")
    return found[0] if found else None


def advance(connection: Connection, claim: Claim, upto: int) -> Claim:
    """Move the watermark of the task and reset its failed attempts."""
    _ADVANCE.run(connection, **_key(claim), key_lease=claim.lease, reached=upto)
    return replace(claim, upto=upto)


def complete(connection: Connection, claim: Claim, due_at: int | None = None) -> None:
    """Complete the task: it is not due, or due at `due_at` if more work has come meanwhile."""
    _COMPLETE.run(connection, **_key(claim), key_lease=claim.lease, next_due=due_at)


def failed_attempts(connection: Connection, claim: Claim) -> int:
    """Return the number of failed attempts since the last progress."""
    return connection.execute(select(tasks.c.attempts).where(_leased(claim))).scalar_one_or_none() or 0


def retry_later(connection: Connection, claim: Claim, attempts: int, due_at: int, failure: str) -> None:
    """Release the task for another attempt at `due_at`, after `attempts` failed ones."""
    _update(connection, claim, due_at=due_at, lease=None, lease_until=None, attempts=attempts, failure=failure)


def postpone(connection: Connection, claim: Claim, due_at: int, reason: str) -> None:
    """Release the task until `due_at`, without counting a failed attempt."""
    _update(connection, claim, due_at=due_at, lease=None, lease_until=None, failure=reason)


def park(connection: Connection, claim: Claim, reason: str) -> None:
    """Park the task, with the reason, until somebody retries it."""
    _update(connection, claim, due_at=None, lease=None, lease_until=None, parked=reason)


def extend(connection: Connection, claim: Claim, until: int) -> bool:
    """Extend the lease; return False if another worker has it."""
    return _update(connection, claim, lease_until=until)


def release(connection: Connection, claim: Claim) -> None:
    """Release the task unchanged: it stays due, for any worker."""
    _update(connection, claim, lease=None, lease_until=None)


def status(connection: Connection, owner: UUID, session: UUID, last_seq: int, now: int) -> SessionStatus:
    """Return the watermarks of a session and the state of its tasks."""
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
    """Return the last turn before the first passage without a vector."""
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


def _leased(claim: Claim) -> ColumnElement[bool]:
    return and_(_own(claim), tasks.c.lease == claim.lease)


def _key(claim: Claim) -> dict[str, Any]:
    return {"key_owner": claim.owner, "key_subject": claim.subject, "key_kind": claim.kind}


def _update(connection: Connection, claim: Claim, **values: Any) -> bool:
    """Change the task if this worker has its lease; return whether it has."""
    return connection.execute(update(tasks).where(_leased(claim)).values(**values)).rowcount == 1


def _schedule(dialect: str) -> Any:
    return or_make_due(_insert(dialect))


def _reschedule(dialect: str) -> Any:
    return or_reschedule(_insert(dialect))


def _insert(dialect: str) -> Any:
    names = ("owner", "subject", "kind", "due_at")
    return insert_for(dialect, tasks).values({name: bindparam(name) for name in names})


_SCHEDULE = Prepared(_schedule)
_RESCHEDULE = Prepared(_reschedule)

_KEY = [tasks.c[name] == bindparam(f"key_{name}") for name in ("owner", "subject", "kind")]
_WITH_LEASE = update(tasks).where(*_KEY, tasks.c.lease == bindparam("key_lease"))
# As `index.raise_revision` takes the lock: two tasks that held a weaker one would wait for each other.
_EPOCH = Prepared(
    select(owners.c.erase_epoch).where(owners.c.owner == bindparam("key_owner")).with_for_update(key_share=True)
)
_SESSION = Prepared(
    select(sessions)
    .where(sessions.c.owner == bindparam("key_owner"), sessions.c.session == bindparam("key_subject"))
    .with_for_update(key_share=True)
)
_LEASE = Prepared(select(tasks.c.lease, tasks.c.upto).where(*_KEY).with_for_update())
_ADVANCE = Prepared(_WITH_LEASE.values(upto=bindparam("reached"), attempts=0, failure=null()))
_COMPLETE = Prepared(
    _WITH_LEASE.values(due_at=bindparam("next_due"), lease=null(), lease_until=null(), attempts=0, failure=null())
)
