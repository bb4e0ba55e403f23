"""Rows of beliefs and their events, and the models of the contract that are made of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, insert, select, true, tuple_

from threefold.contract.beliefs import Belief, BeliefEvent, Reason, Standing, Verdict
from threefold_server.clock import from_micros
from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.storage.engine.scope import BELIEFS, managed, visible, visible_to
from threefold_server.storage.engine.tables import belief_events, beliefs
from threefold_server.storage.engine.types import AnyRow, row_value
from threefold_server.storage.knowledge.belief_standing import (
    Change,
    State,
    add_events,
    add_support,
    dependents,
    of_beliefs,
    states,
    supports,
)

AS_OF = ("statement", "falsification", "confidence", "verdict", "supported", "revision")
"""What a belief is at an earlier moment: the columns of its event."""


class Wanted(NamedTuple):
    """The part of a list of beliefs that a request asks for."""

    verdict: Verdict | None = None
    standing: Standing | None = None
    as_of: int | None = None
    after: tuple[int, UUID] | None = None
    limit: int = 50


def add(connection: Connection, values: Mapping[str, Any], sets: Sequence[Collection[UUID]], change: Change) -> AnyRow:
    """Insert a belief with its support and its first event; return its row."""
    connection.execute(insert(beliefs).values(values))
    add_support(connection, values["owner"], values["belief"], sets)
    add_events(connection, of_beliefs(values["owner"], [values["belief"]]), change)
    return get(connection, values["owner"], values["belief"])


def get(connection: Connection, owner: UUID, belief: UUID) -> AnyRow:
    """Return the row of a belief that exists."""
    return connection.execute(select(beliefs).where(of_beliefs(owner, [belief]))).one()


def find(connection: Connection, scope: ScopeFilter, keys: Collection[UUID]) -> dict[UUID, AnyRow]:
    """Return the beliefs with these keys that the caller may read by id."""
    chosen = and_(managed(BELIEFS, scope), beliefs.c.belief.in_(keys))
    return {row.belief: row for row in connection.execute(select(beliefs).where(chosen))}


def page(connection: Connection, scope: ScopeFilter, wanted: Wanted) -> list[AnyRow]:
    """Return the visible beliefs after a position, the newest first, and one more than the page has if there is."""
    source, at = (beliefs, beliefs) if wanted.as_of is None else (_as_of(wanted.as_of), belief_events)
    verdict = true() if wanted.verdict is None else at.c.verdict == wanted.verdict
    standing = true() if wanted.standing is None else at.c.supported.is_(wanted.standing == "supported")
    order = (beliefs.c.created_at, beliefs.c.belief)
    further = true() if wanted.after is None else tuple_(*order) < row_value(*wanted.after)
    columns = [at.c[column.name] if column.name in AS_OF else column for column in beliefs.c]
    if wanted.as_of is not None:
        columns = [column for column in columns if column is not beliefs.c.updated_at]
        columns.append(belief_events.c.created_at.label("updated_at"))
    statement = select(*columns).select_from(source).where(visible(BELIEFS), verdict, standing, further)
    newest = statement.order_by(*(column.desc() for column in order)).limit(wanted.limit + 1)
    return [*connection.execute(newest, visible_to(scope)).all()]


def history(connection: Connection, owner: UUID, belief: UUID) -> list[BeliefEvent]:
    """Return the events of a belief, oldest first."""
    own = and_(belief_events.c.owner == owner, belief_events.c.belief == belief)
    rows = connection.execute(select(belief_events).where(own).order_by(belief_events.c.revision))
    return [
        BeliefEvent(
            at=from_micros(row.created_at),
            cause_id=row.cause_id and row.cause_id.hex,
            standing=standing_of(row.supported),
            **{name: getattr(row, name) for name in ("revision", "agent", "cause", "confidence", "verdict")},
            **{name: getattr(row, name) for name in ("statement", "falsification")},
        )
        for row in rows
    ]


def visible_dependents(connection: Connection, scope: ScopeFilter, belief: UUID) -> list[AnyRow]:
    """Return the beliefs that rest on a belief and that the caller may read by id, the oldest first."""
    found = find(connection, scope, dependents(connection, scope.owner, [belief])).values()
    return sorted(found, key=lambda row: (row.created_at, row.belief))


def to_beliefs(
    connection: Connection, rows: Sequence[AnyRow], user: str | None, as_of: int | None = None
) -> list[Belief]:
    """Return rows of one owner as models of the contract, with the reasons as they were at a moment."""
    if not rows:
        return []
    sets = supports(connection, rows[0].owner, [row.belief for row in rows])
    members = {member for support in sets.values() for some in support for member in some}
    known = states(connection, rows[0].owner, members, as_of)
    return [_to_belief(row, sets.get(row.belief, []), known, user) for row in rows]


def standing_of(is_supported: bool) -> Standing:
    """Return the standing of a belief as the contract names it."""
    return "supported" if is_supported else "unsupported"


def _to_belief(row: AnyRow, sets: Sequence[Sequence[UUID]], known: Mapping[UUID, State], user: str | None) -> Belief:
    members = dict.fromkeys(member for some in sets for member in some)
    reasons = [] if row.supported else [_reason(member, known) for member in members]
    return Belief(
        id=row.belief.hex,
        standing=standing_of(row.supported),
        because=[reason for reason in reasons if reason is not None],
        support=[[member.hex for member in some] for some in sets],
        kind="assumption" if row.assumption else "hypothesis",
        context=json.loads(row.context),
        user=user,
        visibility=Reach(row.visibility).name,  # pyright: ignore[reportArgumentType]
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
        valid_from=from_micros(row.valid_from),
        valid_to=from_micros(row.valid_to) if row.verdict == "falsified" and row.valid_to is not None else None,
        **{name: getattr(row, name) for name in ("statement", "falsification", "confidence", "verdict")},
        **{name: getattr(row, name) for name in ("agent", "session_id", "origin", "trust", "revision")},
    )


def _reason(member: UUID, known: Mapping[UUID, State]) -> Reason | None:
    state = known.get(member)
    if state is not None and state.holds:
        return None
    kind = "forgotten" if state is None else "falsified" if state.falsified else "unsupported"
    return Reason(belief_id=member.hex, reason=kind)


def _as_of(moment: int) -> Any:
    """Return beliefs joined with their newest event at a moment."""
    latest = (
        select(belief_events.c.owner, belief_events.c.belief, func.max(belief_events.c.revision).label("revision"))
        .where(belief_events.c.owner == bindparam("owner"), belief_events.c.created_at <= moment)
        .group_by(belief_events.c.owner, belief_events.c.belief)
        .subquery()
    )
    same: ColumnElement[bool] = and_(belief_events.c.owner == latest.c.owner, belief_events.c.belief == latest.c.belief)
    own = and_(beliefs.c.owner == belief_events.c.owner, beliefs.c.belief == belief_events.c.belief)
    return beliefs.join(belief_events, own).join(latest, and_(same, belief_events.c.revision == latest.c.revision))
