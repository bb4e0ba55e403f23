"""A reference model of which caller reads and erases what, written from the documentation and without service code.

distance(item, reader) = session if user, agent and session match; agent if user and agent match; user if the user
matches; otherwise store. An item is visible if its distance is within the requested level and within its visibility.

A session, thread or id that a request names is reachable at every ceiling. Selecting or listing across sessions
requires ceiling `agent`, and so do items of a framework's store, which have no session. What another agent of the
user contributed requires ceiling `user`.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("session", "agent", "user", "store")
SELF = None
"""The user of an agent that acts for itself: a separate owner for each agent."""


@dataclass(frozen=True)
class Item:
    """A memory and its origin. A turn and a thread have a session, a fact may have one, and an item of a framework's
    store has none. `tool` is the tool that returned a turn."""

    kind: str
    user: str | None
    agent: str
    session: str | None
    visibility: str
    tool: str | None = None


@dataclass(frozen=True)
class Reader:
    """A caller: its user, agent, ceiling, and session."""

    user: str | None
    agent: str
    ceiling: str
    session: str | None = None

    @property
    def default_level(self) -> str:
        return min("agent", self.ceiling, key=LEVELS.index)

    def refused(self, level: str | None) -> bool:
        """Return whether a level is refused: above the ceiling, or `session` without a session."""
        if level is None:
            level = self.default_level
        return LEVELS.index(level) > LEVELS.index(self.ceiling) or (level == "session" and self.session is None)

    def sees(self, item: Item, level: str | None) -> bool:
        """Return whether a recall or a list at this level returns the item."""
        reach = LEVELS.index(level or self.default_level)
        return self._distance(item) <= min(reach, LEVELS.index(item.visibility))

    def manages(self, item: Item) -> bool:
        """Return whether the caller reads, changes and erases the item by id: all items of its agent, and at ceiling
        `user` those of the user's other agents with visibility `user`."""
        if not self._same_user(item):
            return False
        return item.agent == self.agent or (self.ceiling == "user" and item.visibility == "user")

    def erases(self, item: Item, level: str) -> bool:
        """Return whether a forget at this level erases the item, which does not depend on its visibility."""
        return self._same_user(item) and (level == "user" or item.agent == self.agent)

    def spans(self, level: str = "agent") -> bool:
        """Return whether the caller may select, list or erase across sessions (`agent`) or across agents (`user`)."""
        return LEVELS.index(level) <= LEVELS.index(self.ceiling)

    def holds(self, item: Item) -> bool:
        """Return whether an item of a framework's store, or a thread, belongs to this user and agent."""
        return self._same_user(item) and item.agent == self.agent

    def may_forget_source(self, kind: str, name: str) -> bool:
        """Return whether a forget by this source is allowed."""
        if kind == "session":
            return True
        return self.spans("user" if kind == "agent" and name != self.agent else "agent")

    def erases_source(self, item: Item, kind: str, name: str) -> bool:
        """Return whether an allowed forget by this source erases the item."""
        if not self._same_user(item) or (item.agent != self.agent and not self.spans("user")):
            return False
        if kind == "session":
            return item.agent == self.agent and item.session == name
        return item.agent == name if kind == "agent" else item.tool == name

    def _distance(self, item: Item) -> int:
        if not self._same_user(item):
            return LEVELS.index("store")
        if item.agent != self.agent:
            return LEVELS.index("user")
        return LEVELS.index("session" if self.session is not None and item.session == self.session else "agent")

    def _same_user(self, item: Item) -> bool:
        return item.user == self.user and (self.user is not SELF or item.agent == self.agent)
