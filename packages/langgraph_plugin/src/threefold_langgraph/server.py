"""Checkpointer and store for `langgraph.json`, for the service that the THREEFOLD_* variables name."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.saver import ThreefoldSaver
from threefold_langgraph.store import ThreefoldStore


@asynccontextmanager
async def create_checkpointer() -> AsyncGenerator[ThreefoldSaver]:
    """Yield a checkpointer.

    In `langgraph.json`: `"checkpointer": {"path": "threefold_langgraph.server:create_checkpointer"}`.
    """
    connection = ThreefoldConnection.from_env()
    try:
        yield ThreefoldSaver(connection)
    finally:
        await connection.aclose()


@asynccontextmanager
async def create_store() -> AsyncGenerator[ThreefoldStore]:
    """Yield a store.

    In `langgraph.json`: `"store": {"path": "threefold_langgraph.server:create_store"}`.
    """
    connection = ThreefoldConnection.from_env()
    try:
        yield ThreefoldStore(connection)
    finally:
        await connection.aclose()
