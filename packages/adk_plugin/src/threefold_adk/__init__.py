"""Threefold as the native memory of Google ADK."""

from threefold_adk.memory import ThreefoldMemoryService
from threefold_adk.plugin import ThreefoldPlugin
from threefold_adk.services import register
from threefold_adk.sessions import ThreefoldSessionService
from threefold_adk.tools import ThreefoldToolset

__all__ = [
    "ThreefoldMemoryService",
    "ThreefoldPlugin",
    "ThreefoldSessionService",
    "ThreefoldToolset",
    "register",
]
