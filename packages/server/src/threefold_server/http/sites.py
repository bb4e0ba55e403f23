"""Checks of host, origin and content type: protection against web pages that send requests through a user's browser.

In mode `dev` requests carry no credential, and behind a gateway the browser adds it (a cookie). A page of another site
could therefore send requests as the user. Modes `keys` and `jwt` need no check of the origin: a browser does not add
their tokens by itself.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from threefold.errors import Forbidden, InvalidRequest, ServiceError
from threefold_server.http.errors import respond
from threefold_server.http.headers import single_value
from threefold_server.settings import Settings

AMBIENT = frozenset({"dev", "gateway"})
"""Modes in which every request of a browser counts as the user's, whichever page made it."""

SHOWN_CHARS = 100
"""Most characters of a header in an error message."""
_AUTHORITY = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{0,5})?", re.IGNORECASE | re.ASCII)


class SiteGuard:
    """Refuses requests to an unknown host, from a page of another site, or with a body that is not declared as JSON."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope))
            except ServiceError as error:
                await respond(Request(scope), error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        host = single_value(headers, "host") or ""
        if self._settings.mode == "dev" or self._settings.hosts:
            self._check_host(host)
        if self._settings.mode in AMBIENT:
            self._check_page(headers, host)
        _check_content_type(headers)

    def _check_host(self, host: str) -> None:
        if not self._is_listed(host, loopback=True):
            raise Forbidden(
                f"Host: {_shown(host)} is not a name of this service; use localhost or 127.0.0.1, or list the name "
                "in THREEFOLD_ALLOWED_HOSTS"
            )

    def _check_page(self, headers: Headers, host: str) -> None:
        """Raise Forbidden for a request of another site's page. Only browsers send these headers."""
        site = single_value(headers, "sec-fetch-site")
        name = "Origin" if "origin" in headers else "Referer"
        page = single_value(headers, name)
        if page is None:
            foreign = site not in (None, "none", "same-origin")
        else:
            same_origin = self._settings.mode == "gateway" and site == "same-origin"  # a proxy may change the host
            foreign = not same_origin and not self._is_own_page(page, host)
        if foreign:
            source = f"{name}: {_shown(page)}" if page else f"Sec-Fetch-Site: {_shown(site or '')}"
            raise Forbidden(
                f"{source} is a page of another site; to allow it, list its host in THREEFOLD_ALLOWED_HOSTS"
            )

    def _is_own_page(self, page: str, host: str) -> bool:
        try:
            url = urlsplit(page)
        except ValueError:  # brackets that do not match
            return False
        if url.scheme not in ("http", "https"):  # sandboxed frames and files send "null"
            return False
        gateway = self._settings.mode == "gateway"
        same = gateway and url.netloc.lower() == host.lower() != ""
        return same or self._is_listed(url.netloc, loopback=not gateway)

    def _is_listed(self, authority: str, *, loopback: bool) -> bool:
        name = host_name(authority)
        return name is not None and (name in self._settings.hosts or (loopback and _is_loopback(name)))


def host_name(authority: str) -> str | None:
    """Return `localhost` for `LocalHost.:8181`, `::1` for `[::1]:8181`; None for an invalid host, such as `a@b`."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    name = found["name"].lower()
    return name.strip("[]") if name.startswith("[") else name.removesuffix(".") or None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _check_content_type(headers: Headers) -> None:
    """Raise InvalidRequest if a body is not JSON: a page may send other types to any site without a preflight."""
    kind = single_value(headers, "content-type") or ""
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if has_body and kind.partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest(f"Content-Type: must be application/json, not {_shown(kind)}", {"field": "content-type"})


def _shown(value: str) -> str:
    return repr(value[:SHOWN_CHARS])
