"""The origin and trust of a memory, derived from verified roles and never from content. Pure."""

from __future__ import annotations

from threefold.contract import Origin, Role

ORIGIN_OF_ROLE: dict[Role, Origin] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "import"}

TRUST: dict[Origin, float] = {"user": 1.0, "import": 0.8, "assistant": 0.6, "tool": 0.3}
"""A user's own words rank highest. A tool's text ranks lowest: anyone may have written it."""


def origin_of(role: Role, *, imported: bool) -> Origin:
    """Return the origin of a turn. Imported turns are `import`: the roles in an archive are not verified."""
    return "import" if imported else ORIGIN_OF_ROLE[role]


def trust_of(role: Role, *, imported: bool) -> float:
    """Return the trust of a turn by its role; for an imported turn at most that of an import."""
    trust = TRUST[ORIGIN_OF_ROLE[role]]
    return imported_trust(trust) if imported else trust


def imported_trust(trust: float) -> float:
    """Return the trust that an archive claims, at most that of an import."""
    return min(trust, TRUST["import"])
