"""Mode `jwt`: `Authorization: Bearer <token>`, signed by an issuer; claims name the caller. Needs the [jwt] extra."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

import jwt
from fastapi import Request

from threefold.contract.paths import AGENT_HEADER, USER_HEADER
from threefold.errors import Forbidden, InvalidRequest, Unauthenticated
from threefold_server.http.headers import bearer_token, checked, granted_id
from threefold_server.http.jwks import KeySet, file_key_set, url_key_set
from threefold_server.rules.access import Principal, Reach, granted_reach
from threefold_server.service import Service
from threefold_server.telemetry import logger

MAX_TOKEN_CHARS = 16_384

ADVICE = "no token: send `Authorization: Bearer <token>`"

Claims = Mapping[str, Any]

MAX_TIME = 253_402_300_800  # the year 10000; a later time is an error of the issuer


class JwtIdentity:
    """Verifies tokens by the issuer's public keys, or by a secret shared with the issuer."""

    def __init__(self, service: Service) -> None:
        self._settings = service.settings
        self._keys = _key_set(service)

    async def identify(self, request: Request) -> Principal:
        settings = self._settings
        claims = await self._verify(bearer_token(request.headers, ADVICE))
        user = _id(claims, settings.jwt_user_claim)
        agent = _id(claims, settings.jwt_agent_claim)
        if agent is None or (user is None and not settings.allow_self):
            missing = settings.jwt_agent_claim if agent is None else settings.jwt_user_claim
            raise Forbidden(f"the token's claim {missing!r} is missing")
        granted_id(request.headers, USER_HEADER, user)
        granted_id(request.headers, AGENT_HEADER, agent)
        return Principal(
            user=user,
            agent=agent,
            ceiling=self._ceiling(claims),
            may_share=_has_right(claims, settings.jwt_share),
            reads_shared=settings.reads_shared,
            admin=_has_right(claims, settings.jwt_admin),
        )

    async def _verify(self, token: str) -> Claims:
        """Return the claims of a valid token. All others get the same answer; the log has the reason."""
        try:
            return await self._decode(token)
        except (jwt.PyJWTError, RecursionError) as error:  # JSON may be nested deeply
            logger.info("token refused", extra={"fields": {"reason": type(error).__name__}})
            raise Unauthenticated("the token is not valid: expired, or not issued for this service") from error

    async def _decode(self, token: str) -> Claims:
        if len(token) > MAX_TOKEN_CHARS:
            raise jwt.DecodeError("too long")
        settings = self._settings
        header = jwt.get_unverified_header(token)
        if "crit" in header:
            raise jwt.InvalidTokenError("no critical extension is supported")
        claims = jwt.decode(
            token,
            await self._key(header),
            algorithms=settings.algorithms,
            audience=settings.jwt_audience,
            issuer=settings.jwt_issuer,
            leeway=settings.jwt_leeway,
            options={
                "require": ["exp"],
                "enforce_minimum_key_length": True,
                # PyJWT accepts `"12"`, `true` and 1e300 as times; `_check_times` does not.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
        _check_times(claims, time.time(), settings.jwt_leeway)
        return claims

    async def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK | str:
        """Return the configured key for a token. Keys that a token names (`jku`, `x5u`, `jwk`) are not used."""
        if self._keys is None:
            assert self._settings.jwt_secret is not None
            return self._settings.jwt_secret.get_secret_value()
        if header.get("alg") not in self._settings.algorithms:
            raise jwt.InvalidAlgorithmError("not one of the configured algorithms")
        key = await self._keys.find(header.get("kid"))
        if key is None:
            raise jwt.InvalidKeyError("unknown key id")
        return key

    def _ceiling(self, claims: Claims) -> Reach:
        name, store = self._settings.jwt_level_claim, self._settings.max_read_level
        return Reach[store] if name is None else granted_reach(name, _claim(claims, name), store)


def _check_times(claims: Claims, now: float, leeway: float) -> None:
    expires, starts, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None or expires <= now - leeway:
        raise jwt.ExpiredSignatureError("expired")
    if max(starts or 0, issued or 0) > now + leeway:
        raise jwt.ImmatureSignatureError("not valid yet")


def _time(claims: Claims, name: str) -> float | None:
    """Return a NumericDate of RFC 7519: a number of seconds, never text or a boolean. None if the claim is absent."""
    if name not in claims:
        return None
    value = claims[name]
    if type(value) not in (int, float) or not 0 <= value < MAX_TIME:  # NaN and Infinity fail the comparison
        raise jwt.DecodeError(f"{name}: not a time")
    return value


def _key_set(service: Service) -> KeySet | None:
    settings = service.settings
    if settings.jwt_jwks_file is not None:
        return file_key_set(settings.jwt_jwks_file, service)
    return None if settings.jwt_jwks_url is None else url_key_set(settings.jwt_jwks_url, service)


def _claim(claims: Claims, name: str) -> Any:
    """Return the claim of this name, else of this path (`realm_access.roles`); None if absent."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = cast("Claims", value).get(part) if isinstance(value, Mapping) else None
    return value


def _id(claims: Claims, name: str) -> str | None:
    value = _claim(claims, name)
    try:
        return None if value is None else checked(name, value)
    except InvalidRequest as error:
        raise Forbidden(f"the token's claim {error.message}") from error


def _has_right(claims: Claims, condition: str | None) -> bool:
    """Return whether `claim` is true, or the claim of `claim=value` is the value, a list or a text of words with it."""
    if condition is None:
        return False
    name, _, value = condition.partition("=")
    found = _claim(claims, name)
    if not value:
        return found is True
    return value in (found.split(" ") if isinstance(found, str) else found if isinstance(found, list) else [])
