"""Mode `gateway`: a proxy has verified the caller and names it in headers. It proves itself by a shared secret."""

from __future__ import annotations

import hmac
from ipaddress import ip_address

from fastapi import Request
from starlette.datastructures import Headers

from threefold.errors import Forbidden, InvalidRequest, Unauthenticated
from threefold_server.http.headers import checked, single_value
from threefold_server.rules.access import Principal, Reach, granted_reach
from threefold_server.settings import Settings


class GatewayIdentity:
    """Trusts the headers of a proxy that calls from a configured network and sends the shared secret."""

    def __init__(self, settings: Settings) -> None:
        assert settings.gateway_secret is not None
        self._settings = settings
        self._secret = settings.gateway_secret.get_secret_value().encode()

    async def identify(self, request: Request) -> Principal:
        settings, headers = self._settings, request.headers
        if not (self._from_network(request) and self._knows_secret(headers)):
            raise Unauthenticated("the request did not come through the gateway: wrong network or secret")
        user = _name(headers, settings.gateway_user_header)
        agent = _name(headers, settings.gateway_agent_header)
        if agent is None or (user is None and not settings.allow_self):
            missing = settings.gateway_agent_header if agent is None else settings.gateway_user_header
            raise Forbidden(f"{missing}: missing or empty; the gateway must set it")
        return Principal(
            user=user,
            agent=agent,
            ceiling=self._ceiling(headers),
            may_share=_is_true(headers, settings.gateway_share_header),
            reads_shared=settings.reads_shared,
            admin=_is_true(headers, settings.gateway_admin_header),
        )

    def _ceiling(self, headers: Headers) -> Reach:
        header, store = self._settings.gateway_level_header, self._settings.max_read_level
        return Reach[store] if header is None else granted_reach(header, single_value(headers, header), store)

    def _from_network(self, request: Request) -> bool:
        try:
            peer = ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._settings.networks)

    def _knows_secret(self, headers: Headers) -> bool:
        sent = single_value(headers, self._settings.gateway_secret_header) or ""
        return hmac.compare_digest(sent.encode("latin-1"), self._secret)


def _is_true(headers: Headers, header: str | None) -> bool:
    return header is not None and single_value(headers, header) == "true"


def _name(headers: Headers, header: str) -> str | None:
    """Return the id in a header of the proxy, without percent-decoding: else one user could pass as another."""
    value = single_value(headers, header)
    try:
        return None if value is None else checked(header, value.encode("latin-1").decode())
    except UnicodeError as error:
        raise InvalidRequest(f"{header}: not UTF-8", {"field": header}) from error
