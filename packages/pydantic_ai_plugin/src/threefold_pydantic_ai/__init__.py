"""Threefold as the native memory of Pydantic AI."""

from threefold_pydantic_ai.memory import ThreefoldMemory

__all__ = ["ThreefoldMemory"]
