"""Threefold as the native memory of LangGraph."""

from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.identity import Resolver
from threefold_langgraph.saver import ThreefoldSaver
from threefold_langgraph.store import ThreefoldStore

__all__ = ["Resolver", "ThreefoldConnection", "ThreefoldSaver", "ThreefoldStore"]
