"""Mode `gateway`: identity headers are accepted only from a proxy in its network that has the secret."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from threefold_server.app import create_app
from threefold_server.local import LocalService
from threefold_server.settings import Settings

SECRET = "what only the proxy and the service know"
PROVEN = {"X-Threefold-Gateway-Secret": SECRET, "X-Threefold-User": "ana", "X-Threefold-Agent": "support"}
COMMON: dict[str, Any] = {"mode": "gateway", "embedder": "hash", "consolidate": False, "gateway_secret": SECRET}


@contextmanager
def behind(headers: Any, **settings: Any) -> Generator[httpx.Client]:
    """Yield a client that is the proxy or pretends to be."""
    with (
        LocalService(**{**COMMON, **settings}) as service,
        httpx.Client(base_url="http://threefold.local", transport=service.transport(), headers=headers) as client,
    ):
        yield client


def refusal(client: httpx.Client, headers: Any = None) -> tuple[int, Any]:
    answer = client.get("/v1/whoami", headers=headers)
    return answer.status_code, answer.json()["error"]


def test_proxy_names_the_caller() -> None:
    with behind(PROVEN, max_read_level="user") as client:
        who = client.get("/v1/whoami").json()
    assert (who["user"], who["agent"], who["ceiling"], who["mode"]) == ("ana", "support", "user", "gateway")
    assert (who["admin"], who["may_share"]) == (False, False)


@pytest.mark.parametrize("secret", [None, "", SECRET[:-1], SECRET + "x", SECRET.upper(), "\xe9"])
def test_request_without_the_secret_is_refused(secret: str | None) -> None:
    """Users reported that a shared service key with a header was enough to be any user."""
    shown = [] if secret is None else [(b"X-Threefold-Gateway-Secret", secret.encode("latin-1"))]
    with behind([(b"X-Threefold-User", b"ana"), (b"X-Threefold-Agent", b"support"), *shown]) as client:
        assert refusal(client)[0] == 401


def test_request_from_another_network_is_refused_with_the_same_error() -> None:
    with behind(PROVEN, gateway_networks="10.0.0.0/8") as elsewhere, behind(PROVEN) as client:
        assert refusal(elsewhere) == refusal(client, {"X-Threefold-Gateway-Secret": "wrong"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("peer", "status"), [("10.1.2.3", 200), ("::ffff:10.1.2.3", 200), ("fd00::1", 200), ("11.1.2.3", 401), ("", 401)]
)
async def test_networks_come_from_the_settings(peer: str, status: int, sqlite_url: str) -> None:
    settings: dict[str, Any] = {"database_url": sqlite_url, "gateway_networks": "10.0.0.0/8, fd00::/8"}
    app = create_app(Settings(**COMMON, **settings))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(base_url="http://x", transport=httpx.ASGITransport(app, client=(peer, 1))) as client,
    ):
        assert (await client.get("/v1/whoami", headers=PROVEN)).status_code == status


@pytest.mark.parametrize("missing", ["X-Threefold-User", "X-Threefold-Agent"])
def test_missing_user_or_agent_is_refused(missing: str) -> None:
    with behind({name: value for name, value in PROVEN.items() if name != missing}) as client:
        status, error = refusal(client)
    assert (status, missing.lower() in error["message"]) == (403, True)


def test_names_are_used_unchanged() -> None:
    """A user who can choose a name must not become another user by percent signs."""
    with behind(PROVEN) as client:
        for name in ("ana%20m", "a/b", "O'Brien", "日本"):
            answer = client.get("/v1/whoami", headers={b"X-Threefold-User": name.encode()})
            assert answer.json()["user"] == name
        assert refusal(client, {b"X-Threefold-User": b"\xff"})[0] == 422
        assert refusal(client, {"X-Threefold-User": "*"})[0] == 422


def test_duplicate_identity_header_is_refused() -> None:
    with behind(PROVEN) as client:
        twice = [("X-Threefold-User", "ana"), ("X-Threefold-User", "bob")]
        request = client.build_request("GET", "/v1/whoami", headers=httpx.Headers([*PROVEN.items(), twice[1]]))
        assert client.send(request).status_code == 422


def test_mcp_tool_call_has_the_identity_of_the_gateway() -> None:
    """The inner calls of an MCP request are authenticated again by its headers and address."""
    call = {"name": "save_memory", "arguments": {"text": "The gate code is 4711."}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    accept = {"Accept": "application/json, text/event-stream"}
    with behind(PROVEN) as client:
        answer = client.post("/mcp", json=message, headers=accept).json()
        assert "Saved as" in answer["result"]["content"][0]["text"]
        assert len(client.post("/v1/list", json={}).json()["items"]) == 1
        unproven = accept | {"X-Threefold-Gateway-Secret": "x"}
        assert client.post("/mcp", json=message, headers=unproven).status_code == 401


def test_names_of_headers_can_be_set() -> None:
    names = {
        "gateway_secret_header": "X-Proof",
        "gateway_user_header": "X-Forwarded-User",
        "gateway_agent_header": "X-App",
        "gateway_level_header": "X-Level",
        "gateway_share_header": "X-Share",
        "gateway_admin_header": "X-Admin",
    }
    headers = {"X-Proof": SECRET, "X-App": "support", "X-Level": "session", "X-Share": "true", "X-Admin": "true"}
    with behind(headers, **names, allow_self=True) as client:
        who = client.get("/v1/whoami").json()
        assert (who["user"], who["ceiling"], who["may_share"], who["admin"]) == (None, "session", True, True)
        plain = client.get("/v1/whoami", headers={"X-Forwarded-User": "ana", "X-Admin": "false"}).json()
        assert (plain["user"], plain["admin"]) == ("ana", False)
        assert refusal(client, {"X-Level": "everything"})[0] == 403
