"""The owner and scope filter as SQL: the only translation of a `ScopeFilter` into conditions."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Table, and_, false, or_, true

from threefold_server.access import Reach, ScopeFilter
from threefold_server.storage.tables import facts, passages, sessions, turns


class Scoped(NamedTuple):
    """The columns of anything that has an owner, a place and a visibility."""

    owner: Column[UUID]
    agent: Column[str]
    session: Column[UUID]
    visibility: Column[int]


FACTS = Scoped(facts.c.owner, facts.c.agent, facts.c.session, facts.c.visibility)
PASSAGES = Scoped(passages.c.owner, passages.c.agent, passages.c.session, passages.c.visibility)
EPISODES = Scoped(turns.c.owner, sessions.c.agent, turns.c.session, turns.c.visibility)
"""A turn has its place through its session."""


def visible(columns: Scoped, scope: ScopeFilter) -> ColumnElement[bool]:
    """Items within the asked reach and within their own visibility.

    The distance of an item is `session` in the reader's session, `agent` under the reader's agent, else `user`.
    """
    same_agent = columns.agent == scope.agent
    in_session = and_(same_agent, columns.session == scope.session) if scope.session else false()
    in_agent = and_(same_agent, columns.visibility >= int(Reach.agent)) if scope.reach >= Reach.agent else false()
    in_user = columns.visibility >= int(Reach.user) if scope.reach >= Reach.user else false()
    return and_(columns.owner == scope.owner, or_(in_session, in_agent, in_user))


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
