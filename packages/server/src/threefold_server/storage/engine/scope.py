"""The owner and scope filter as SQL: the only translation of a `ScopeFilter` into conditions."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Table, and_, bindparam, false, func, or_, true

from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.storage.engine.tables import facts, passages, sessions, turns


class Scoped(NamedTuple):
    """The columns of anything that has an owner, a place and a visibility."""

    owner: Column[UUID]
    agent: Column[str]
    session: Column[UUID]
    visibility: Column[int]


BEYOND = Reach.store
"""A visibility above every item's: items are visible to at most their user."""

FACTS = Scoped(facts.c.owner, facts.c.agent, facts.c.session, facts.c.visibility)
PASSAGES = Scoped(passages.c.owner, passages.c.agent, passages.c.session, passages.c.visibility)
EPISODES = Scoped(turns.c.owner, sessions.c.agent, turns.c.session, turns.c.visibility)
"""A turn has its place through its session."""


def visible(columns: Scoped) -> ColumnElement[bool]:
    """Items within the asked reach and within their own visibility; the values come from `visible_to`.

    The distance of an item is `session` in the reader's session, `agent` under the reader's agent, else `user`.
    """
    # Postgres keeps no statistics of names, and takes a plain comparison for one row of 200: to list ten turns it then
    # read all 8,000 of their user and sorted them. This form counts as one row of two.
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
    """The values of `visible`: what lies beyond the reach needs a visibility that nothing has."""
    return {
        "owner": scope.owner,
        "agent": scope.agent,
        "session": scope.session,
        "agent_floor": int(Reach.agent if scope.reach >= Reach.agent else BEYOND),
        "user_floor": int(Reach.user if scope.reach >= Reach.user else BEYOND),
    }


def managed(columns: Scoped, scope: ScopeFilter) -> ColumnElement[bool]:
    """Items that the caller may read by id, change and erase.

    Those of its agent whatever their visibility, and beyond that what the user's other agents let be seen.
    """
    if scope.reach < Reach.user:
        return and_(columns.owner == scope.owner, columns.agent == scope.agent)
    return and_(columns.owner == scope.owner, or_(columns.agent == scope.agent, columns.visibility >= int(Reach.user)))


def erasable(table: Table, scope: ScopeFilter) -> ColumnElement[bool]:
    """Rows (of a table with `owner` and `agent`) that a forget at this reach erases, whatever their visibility."""
    within = table.c.agent == scope.agent if scope.reach < Reach.user else true()
    return and_(table.c.owner == scope.owner, within)
