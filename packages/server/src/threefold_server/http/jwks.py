"""The public keys of the tokens' issuer: cached, read again when they change, kept while the endpoint is down."""

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
"""Least time between two reads of the keys, so that invented key ids do not flood the issuer."""


class KeySet:
    """The issuer's keys by id."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], service: Service) -> None:
        self._read = read
        self._service = service
        self._fresh_for = int(service.settings.jwt_jwks_seconds * MICROS)
        self._keys: dict[str | None, PyJWK] = {}
        self._fresh_until = self._retry_at = float("-inf")
        self._failed = False
        self._lock = anyio.Lock()

    async def find(self, key_id: str | None) -> PyJWK | None:
        """Return the key of this id; None if the issuer has no such key.

        Raises:
            Unavailable: The key is not cached, and the issuer's keys cannot be read.
        """
        cached = self._get(key_id)
        if cached is None or self._service.ticks() >= self._fresh_until:
            await self._refresh(wait=cached is None)
        found = self._get(key_id)
        if found is None and self._failed:
            raise Unavailable(
                "the keys of the tokens' issuer cannot be read, and the key of this token is not cached; try again"
            )
        return found

    def _get(self, key_id: str | None) -> PyJWK | None:
        """Return the cached key of this id. Without an id, return the only key if there is exactly one."""
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _refresh(self, *, wait: bool) -> None:
        """Read the keys, unless that was tried just now. Without `wait`, do nothing while another call reads them."""
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
                logger.warning("cannot read the issuer's keys", extra={"fields": {"error": type(error).__name__}})
            else:
                self._failed, self._fresh_until = False, now + self._fresh_for


def url_key_set(url: str, service: Service) -> KeySet:
    """Return the keys behind a URL."""
    return KeySet(partial(_fetch, url), service)


def file_key_set(path: Path, service: Service) -> KeySet:
    """Return the keys in a file, which may be replaced at any time."""
    return KeySet(anyio.Path(path).read_bytes, service)


class _Document(BaseModel):
    keys: list[dict[str, JsonValue]]


def _parse(document: bytes) -> dict[str | None, PyJWK]:
    """Return the keys for signatures by id; keys of an unknown type are ignored."""
    keys = PyJWKSet(_Document.model_validate_json(document).keys).keys
    return {key.key_id: key for key in keys if key.public_key_use in (None, "sig")}


async def _fetch(url: str) -> bytes:
    async with httpx.AsyncClient(timeout=FETCH_SECONDS) as client:
        response = await client.get(url, headers={"Accept": "application/json"})
        response.raise_for_status()
        return response.content
