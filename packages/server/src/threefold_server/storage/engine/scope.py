"""Conditions on owner, agent, session and visibility: the only translation of a `ScopeFilter` into SQL."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Table, and_, bindparam, false, func, or_, true

from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.storage.engine.tables import beliefs, facts, passages, sessions, turns


class Scoped(NamedTuple):
    """The columns that decide who may read a row."""

    owner: Column[UUID]
    agent: Column[str]
    session: Column[UUID]
    visibility: Column[int]


BEYOND = Reach.store
"""A visibility above that of every memory, whose visibility is `user` at most."""

FACTS = Scoped(facts.c.owner, facts.c.agent, facts.c.session, facts.c.visibility)
BELIEFS = Scoped(beliefs.c.owner, beliefs.c.agent, beliefs.c.session, beliefs.c.visibility)
PASSAGES = Scoped(passages.c.owner, passages.c.agent, passages.c.session, passages.c.visibility)
TURNS = Scoped(turns.c.owner, sessions.c.agent, turns.c.session, turns.c.visibility)
"""The agent of a turn is a column of its session."""


def visible(columns: Scoped) -> ColumnElement[bool]:
    """Return the condition that a row is within the reach of the request and within its own visibility.

    The values come from `visible_to`. The level that a reader needs for a row is `session` for rows of the reader's
    session, `agent` for other rows of the reader's agent, and `user` for all others.
    """
    # Postgres keeps no statistics of names and estimates that a plain comparison selects one row of 200: to list ten
    # turns it then read and sorted all 8,000 turns of their user. It estimates that this form selects one row of two.
    same_agent = func.coalesce(columns.agent == bindparam("agent"), false())
    return and_(
        columns.owner == bindparam("owner"),
        or_(
            and_(same_agent, columns.session == bindparam("session")),
            and_(same_agent, columns.visibility >= bindparam("agent_floor")),
            columns.visibility >= bindparam("user_floor"),
        ),
    )


def visible_to(scope: ScopeFilter) -> dict[str, Any]:
    """Return the values for `visible`. Beyond the reach, the required visibility is one that no row has."""
    return {
        "owner": scope.owner,
        "agent": scope.agent,
        "session": scope.session,
        "agent_floor": int(Reach.agent if scope.reach >= Reach.agent else BEYOND),
        "user_floor": int(Reach.user if scope.reach >= Reach.user else BEYOND),
    }


def managed(columns: Scoped, scope: ScopeFilter) -> ColumnElement[bool]:
    """Return the condition for rows that the caller may read by id, change and erase.

    These are all rows of its agent, and the rows of the user's other agents that have the visibility `user`.
    """
    if scope.reach < Reach.user:
        return and_(columns.owner == scope.owner, columns.agent == scope.agent)
    return and_(columns.owner == scope.owner, or_(columns.agent == scope.agent, columns.visibility >= int(Reach.user)))


def erasable(table: Table, scope: ScopeFilter) -> ColumnElement[bool]:
    """Return the condition for rows that a forget at this reach erases, whatever their visibility."""
    within = table.c.agent == scope.agent if scope.reach < Reach.user else true()
    return and_(table.c.owner == scope.owner, within)
