"""The identity of the caller, and the policy of the store."""

from __future__ import annotations

from importlib.metadata import version

from threefold.contract import StorePolicy, WhoAmI
from threefold_server.rules.access import Principal
from threefold_server.service import Service

VERSION = version("threefold-server")


def whoami(service: Service, principal: Principal) -> WhoAmI:
    """Return the caller's identity and rights, and the policy of the store for it."""
    settings = service.settings
    return WhoAmI(
        user=principal.user,
        agent=principal.agent,
        ceiling=principal.ceiling.name,  # pyright: ignore[reportArgumentType]
        default_level=principal.default_reach.name,  # pyright: ignore[reportArgumentType]
        may_share=principal.may_share,
        reads_shared=principal.reads_shared,
        admin=principal.admin,
        mode=settings.mode,
        store=store_policy(service, principal),
        version=VERSION,
    )


def store_policy(service: Service, principal: Principal) -> StorePolicy:
    """Return the defaults of a request: those of the caller's key, else those of the store."""
    settings, own = service.settings, principal.policy
    return StorePolicy(
        name=settings.store_name,
        failure_mode=own.failure_mode or settings.failure_mode,
        token_budget=own.token_budget or settings.token_budget,
        top_k=settings.top_k if own.top_k is None else own.top_k,
        default_expiry_days=settings.fact_expiry_days,
    )
