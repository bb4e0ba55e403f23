"""The public keys of a token's issuer: cached, followed when they change, kept through an outage of their endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import httpx
from jwt import PyJWK, PyJWKSet, PyJWTError
from pydantic import BaseModel, JsonValue

from threefold.errors import Unavailable
from threefold_server.clock import MICROS
from threefold_server.service import Service
from threefold_server.telemetry import logger

FETCH_SECONDS = 3.0
RETRY_MICROS = 10 * MICROS
"""Between two looks for a key that is not there, so that invented key ids do not become requests to the issuer."""


class KeySet:
    """The issuer's keys by their ids."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], service: Service) -> None:
        self._read = read
        self._service = service
        self._fresh_for = int(service.settings.jwt_jwks_seconds * MICROS)
        self._keys: dict[str | None, PyJWK] = {}
        self._fresh_until = self._retry_at = float("-inf")
        self._failed = False
        self._lock = anyio.Lock()

    async def find(self, key_id: str | None) -> PyJWK | None:
        """The key of this id; None where the issuer has none, `Unavailable` where it cannot be asked."""
        known = self._get(key_id)
        if known is None or self._service.ticks() >= self._fresh_until:
            await self._look_again(wait=known is None)
        found = self._get(key_id)
        if found is None and self._failed:
            raise Unavailable("the keys of the tokens' issuer cannot be had, and this token's is not known; try again")
        return found

    def _get(self, key_id: str | None) -> PyJWK | None:
        """A token that names no key can only mean the one there is."""
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _look_again(self, *, wait: bool) -> None:
        """Read the keys, unless that was just tried; whoever knows its key does not wait for another's look."""
        if self._lock.locked() and not wait:
            return
        async with self._lock:
            now = self._service.ticks()
            if now < self._retry_at:
                return
            self._retry_at = now + RETRY_MICROS
            try:
                with anyio.fail_after(FETCH_SECONDS):
                    self._keys = _parse(await self._read())
            except (httpx.HTTPError, OSError, ValueError, PyJWTError) as error:
                self._failed = True
                self._service.metrics.jwks_failures.inc()
                logger.warning("no keys from the issuer", extra={"fields": {"error": type(error).__name__}})
            else:
                self._failed, self._fresh_until = False, now + self._fresh_for


def url_key_set(url: str, service: Service) -> KeySet:
    """Keys behind a URL."""
    return KeySet(partial(_fetch, url), service)


def file_key_set(path: Path, service: Service) -> KeySet:
    """Keys in a file, which may be replaced at any time."""
    return KeySet(anyio.Path(path).read_bytes, service)


class _Document(BaseModel):
    keys: list[dict[str, JsonValue]]


def _parse(document: bytes) -> dict[str | None, PyJWK]:
    """The keys that may verify a signature; one of an unknown kind is passed over."""
    keys = PyJWKSet(_Document.model_validate_json(document).keys).keys
    return {key.key_id: key for key in keys if key.public_key_use in (None, "sig")}


async def _fetch(url: str) -> bytes:
    async with httpx.AsyncClient(timeout=FETCH_SECONDS) as client:
        response = await client.get(url, headers={"Accept": "application/json"})
        response.raise_for_status()
        return response.content
