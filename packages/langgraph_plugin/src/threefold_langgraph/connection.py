"""`ThreefoldConnection`: clients, identity of runs and outage policy, shared by all parts of the plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self, TypeVar

from langchain_core.runnables import RunnableConfig

from threefold import AsyncMemoryClient, AsyncMemorySession, MemoryClient, MemorySession, Policy
from threefold.contract.common import DataScope
from threefold.identity import value_of
from threefold_langgraph.identity import Resolver, find_user, need_user

C = TypeVar("C", MemoryClient, AsyncMemoryClient)


@dataclass(frozen=True)
class ThreefoldConnection:
    """Connection that all parts of the plugin share. Make one per process; it connects on the first call."""

    client: MemoryClient
    """The client of synchronous code."""
    async_client: AsyncMemoryClient
    """The client of asynchronous code, for the same service."""
    user: str | Resolver | None = None
    """The user, or a function of a run's config (default: found in the run)."""
    agent: str | Resolver | None = None
    """The agent, or a function of a run's config (default: the agent of the client)."""
    policy: Policy = field(default_factory=Policy)
    """Failure mode, breaker and spool."""

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        api_key: str | None = None,
        user: str | Resolver | None = None,
        agent: str | Resolver | None = None,
        policy: Policy | None = None,
    ) -> Self:
        """Make a connection to the service at a URL.

        Args:
            url: Where the service listens, such as `http://127.0.0.1:8181`.
            api_key: A key or token.
            user: The user, or a function of a run's config (default: found in the run, as in `find_user`).
            agent: The agent, or a function of a run's config (default: the agent of the client).
            policy: Failure mode, breaker and spool (default: a new `Policy`).

        Raises:
            ValueError: The URL or the key is not valid.
        """
        clients = MemoryClient(url, api_key=api_key), AsyncMemoryClient(url, api_key=api_key)
        return cls(*clients, user, agent, policy or Policy())

    @classmethod
    def from_env(
        cls,
        *,
        user: str | Resolver | None = None,
        agent: str | Resolver | None = None,
        policy: Policy | None = None,
    ) -> Self:
        """Make a connection to the service that the THREEFOLD_* variables name.

        Args:
            user: The user, or a function of a run's config (default: found in the run, as in `find_user`).
            agent: The agent, or a function of a run's config (default: the agent of the client).
            policy: Failure mode, breaker and spool (default: a new `Policy`).

        Raises:
            ValueError: The URL or the key is not valid.
        """
        return cls(MemoryClient.from_env(), AsyncMemoryClient.from_env(), user, agent, policy or Policy())

    def acting(self, config: RunnableConfig, scope: DataScope = "user") -> MemoryClient:
        """Return a client for the user and agent of a run.

        Args:
            config: The config of the run.
            scope: `agent` for data of the agent, which needs no user.

        Raises:
            InvalidRequest: The run has no user and the scope is `user`, or an id is not valid.
            Forbidden: The run names another user than the one that LangGraph Server has verified.
        """
        return self._acting(self.client, config, scope)

    def acting_async(self, config: RunnableConfig, scope: DataScope = "user") -> AsyncMemoryClient:
        """Return an asynchronous client for the user and agent of a run.

        Args:
            config: The config of the run.
            scope: `agent` for data of the agent, which needs no user.

        Raises:
            InvalidRequest: The run has no user and the scope is `user`, or an id is not valid.
            Forbidden: The run names another user than the one that LangGraph Server has verified.
        """
        return self._acting(self.async_client, config, scope)

    def _acting(self, client: C, config: RunnableConfig, scope: DataScope) -> C:
        find = find_user if scope == "agent" else need_user
        agent = value_of("agent", self.agent, config)
        return client.acting_as(
            user=find(config, self.user, client.user), agent=client.agent if agent is None else agent
        )

    def session(self, config: RunnableConfig, session_id: str) -> MemorySession:
        """Return a session of the user and agent of a run.

        Args:
            config: The config of the run.
            session_id: The session.

        Raises:
            InvalidRequest: The run has no user, or an id is not valid.
            Forbidden: The run names another user than the one that LangGraph Server has verified.
        """
        return MemorySession(self.acting(config), session_id, policy=self.policy)

    def async_session(self, config: RunnableConfig, session_id: str) -> AsyncMemorySession:
        """Return an asynchronous session of the user and agent of a run.

        Args:
            config: The config of the run.
            session_id: The session.

        Raises:
            InvalidRequest: The run has no user, or an id is not valid.
            Forbidden: The run names another user than the one that LangGraph Server has verified.
        """
        return AsyncMemorySession(self.acting_async(config), session_id, policy=self.policy)

    def close(self) -> None:
        """Close the synchronous connections; a later call opens new ones."""
        self.client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop and the synchronous ones."""
        await self.async_client.close()
        self.client.close()
