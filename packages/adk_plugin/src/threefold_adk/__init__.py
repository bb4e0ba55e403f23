"""Plugin of Threefold for Google ADK: a plugin, a memory service, a session service and a toolset."""

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
