"""Session rows: created by the first write, locked by every write, listed by their owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    and_,
    bindparam,
    func,
    select,
    tuple_,
    update,
)

from threefold.contract import Session
from threefold_server.clock import from_micros
from threefold_server.rules.access import Principal, Reach, ScopeFilter
from threefold_server.rules.paging import PAGE_CHARS, fill_page
from threefold_server.storage.engine.prepared import Pending, Prepared
from threefold_server.storage.engine.statements import insert_for
from threefold_server.storage.engine.tables import owners, sessions
from threefold_server.storage.engine.types import AnyRow, row_value

STATES_AT_ONCE = 10  # a state has up to 4 million characters


@dataclass(frozen=True)
class SessionRow:
    """The counters of a session, read under its lock."""

    last_seq: int
    revision: int
    tokens: int
    digested_tokens: int


def ensure_owner(connection: Connection, principal: Principal, now: int) -> None:
    """Create the owner's row if it is missing, and restore its name if a forget erased it."""
    values = {"owner": principal.owner, "name": principal.owner_name}
    _ENSURE_OWNER.run(connection, **values, kind=principal.owner_kind, created_at=now)
    _RESTORE_NAME.run(connection, which=values["owner"], known_as=values["name"])


def lock_owner(connection: Connection, owner: UUID) -> None:
    """Lock the owner's row: other transactions that call this wait, and so does a forget."""
    connection.execute(select(owners.c.owner).where(owners.c.owner == owner).with_for_update(key_share=True))


def send_lock(connection: Connection, scope: ScopeFilter, session_id: str, now: int) -> Pending[SessionRow]:
    """Send the statement that creates the session if needed and locks its row, so that its writers take turns."""
    values = {"owner": scope.owner, "session": scope.session, "agent": scope.agent, "session_id": session_id}
    rows = _LOCK.send(connection, **values, created_at=now, updated_at=now)
    return lambda: SessionRow(*rows()[0])


def advance(connection: Connection, owner: UUID, session: UUID, *, turns: int, tokens: int) -> None:
    """Add appended turns to the session's counters; each append is one revision."""
    _ADVANCE.run(connection, own=owner, which=session, more_turns=turns, more_tokens=tokens)


def send_turn_count(connection: Connection, owner: UUID) -> Pending[int]:
    """Send the count of an owner's turns in all sessions."""
    rows = _TURN_COUNT.send(connection, owner=owner)
    return lambda: rows()[0].held


def state_of(connection: Connection, owner: UUID, session: UUID) -> str | None:
    """Return the state that a framework keeps with the session, or None."""
    return _STATE.all(connection, own=owner, which=session)[0].state


def set_state(connection: Connection, owner: UUID, session: UUID, state: str, *, is_revision: bool) -> None:
    """Replace the state of a session.

    Args:
        is_revision: Whether to count a revision; False if turns appended in the same write have counted it.
    """
    _SET_STATE.run(connection, own=owner, which=session, text=state, more=1 if is_revision else 0)


def find_session(connection: Connection, owner: UUID, session: UUID) -> AnyRow | None:
    """Return the row of one session, or None."""
    return connection.execute(select(sessions).where(own_session(owner, session))).one_or_none()


def own_session(owner: UUID, session: UUID) -> ColumnElement[bool]:
    """Return the condition for one session of one owner."""
    return and_(sessions.c.owner == owner, sessions.c.session == session)


def list_sessions(
    connection: Connection, scope: ScopeFilter, after: tuple[int, UUID] | None, limit: int, *, state: bool
) -> tuple[list[tuple[tuple[int, str], Session]], int]:
    """Return a page of sessions of the scope with their positions, the last written first; see `fill_page`."""
    columns = [column for column in sessions.c if state or column.name != "state"]
    statement = select(*columns).where(sessions.c.owner == scope.owner)
    if scope.reach < Reach.user:
        statement = statement.where(sessions.c.agent == scope.agent)
    if after is not None:
        statement = statement.where(tuple_(sessions.c.updated_at, sessions.c.session) < row_value(*after))
    newest = statement.order_by(sessions.c.updated_at.desc(), sessions.c.session.desc()).limit(limit + 1)
    with connection.execute(newest, execution_options={"yield_per": STATES_AT_ONCE} if state else {}) as rows:
        placed = (((row.updated_at, row.session.hex), _to_contract(row)) for row in rows)
        return fill_page(placed, limit, lambda found: len(found[1].state or ""), PAGE_CHARS)


def _to_contract(row: AnyRow) -> Session:
    return Session(
        session_id=row.session_id,
        agent=row.agent,
        turns=row.turns,
        tokens=row.tokens,
        last_seq=row.last_seq,
        revision=row.revision,
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
        state=getattr(row, "state", None),
    )


def _ensure_owner(dialect: str) -> Any:
    names = ("owner", "kind", "name", "created_at")
    return insert_for(dialect, owners).values({name: bindparam(name) for name in names}).on_conflict_do_nothing()


def _lock(dialect: str) -> Any:
    names = ("owner", "session", "agent", "session_id", "created_at", "updated_at")
    statement = insert_for(dialect, sessions).values({name: bindparam(name) for name in names})
    return statement.on_conflict_do_update(
        index_elements=["owner", "session"], set_={"updated_at": statement.excluded.updated_at}
    ).returning(*COUNTERS)


OWN = and_(sessions.c.owner == bindparam("own"), sessions.c.session == bindparam("which"))
"""The condition for the session of the parameters `own` (owner) and `which` (session)."""

COUNTERS = (sessions.c.last_seq, sessions.c.revision, sessions.c.tokens, sessions.c.digested_tokens)
"""The columns of a `SessionRow`."""

ADVANCED = {
    "last_seq": sessions.c.last_seq + bindparam("more_turns", type_=Integer),
    "turns": sessions.c.turns + bindparam("more_turns", type_=Integer),
    "tokens": sessions.c.tokens + bindparam("more_tokens", type_=BigInteger),
    "revision": sessions.c.revision + 1,
}
"""The counters that an append changes."""

_ENSURE_OWNER = Prepared(_ensure_owner)
# Not part of the upsert: it would lock the row even without a change, and all writers of one owner would wait for it.
_RESTORE_NAME = Prepared(
    update(owners).where(owners.c.owner == bindparam("which"), owners.c.name == "").values(name=bindparam("known_as"))
)
_LOCK = Prepared(_lock)
_TURN_COUNT = Prepared(
    select(func.coalesce(func.sum(sessions.c.turns), 0).label("held")).where(sessions.c.owner == bindparam("owner"))
)
_STATE = Prepared(select(sessions.c.state).where(OWN))
_SET_STATE = Prepared(
    update(sessions).where(OWN).values(state=bindparam("text"), revision=sessions.c.revision + bindparam("more"))
)
_ADVANCE = Prepared(update(sessions).where(OWN).values(ADVANCED))
