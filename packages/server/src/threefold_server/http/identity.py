"""Verified request -> Principal, by the mode of the store. No body, query or tool argument is ever looked at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request

from threefold.errors import Forbidden
from threefold_server.access import Principal, Reach
from threefold_server.http.gateway_identity import GatewayIdentity
from threefold_server.http.headers import AGENT_HEADER, USER_HEADER, named
from threefold_server.http.key_identity import KeyIdentity
from threefold_server.rates import Rates
from threefold_server.service import Service
from threefold_server.settings import LOOPBACK, Settings

LOCAL = "local"
DEV_HOSTS = LOOPBACK | {"threefold.local"}
"""Other names may be a web page's that was pointed at this machine; the last is the in-process service's."""


class IdentityProvider(Protocol):
    """One mode of proving who calls."""

    async def identify(self, request: Request) -> Principal:
        """The principal of a request; raises `Unauthenticated` or `Forbidden`."""
        ...


async def identified(request: Request) -> Principal:
    """The verified principal of this request."""
    provider: IdentityProvider = request.app.state.identity
    principal = await provider.identify(request)
    request.state.caller = principal
    return principal


Identified = Annotated[Principal, Depends(identified)]


async def caller(request: Request, principal: Identified) -> Principal:
    """The same, if it does not call too often."""
    rates: Rates = request.app.state.rates
    rates.check(principal)
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
    """Loopback only: believes the headers, and defaults both names to `local`."""

    settings: Settings

    async def identify(self, request: Request) -> Principal:
        headers = request.headers
        if _host_name(headers.get("host", "")) not in DEV_HOSTS:
            raise Forbidden("mode 'dev' answers only to this machine's own names (localhost, 127.0.0.1)")
        ceiling = min(Reach.agent, Reach[self.settings.max_read_level])
        return Principal(
            user=named(headers, USER_HEADER) or LOCAL,
            agent=named(headers, AGENT_HEADER) or LOCAL,
            ceiling=Reach.user if self.settings.allow_user_level else ceiling,
            may_share=True,
            reads_shared=self.settings.reads_shared,
            admin=self.settings.allow_admin,
        )


def _host_name(host: str) -> str:
    """`localhost` of `localhost:8181`, `::1` of `[::1]:8181`."""
    return re.sub(r":\d*$", "", host).strip("[]").lower()
