"""Verified request -> Principal, by the mode of the store. No body, query or tool argument is ever looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request

from threefold_server.http.gateway_identity import GatewayIdentity
from threefold_server.http.headers import AGENT_HEADER, USER_HEADER, named
from threefold_server.http.key_identity import KeyIdentity
from threefold_server.http.rates import Rates
from threefold_server.rules.access import Principal, Reach
from threefold_server.service import Service
from threefold_server.settings import Settings

LOCAL = "local"


class IdentityProvider(Protocol):
    """One mode of proving who calls."""

    async def identify(self, request: Request) -> Principal:
        """The principal of a request; raises `Unauthenticated` or `Forbidden`."""
        ...


async def identified(request: Request) -> Principal:
    """The verified principal of this request; proved once, before the body is read."""
    known: Principal | None = getattr(request.state, "caller", None)
    if known is None:
        provider: IdentityProvider = request.app.state.identity
        known = request.state.caller = await provider.identify(request)
    return known


Identified = Annotated[Principal, Depends(identified)]


async def caller(request: Request, principal: Identified) -> Principal:
    """The same, if it does not call too often; counted once."""
    if not getattr(request.state, "counted", False):
        rates: Rates = request.app.state.rates
        rates.check(principal)
        request.state.counted = True
    return principal


Caller = Annotated[Principal, Depends(caller)]


def build_identity(service: Service) -> IdentityProvider:
    """The provider of the configured mode."""
    match service.settings.mode:
        case "dev":
            return DevIdentity(service.settings)
        case "keys":
            return KeyIdentity(service)
        case "gateway":
            return GatewayIdentity(service.settings)
        case "jwt":
            from threefold_server.http.jwt_identity import JwtIdentity  # loads the [jwt] extra

            return JwtIdentity(service)


@dataclass(frozen=True)
class DevIdentity:
    """Loopback only (`sites` checks the host): believes the headers, and defaults both names to `local`."""

    settings: Settings

    async def identify(self, request: Request) -> Principal:
        headers = request.headers
        ceiling = min(Reach.agent, Reach[self.settings.max_read_level])
        return Principal(
            user=named(headers, USER_HEADER) or LOCAL,
            agent=named(headers, AGENT_HEADER) or LOCAL,
            ceiling=Reach.user if self.settings.allow_user_level else ceiling,
            may_share=True,
            reads_shared=self.settings.reads_shared,
            admin=self.settings.allow_admin,
        )
