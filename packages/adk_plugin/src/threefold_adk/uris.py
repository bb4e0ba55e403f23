"""`threefold://` addresses, as `adk web`, `adk run` and `adk api_server` take them."""

from __future__ import annotations

from urllib.parse import urlsplit

from threefold import AsyncMemoryClient

SCHEMES = {"threefold": "http", "threefold+https": "https"}


def client_from(uri: str) -> AsyncMemoryClient:
    """A client of the service that a URI names; without a host, of the one that THREEFOLD_URL names.

    The key comes from THREEFOLD_API_KEY: command lines and their URIs are seen by others.
    """
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"the URI of a Threefold service begins with {' or '.join(f'{s}://' for s in SCHEMES)}")
    address = uri.removeprefix(f"{parts.scheme}://")
    return AsyncMemoryClient.from_env(f"{SCHEMES[parts.scheme]}://{address}" if address else None)
