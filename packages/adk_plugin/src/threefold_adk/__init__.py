"""Threefold as the native memory of Google ADK."""

from threefold_adk.services import register
from threefold_adk.sessions import ThreefoldSessionService

__all__ = ["ThreefoldSessionService", "register"]
