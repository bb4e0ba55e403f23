"""A reference model of who sees what, written from the words of the design and from none of the service's code.

distance(item, reader) = session if user, agent and session match; agent if user and agent match; user if the user
matches; else store. An item is seen when its distance is within the asked level and within its visibility.

What a request names (a session, a thread, an id) it reaches at every ceiling. What it selects or lists without naming
it, and what belongs to no session (items of a framework's store), lies across sessions and needs ceiling `agent`; what
another agent of the user contributed needs ceiling `user`.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("session", "agent", "user", "store")
SELF = None
"""The user of an agent that acts on its own: an owner of its own, which no other agent shares."""


@dataclass(frozen=True)
class Item:
    """One memory and where it came from. An episode and a thread always have a session, a fact may have none, an item
    of a framework's store has none. `tool` is the tool that an episode came from."""

    kind: str
    user: str | None
    agent: str
    session: str | None
    visibility: str
    tool: str | None = None


@dataclass(frozen=True)
class Reader:
    """One caller: whom it speaks for, how far it may read, and the session it is in."""

    user: str | None
    agent: str
    ceiling: str
    session: str | None = None

    @property
    def default_level(self) -> str:
        return min("agent", self.ceiling, key=LEVELS.index)

    def refused(self, level: str | None) -> bool:
        """A level above the ceiling is not read; nor is `session` without one."""
        if level is None:
            level = self.default_level
        return LEVELS.index(level) > LEVELS.index(self.ceiling) or (level == "session" and self.session is None)

    def sees(self, item: Item, level: str | None) -> bool:
        """Whether a recall or a list at this level brings the item."""
        reach = LEVELS.index(level or self.default_level)
        return self._distance(item) <= min(reach, LEVELS.index(item.visibility))

    def manages(self, item: Item) -> bool:
        """Whether it reads, changes and erases the item by id: its agent's own, whatever their visibility, and at
        ceiling `user` those of the user's other agents that may be seen from outside."""
        if not self._same_user(item):
            return False
        return item.agent == self.agent or (self.ceiling == "user" and item.visibility == "user")

    def erases(self, item: Item, level: str) -> bool:
        """Whether a forget at this level takes the item, whatever its visibility."""
        return self._same_user(item) and (level == "user" or item.agent == self.agent)

    def spans(self, level: str = "agent") -> bool:
        """Whether it may select, list or erase what lies across sessions (`agent`) or across agents (`user`)."""
        return LEVELS.index(level) <= LEVELS.index(self.ceiling)

    def holds(self, item: Item) -> bool:
        """Whether an item of a framework's store, or a thread, is this user's with this agent."""
        return self._same_user(item) and item.agent == self.agent

    def may_forget_source(self, kind: str, name: str) -> bool:
        """Whether a forget by this source is allowed at all."""
        if kind == "session":
            return True
        return self.spans("user" if kind == "agent" and name != self.agent else "agent")

    def erases_source(self, item: Item, kind: str, name: str) -> bool:
        """Whether a forget by this source, which is allowed, takes the item."""
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
