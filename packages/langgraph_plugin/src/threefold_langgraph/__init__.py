"""Plugin of Threefold for LangGraph: store, checkpointer, nodes and tools.

The middleware is in `threefold_langgraph.middleware`.
"""

from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.identity import Resolver
from threefold_langgraph.nodes import flush_node, pre_model_hook, recall_node
from threefold_langgraph.saver import ThreefoldSaver
from threefold_langgraph.store import ThreefoldStore
from threefold_langgraph.tools import memory_tools

__all__ = [
    "Resolver",
    "ThreefoldConnection",
    "ThreefoldSaver",
    "ThreefoldStore",
    "flush_node",
    "memory_tools",
    "pre_model_hook",
    "recall_node",
]
