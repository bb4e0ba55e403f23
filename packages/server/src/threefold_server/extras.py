"""Which of the packages that extras bring are there."""

from __future__ import annotations

from importlib.util import find_spec


def installed(package: str) -> bool:
    """Whether a package is there, without loading it. A mere directory of that name, in somebody's project, is none."""
    try:
        found = find_spec(package)
    except ModuleNotFoundError:  # nor is what it would be in
        return False
    return found is not None and found.origin is not None
