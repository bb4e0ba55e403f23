"""The owner and scope filter as SQL: the only translation of a `ScopeFilter` into conditions."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Column, ColumnElement, and_, false, or_, true

from threefold_server.access import Reach, ScopeFilter


class Scoped(Protocol):
    """The columns of anything that has an owner, a place and a visibility (a table's `c`)."""

    @property
    def owner(self) -> Column[UUID]: ...
    @property
    def agent(self) -> Column[str]: ...
    @property
    def session(self) -> Column[Any]: ...
    @property
    def visibility(self) -> Column[int]: ...


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
    return and_(
        columns.owner == scope.owner, or_(columns.agent == scope.agent, columns.visibility >= int(Reach.user))
    )


def erasable(columns: Any, scope: ScopeFilter) -> ColumnElement[bool]:
    """Rows (with `owner` and `agent`) that a forget at this reach erases: all of them, whatever their visibility."""
    within = columns.agent == scope.agent if scope.reach < Reach.user else true()
    return and_(columns.owner == scope.owner, within)
