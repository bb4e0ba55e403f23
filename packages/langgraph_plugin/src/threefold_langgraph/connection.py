"""The service as the parts of this plugin share it: both clients, whose memory a run uses, what an outage does."""

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
    """Make one per process and hand it to every part; it opens nothing before the first call."""

    client: MemoryClient
    async_client: AsyncMemoryClient
    user: str | Resolver | None = None
    """A name, or a rule that finds it in a run's config; found in the run otherwise."""
    agent: str | Resolver | None = None
    """A name, or a rule; the client's otherwise."""
    policy: Policy = field(default_factory=Policy)

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
        """To the service at a URL."""
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
        """To the service that the THREEFOLD_* variables name."""
        return cls(MemoryClient.from_env(), AsyncMemoryClient.from_env(), user, agent, policy or Policy())

    def acting(self, config: RunnableConfig, scope: DataScope = "user") -> MemoryClient:
        """A client for the user and agent of a run; without a user it is refused, unless the agent is the owner."""
        return self._acting(self.client, config, scope)

    def acting_async(self, config: RunnableConfig, scope: DataScope = "user") -> AsyncMemoryClient:
        """`acting`, of the other twin."""
        return self._acting(self.async_client, config, scope)

    def _acting(self, client: C, config: RunnableConfig, scope: DataScope) -> C:
        find = find_user if scope == "agent" else need_user
        agent = value_of("agent", self.agent, config)
        return client.acting_as(
            user=find(config, self.user, client.user), agent=client.agent if agent is None else agent
        )

    def session(self, config: RunnableConfig, session_id: str) -> MemorySession:
        """One session of the user and agent of a run."""
        return MemorySession(self.acting(config), session_id, policy=self.policy)

    def async_session(self, config: RunnableConfig, session_id: str) -> AsyncMemorySession:
        """`session`, of the other twin."""
        return AsyncMemorySession(self.acting_async(config), session_id, policy=self.policy)

    def close(self) -> None:
        """Close the synchronous connections; a later call opens new ones."""
        self.client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and the synchronous ones."""
        await self.async_client.close()
        self.client.close()
