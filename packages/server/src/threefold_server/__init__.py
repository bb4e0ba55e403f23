"""The Threefold memory service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threefold_server.local import LocalMemory, LocalService, local_memory

__all__ = ["LocalMemory", "LocalService", "local_memory"]


def __getattr__(name: str) -> Any:
    """Import the app on first use: commands and pure modules start faster without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from threefold_server import local

    return getattr(local, name)
