"""Verified request -> Principal. Nothing but headers is ever looked at: no body, no query, no tool argument."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Protocol
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Request
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers

from threefold.calls import problem
from threefold.contract.common import Id
from threefold.errors import Forbidden, InvalidRequest, Unauthenticated
from threefold_server.access import Principal, Reach
from threefold_server.service import Service
from threefold_server.settings import LOOPBACK, Settings
from threefold_server.storage import keys

USER_HEADER = "x-threefold-user"
AGENT_HEADER = "x-threefold-agent"
LOCAL = "local"
DEV_HOSTS = LOOPBACK | {"threefold.local"}
"""Other names may be a web page's that was pointed at this machine; the last is the in-process service's."""
KEY_CACHE_MICROS = 5_000_000  # a revoked key is refused everywhere within 5 s
KEY_CACHE_SIZE = 1_024

_ID: TypeAdapter[str] = TypeAdapter(Id)


class IdentityProvider(Protocol):
    """One mode of proving who calls."""

    async def identify(self, headers: Headers) -> Principal:
        """The principal of a request; raises `Unauthenticated` or `Forbidden`."""
        ...


async def caller(request: Request) -> Principal:
    """The verified principal of this request."""
    provider: IdentityProvider = request.app.state.identity
    return await provider.identify(request.headers)


Caller = Annotated[Principal, Depends(caller)]


def build_identity(service: Service) -> IdentityProvider:
    """The provider of the configured mode."""
    return DevIdentity(service.settings) if service.settings.mode == "dev" else KeyIdentity(service)


@dataclass(frozen=True)
class DevIdentity:
    """Loopback only: believes the headers, and defaults both names to `local`."""

    settings: Settings

    async def identify(self, headers: Headers) -> Principal:
        if _host_name(headers.get("host", "")) not in DEV_HOSTS:
            raise Forbidden("mode 'dev' answers only to this machine's own names (localhost, 127.0.0.1)")
        ceiling = min(Reach.agent, Reach[self.settings.max_read_level])
        return Principal(
            user=named(headers, USER_HEADER) or LOCAL,
            agent=named(headers, AGENT_HEADER) or LOCAL,
            ceiling=Reach.user if self.settings.allow_user_level else ceiling,
            may_share=True,
            reads_shared=self.settings.reads_shared,
        )


class KeyIdentity:
    """`Authorization: Bearer <key>`; the key's grants say for whom the caller may speak."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cache: dict[str, tuple[int, keys.Key]] = {}

    async def identify(self, headers: Headers) -> Principal:
        key = await self._key(_bearer(headers))
        settings = self._service.settings
        return Principal(
            user=_granted_user(key, named(headers, USER_HEADER)),
            agent=_granted_agent(key, named(headers, AGENT_HEADER)),
            ceiling=min(key.ceiling, Reach[settings.max_read_level]),
            may_share=key.may_share,
            reads_shared=settings.reads_shared,
            admin=key.admin,
        )

    async def _key(self, token: str) -> keys.Key:
        now = self._service.clock()
        until, key = self._cache.get(token, (0, None))
        if key is None or until <= now or not key.alive(now):
            self._cache.pop(token, None)
            key = await self._service.database.read("system", lambda c: keys.verify(c, token, now))
            if key is None:
                raise Unauthenticated("the API key is unknown, expired or revoked; see `threefold keys list`")
            if len(self._cache) >= KEY_CACHE_SIZE:
                self._cache.clear()
            self._cache[token] = (now + KEY_CACHE_MICROS, key)
        return key


def named(headers: Headers, header: str) -> str | None:
    """The id in a header: percent-encoded UTF-8, since header bytes are not text. None where the header is absent."""
    values = headers.getlist(header)
    if not values:
        return None
    if len(values) > 1:
        raise InvalidRequest(f"{header}: given {len(values)} times", {"field": header})
    try:
        # Bytes that are not ASCII come as Latin-1: encoded again, raw UTF-8 would name somebody else.
        return _ID.validate_python(unquote_to_bytes(values[0].encode("ascii")).decode())
    except UnicodeError as error:
        raise InvalidRequest(f"{header}: not percent-encoded UTF-8", {"field": header}) from error
    except ValidationError as error:
        raise InvalidRequest(f"{header}: {problem(error.errors()[0]['msg'])}", {"field": header}) from error


def _host_name(host: str) -> str:
    """`localhost` of `localhost:8181`, `::1` of `[::1]:8181`."""
    return re.sub(r":\d*$", "", host).strip("[]").lower()


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(
            "an API key is needed: `Authorization: Bearer <key>`; make one with `threefold keys create`"
        )
    return token.strip()


def _granted_user(key: keys.Key, asked: str | None) -> str | None:
    if key.user_grant == "named":
        if asked is None:
            raise Forbidden(f"this key speaks for users that the request names: send {USER_HEADER}")
        return asked
    granted = key.user_value if key.user_grant == "fixed" else None
    if asked is not None and asked != granted:
        raise Forbidden(f"this key may not speak for the user named in {USER_HEADER}")
    return granted


def _granted_agent(key: keys.Key, asked: str | None) -> str:
    if key.agent_grant == "prefix":
        if asked is None or not asked.startswith(key.agent_value) or asked == key.agent_value:
            raise Forbidden(f"this key speaks for agents under {key.agent_value!r}: send {AGENT_HEADER}")
        return asked
    if asked is not None and asked != key.agent_value:
        raise Forbidden(f"this key may not speak for the agent named in {AGENT_HEADER}")
    return key.agent_value
