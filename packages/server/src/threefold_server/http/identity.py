"""The principal of a request, by the mode of the store. It never depends on body, query or tool arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request

from threefold.contract.paths import AGENT_HEADER, USER_HEADER
from threefold_server.http.gateway_identity import GatewayIdentity
from threefold_server.http.headers import id_in
from threefold_server.http.key_identity import KeyIdentity
from threefold_server.http.rates import Rates
from threefold_server.rules.access import Principal, Reach
from threefold_server.service import Service
from threefold_server.settings import Settings

LOCAL = "local"


class IdentityProvider(Protocol):
    """Verifies the callers of one mode."""

    async def identify(self, request: Request) -> Principal:
        """Return the principal of a request. Raise Unauthenticated or Forbidden if there is no valid identity."""
        ...


async def identified(request: Request) -> Principal:
    """Return the verified principal of this request. It is verified once, before the body is read."""
    principal: Principal | None = getattr(request.state, "caller", None)
    if principal is None:
        provider: IdentityProvider = request.app.state.identity
        principal = request.state.caller = await provider.identify(request)
    return principal


IdentifiedDep = Annotated[Principal, Depends(identified)]


async def caller(request: Request, principal: IdentifiedDep) -> Principal:
    """Return the verified principal after counting this request, once, towards its rate.

    Raises:
        RateLimited: The caller sent too many requests in the last minute.
    """
    if not getattr(request.state, "counted", False):
        rates: Rates = request.app.state.rates
        rates.check(principal)
        request.state.counted = True
    return principal


CallerDep = Annotated[Principal, Depends(caller)]


def build_identity(service: Service) -> IdentityProvider:
    """Return the identity provider of the configured mode."""
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
    """Mode `dev`: takes user and agent from the headers, `local` by default. `sites` allows loopback hosts only."""

    settings: Settings

    async def identify(self, request: Request) -> Principal:
        headers = request.headers
        ceiling = min(Reach.agent, Reach[self.settings.max_read_level])
        return Principal(
            user=id_in(headers, USER_HEADER) or LOCAL,
            agent=id_in(headers, AGENT_HEADER) or LOCAL,
            ceiling=Reach.user if self.settings.allow_user_level else ceiling,
            may_share=True,
            reads_shared=self.settings.reads_shared,
            admin=self.settings.allow_admin,
        )
