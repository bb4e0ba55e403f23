"""`Endpoint`: URL, identity and deadlines, the base of both clients."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Self
from urllib.parse import quote

import httpx

from threefold.calls import Call, Deadlines, R
from threefold.checks import checked_id
from threefold.contract.paths import AGENT_HEADER, USER_HEADER
from threefold.retries import Retries

DEFAULT_URL = "http://127.0.0.1:8181"


class Endpoint:
    """URL, identity and deadlines of a client."""

    def __init__(
        self,
        url: str,
        user: str | None,
        agent: str | None,
        api_key: str | None,
        timeout: float | Deadlines,
        clock: Callable[[], float],
    ) -> None:
        self.url = _checked_url(url)
        self.user = user if user is None else checked_id("user", user)
        self.agent = agent if agent is None else checked_id("agent", agent)
        self.deadlines = timeout if isinstance(timeout, Deadlines) else Deadlines(timeout, timeout, timeout)
        self._api_key = _checked_key(api_key)
        self._clock = clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, user={self.user!r}, agent={self.agent!r})"

    @property
    def origin(self) -> str:
        """Hash of the URL and the key. Writes in the spool are sent only by a client with the same origin."""
        return hashlib.sha256(json.dumps([self.url, self._api_key]).encode()).hexdigest()[:16]

    def acting_as(self, *, user: str | None, agent: str | None) -> Self:
        """Return a client for another user and agent that shares the connections of this one.

        Args:
            user: The user, or None to name no user.
            agent: The agent, or None to name no agent.

        Raises:
            InvalidRequest: The user or the agent is not a valid id.
        """
        clone = copy.copy(self)
        clone.user = user if user is None else checked_id("user", user)
        clone.agent = agent if agent is None else checked_id("agent", agent)
        return clone

    def _retries(self, call: Call[R]) -> Retries[R]:
        return Retries(call, self.url, call.seconds(self.deadlines), self._clock)

    def _request(self, client: httpx.Client | httpx.AsyncClient, call: Call[R], left: float) -> httpx.Request:
        return client.build_request(
            call.method,
            self.url + call.path,
            params=call.params or None,
            content=call.body,
            headers=self._headers(call),
            timeout=left,
        )

    def _headers(self, call: Call[R]) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        if self.user is not None:
            headers[USER_HEADER] = quote(self.user, safe="")
        if self.agent is not None:
            headers[AGENT_HEADER] = quote(self.agent, safe="")
        return headers


def _checked_url(text: str) -> str:
    """Return an http(s) URL. Credentials and queries are refused, because the URL appears in messages."""
    try:
        url = httpx.URL(text.rstrip("/"))
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"url must be an http:// or https:// URL with a host, for example {DEFAULT_URL}")
    if url.userinfo or url.query or url.fragment:
        raise ValueError("url must not contain credentials, a query or a fragment; pass the key as api_key")
    return str(url)


def _checked_key(key: str | None) -> str | None:
    """Return a key that fits in a header. The error does not quote the key."""
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        raise ValueError("api_key must be printable ASCII without surrounding blanks (a trailing newline?)")
    return key
