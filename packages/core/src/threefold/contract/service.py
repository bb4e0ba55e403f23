"""Identity of the caller, policy of the store, and health of the service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from threefold.contract.common import Level, Response


class StorePolicy(Response):
    """Defaults that the store sets for its clients."""

    name: str = "default"
    failure_mode: Literal["soft", "strict"] = "soft"
    token_budget: int = 4096
    top_k: int = 10
    default_expiry_days: float | None = None


class WhoAmI(Response):
    """The verified identity of a request and its rights."""

    user: str | None = Field(description="Null for an agent that acts for itself (`self`).")
    agent: str
    ceiling: Level
    default_level: Level
    may_share: bool
    reads_shared: bool
    admin: bool = False
    mode: Literal["dev", "keys", "jwt", "gateway"]
    store: StorePolicy
    version: str


class Health(Response):
    """`/healthz`: the process is alive. `/readyz`: it can reach its database.

    `degraded`: it answers, but its process of background work is down.
    """

    status: Literal["ok", "degraded", "unavailable"]
    detail: str | None = None
