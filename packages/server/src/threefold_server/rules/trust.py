"""The origin and trust of a memory, derived from verified roles and the channel, never from content. Pure."""

from __future__ import annotations

from typing import Any

from threefold.contract import Origin, Role
from threefold.contract.common import NotedBy, TurnKind

ORIGIN_OF_ROLE: dict[Role, Origin] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "import"}
ROLE_OF_ORIGIN: dict[Origin, Role] = {origin: role for role, origin in ORIGIN_OF_ROLE.items()}
ORIGIN_OF_KIND: dict[TurnKind, Origin] = {"tool_call": "assistant", "tool_result": "tool"}
"""Some frameworks write tool results in the role of the user."""

TRUST: dict[Origin, float] = {"user": 1.0, "import": 0.8, "assistant": 0.6, "tool": 0.3}
"""A user's own words rank highest. A tool's text ranks lowest: anyone may have written it."""


def noted_origin(own: Origin, noted_by: NotedBy | None) -> Origin:
    """Return the origin of what a caller states: its own, or that of `noted_by` if this has less trust."""
    return own if noted_by is None else min(own, noted_by, key=TRUST.__getitem__)


def origin_of(turn: Any) -> Origin:
    """Return the origin of a row of `turns`. Imported turns are `import`: the roles in an archive are not verified."""
    return "import" if turn.imported else _said_by(turn)


def trust_of(turn: Any) -> float:
    """Return the trust of a row of `turns`; for an imported turn at most that of an import."""
    trust = TRUST[_said_by(turn)]
    return imported_trust(trust) if turn.imported else trust


def role_of(turn: Any) -> Role:
    """Return the role in which models and rules read a turn, or a row of one: that of the channel it came through."""
    return ROLE_OF_ORIGIN[_said_by(turn)]


def imported_trust(trust: float) -> float:
    """Return the trust that an archive claims, at most that of an import."""
    return min(trust, TRUST["import"])


def _said_by(turn: Any) -> Origin:
    """Return the least trusted of the role of a turn, its kind and who noted it."""
    by_role: Origin = ORIGIN_OF_ROLE[turn.role]
    by_kind = ORIGIN_OF_KIND.get(turn.kind, by_role)
    return noted_origin(min(by_role, by_kind, key=TRUST.__getitem__), turn.noted_by)
