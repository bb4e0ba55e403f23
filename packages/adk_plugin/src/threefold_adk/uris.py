"""`threefold://` URIs, as `adk web`, `adk run` and `adk api_server` accept them."""

from __future__ import annotations

from threefold import AsyncMemoryClient

SCHEMES = {"threefold": "http", "threefold+https": "https"}


def client_from(uri: str) -> AsyncMemoryClient:
    """Return a client of the service that a URI names; without a host, of the one that THREEFOLD_URL names.

    The key comes from THREEFOLD_API_KEY, because other users of a machine can read command lines.
    """
    scheme, mark, address = uri.partition("://")
    protocol = SCHEMES.get(scheme.lower())
    if not mark or protocol is None:
        raise ValueError(f"the URI of a Threefold service must begin with {' or '.join(f'{s}://' for s in SCHEMES)}")
    return AsyncMemoryClient.from_env(f"{protocol}://{address}" if address else None)
