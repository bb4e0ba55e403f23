"""Where a memory comes from and how far it is trusted: set here, from verified facts, never from content."""

from __future__ import annotations

from threefold.contract import Origin, Role

ORIGIN_OF_ROLE: dict[Role, Origin] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "import"}

TRUST: dict[Origin, float] = {"user": 1.0, "import": 0.8, "assistant": 0.6, "tool": 0.3}
"""A person's own words first; what a tool fetched may be anybody's."""


def origin_of(role: Role, *, imported: bool) -> Origin:
    """Where the words of a turn come from. An archive says whose they were, which nobody has verified."""
    return "import" if imported else ORIGIN_OF_ROLE[role]


def trust_of(role: Role, *, imported: bool) -> float:
    """How far a turn is trusted: by its role, and if it was imported, no further than an import."""
    trust = TRUST[ORIGIN_OF_ROLE[role]]
    return imported_trust(trust) if imported else trust


def imported_trust(trust: float) -> float:
    """What is left of the trust that an archive claims."""
    return min(trust, TRUST["import"])
