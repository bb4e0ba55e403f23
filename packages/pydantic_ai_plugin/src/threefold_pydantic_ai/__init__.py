"""Plugin of Threefold for Pydantic AI: a capability for memory and a conversation store."""

from threefold_pydantic_ai.conversation_store import ThreefoldConversationStore
from threefold_pydantic_ai.memory import ThreefoldMemory

__all__ = ["ThreefoldConversationStore", "ThreefoldMemory"]
