"""Checkpointer and store for `langgraph.json`, for the service that the THREEFOLD_* variables name.

To pass arguments, name a function of your own in `langgraph.json`, such as
`create_checkpointer = functools.partial(threefold_langgraph.server.create_checkpointer, scope="agent")`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from threefold.contract.common import DataScope
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.identity import Resolver
from threefold_langgraph.saver import ThreefoldSaver
from threefold_langgraph.store import ThreefoldStore


@asynccontextmanager
async def create_checkpointer(
    *, user: str | Resolver | None = None, agent: str | Resolver | None = None, scope: DataScope = "user"
) -> AsyncGenerator[ThreefoldSaver]:
    """Yield a checkpointer.

    In `langgraph.json`: `"checkpointer": {"path": "threefold_langgraph.server.create_checkpointer"}`.

    Args:
        user: The user, or a function of a run's config (default: the user that the server has verified, then that of
            the run, then THREEFOLD_USER). A function also gets the empty config of calls outside of runs.
        agent: The agent, or a function of a run's config (default: THREEFOLD_AGENT).
        scope: `user` (default), or `agent` for threads that all users of the agent share.
    """
    connection = ThreefoldConnection.from_env(user=user, agent=agent)
    try:
        yield ThreefoldSaver(connection, scope=scope)
    finally:
        await connection.aclose()


@asynccontextmanager
async def create_store(
    *, user: str | Resolver | None = None, agent: str | Resolver | None = None, scope: DataScope = "user"
) -> AsyncGenerator[ThreefoldStore]:
    """Yield a store.

    In `langgraph.json`: `"store": {"path": "threefold_langgraph.server.create_store"}`.

    Args:
        user: The user, or a function of a run's config (default: as for `create_checkpointer`).
        agent: The agent, or a function of a run's config (default: THREEFOLD_AGENT).
        scope: `user` (default), or `agent` for items that all users of the agent share.
    """
    connection = ThreefoldConnection.from_env(user=user, agent=agent)
    try:
        yield ThreefoldStore(connection, scope=scope)
    finally:
        await connection.aclose()
