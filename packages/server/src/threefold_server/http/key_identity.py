"""Mode `keys`: `Authorization: Bearer <key>`; the key's grants say for which user and agent the caller may act."""

from __future__ import annotations

from fastapi import Request
from starlette.datastructures import Headers

from threefold.contract.paths import AGENT_HEADER, USER_HEADER
from threefold.errors import Forbidden, Unauthenticated
from threefold_server.clock import MICROS
from threefold_server.http.headers import bearer_token, granted_id, id_in
from threefold_server.rules.access import Principal, Reach
from threefold_server.service import Service
from threefold_server.storage.store import keys

CACHE_MICROS = 5 * MICROS  # a revoked key is refused everywhere within 5 s
CACHE_SIZE = 1_024

ADVICE = "no API key: send `Authorization: Bearer <key>`; make a key with `threefold keys create`"


class KeyIdentity:
    """Looks keys up in the store, and caches them for 5 s."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cache: dict[str, tuple[int, keys.Key]] = {}

    async def identify(self, request: Request) -> Principal:
        key = await self._key(bearer_token(request.headers, ADVICE))
        settings = self._service.settings
        return Principal(
            user=_granted_user(key, request.headers),
            agent=_granted_agent(key, request.headers),
            ceiling=min(key.ceiling, Reach[settings.max_read_level]),
            may_share=key.may_share,
            reads_shared=settings.reads_shared,
            admin=key.admin,
            key=key.key_id,
            policy=key.policy,
        )

    async def _key(self, token: str) -> keys.Key:
        now, tick = self._service.clock(), self._service.ticks()
        until, key = self._cache.get(token, (tick, None))
        if key is None or until <= tick or not key.alive(now):
            self._cache.pop(token, None)
            key = await self._service.database.read("system", lambda c: keys.verify(c, token, now))
            if key is None:
                raise Unauthenticated("the API key is unknown, expired or revoked; see `threefold keys list`")
            if len(self._cache) >= CACHE_SIZE:
                self._cache.clear()
            self._cache[token] = (tick + CACHE_MICROS, key)
        self._service.key_uses[key.key_id] = now
        return key


def _granted_user(key: keys.Key, headers: Headers) -> str | None:
    if key.user_grant != "named":
        return granted_id(headers, USER_HEADER, key.user_value if key.user_grant == "fixed" else None)
    name = id_in(headers, USER_HEADER)
    if name is None:
        raise Forbidden(f"this key acts for users that the request names: send {USER_HEADER}")
    return name


def _granted_agent(key: keys.Key, headers: Headers) -> str:
    if key.agent_grant == "name":
        granted_id(headers, AGENT_HEADER, key.agent_value)
        return key.agent_value
    name = id_in(headers, AGENT_HEADER)
    if name is None or not name.startswith(key.agent_value) or name == key.agent_value:
        raise Forbidden(f"this key acts for agents whose name starts with {key.agent_value!r}: send {AGENT_HEADER}")
    return name
