"""Where a memory comes from and how far it is trusted: set here, from verified facts, never from content."""

from __future__ import annotations

from threefold.contract import Origin, Role

ORIGIN_OF_ROLE: dict[Role, Origin] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "import"}

TRUST: dict[Origin, float] = {"user": 1.0, "import": 0.8, "assistant": 0.6, "tool": 0.3}
"""A person's own words first; what a tool fetched may be anybody's."""


def trust_of(role: Role) -> float:
    """How far a turn is trusted."""
    return TRUST[ORIGIN_OF_ROLE[role]]
