"""Threefold as the native memory of LangGraph."""

from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.identity import Resolver

__all__ = ["Resolver", "ThreefoldConnection"]
