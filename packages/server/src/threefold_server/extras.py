"""Whether an optional package is installed."""

from __future__ import annotations

from importlib.util import find_spec


def installed(package: str) -> bool:
    """Return True if a package is installed, without importing it.

    A plain directory of that name does not count as the package.
    """
    try:
        found = find_spec(package)
    except ModuleNotFoundError:  # its parent package is missing
        return False
    return found is not None and found.origin is not None
