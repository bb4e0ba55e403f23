"""Threefold as the native memory of Pydantic AI."""

from threefold_pydantic_ai.conversation_store import ThreefoldConversationStore
from threefold_pydantic_ai.memory import ThreefoldMemory

__all__ = ["ThreefoldConversationStore", "ThreefoldMemory"]
