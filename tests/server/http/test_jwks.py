"""The keys of the issuer: cached, updated after a rotation, kept in an outage, and not requested for invented ids."""

from __future__ import annotations

from typing import Any, cast

import anyio
import httpx
import pytest

from fixtures.issuer import AUDIENCE, ISSUER, Issuer
from threefold.errors import Unavailable
from threefold_server.http.jwks import RETRY_MICROS, KeySet
from threefold_server.service import Service
from threefold_server.settings import Settings

pytestmark = pytest.mark.anyio

MINUTE = 60_000_000


class Endpoint:
    """The keys of an issuer as a service reads them, with a simulated clock."""

    def __init__(self) -> None:
        self.issuer = Issuer()
        self.now = 1_000 * MINUTE
        settings = Settings(
            mode="jwt", jwt_jwks_url="https://x", jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_jwks_seconds=300
        )
        self.service = Service(settings, cast(Any, None), cast(Any, None), cast(Any, None), ticks=lambda: self.now)
        self.keys = KeySet(self.read, self.service)

    async def read(self) -> bytes:
        self.issuer.asked += 1
        await anyio.lowlevel.checkpoint()
        if self.issuer.down:
            raise httpx.ConnectError("down")
        return self.issuer.document

    async def knows(self, key_id: str | None) -> bool:
        return await self.keys.find(key_id) is not None


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


async def test_new_key_is_found_and_the_old_one_stays_valid(endpoint: Endpoint) -> None:
    assert await endpoint.knows("first")
    endpoint.issuer.rotate("second", elliptic=True)
    endpoint.now += RETRY_MICROS
    assert await endpoint.knows("second")
    assert await endpoint.knows("first")
    assert endpoint.issuer.asked == 2


async def test_withdrawn_key_is_refused_within_minutes(endpoint: Endpoint) -> None:
    assert await endpoint.knows("first")
    endpoint.issuer.rotate("second")
    del endpoint.issuer.published[0]
    assert await endpoint.knows("first")
    endpoint.now += 5 * MINUTE
    assert not await endpoint.knows("first")


async def test_invented_key_ids_cause_no_requests(endpoint: Endpoint) -> None:
    for number in range(50):
        assert not await endpoint.knows(f"invented-{number}")
    assert endpoint.issuer.asked == 1


async def test_known_keys_are_accepted_in_an_outage_and_unknown_ones_refused(endpoint: Endpoint) -> None:
    assert await endpoint.knows("first")
    endpoint.issuer.down = True
    endpoint.now += 60 * MINUTE
    assert await endpoint.knows("first")
    with pytest.raises(Unavailable, match="issuer"):
        await endpoint.keys.find("second")
    assert endpoint.issuer.asked == 2
    assert endpoint.service.metrics.registry.get_sample_value("threefold_jwks_failures_total") == 1
    endpoint.issuer.down = False
    endpoint.now += RETRY_MICROS
    assert not await endpoint.knows("second")


@pytest.mark.parametrize("document", [b"", b"[]", b'{"keys": []}', b'{"keys": [1]}', b'{"keys": [{"kty": "new"}]}'])
async def test_invalid_document_changes_nothing(
    endpoint: Endpoint, document: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await endpoint.knows("first")
    monkeypatch.setattr(Issuer, "document", document)
    endpoint.now += 5 * MINUTE
    assert await endpoint.knows("first")
    assert endpoint.issuer.asked == 2


async def test_concurrent_callers_cause_one_request(endpoint: Endpoint) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(endpoint.knows, "first")
    assert endpoint.issuer.asked == 1


async def test_only_signing_keys_are_used_and_a_single_key_needs_no_id(endpoint: Endpoint) -> None:
    endpoint.issuer.rotate("for encryption")
    endpoint.issuer.published[-1]["use"] = "enc"
    assert not await endpoint.knows("for encryption")
    assert await endpoint.knows(None)
    endpoint.issuer.rotate("second")
    endpoint.now += 5 * MINUTE
    assert not await endpoint.knows(None)
