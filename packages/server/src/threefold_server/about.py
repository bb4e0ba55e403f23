"""The service about itself."""

from __future__ import annotations

from importlib.metadata import version

from threefold.contract import StorePolicy, WhoAmI
from threefold_server.access import Principal
from threefold_server.service import Service

VERSION = version("threefold-server")


def whoami(service: Service, principal: Principal) -> WhoAmI:
    """The caller's identity and limits, and what the store asks of its clients."""
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
        store=StorePolicy(
            name=settings.store_name,
            failure_mode=settings.failure_mode,
            token_budget=settings.token_budget,
            top_k=settings.top_k,
            default_expiry_days=settings.fact_expiry_days,
        ),
        version=VERSION,
    )
