"""Attacks on the HTTP layer: requests of web pages, foreign hosts, redirects, files, and exported spans."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from fixtures.command_line import running
from threefold_server.local import LocalService

EVIL = "http://evil.example"
SECRET = "what only the proxy and the service know"
PROVEN = {"X-Threefold-Gateway-Secret": SECRET, "X-Threefold-User": "ana", "X-Threefold-Agent": "support"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def dev() -> Iterator[httpx.Client]:
    """Mode `dev`, as a browser on this machine reaches it."""
    with (
        LocalService(embedder="hash", consolidate=False, allowed_hosts="memory.test, box") as service,
        httpx.Client(base_url="http://127.0.0.1:8181", transport=service.transport()) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def gateway() -> Iterator[httpx.Client]:
    """Mode `gateway` behind a proxy that identifies its users by a cookie."""
    settings: dict[str, Any] = {"mode": "gateway", "gateway_secret": SECRET, "embedder": "hash", "consolidate": False}
    with (
        LocalService(**settings) as service,
        httpx.Client(base_url="https://memory.corp", transport=service.transport(), headers=PROVEN) as client,
    ):
        yield client


def saved(client: httpx.Client, headers: dict[str, str], content: bytes = b'{"text": "Planted."}') -> httpx.Response:
    return client.post("/v1/facts", content=content, headers=headers)


def assert_nothing_was_stored(client: httpx.Client) -> None:
    assert client.post("/v1/list", json={}).json()["items"] == []


FOREIGN_HOSTS = [
    "threefold.local",
    "threefold.local:80",
    "evil.example:8181",
    "localhost.evil.example",
    "localhost@evil.example",
    "evil.example@localhost",
    "evil.example#localhost",
    "localhost/evil.example",
    "localhost, evil.example",
    "localhost:8181:80",
    "localhost:x",
    "localhost..",
    "127.0.0.1.nip.io",
    "127.0.0.1 ",
    "2130706433",
    "0.0.0.0",
    "10.0.0.1",
    "[::2]",
    "[::ffff:10.0.0.1]",
    "[::1",
    "[localhost]",
    "sub.memory.test",
    ".",
    "",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", ["/v1/whoami", "/metrics", "/mcp", "/v1/nothing", "/v1/recall/"])
def test_foreign_host_is_refused(dev: httpx.Client, host: str, path: str) -> None:
    answer = dev.get(path, headers={"Host": host, "X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    "host",
    "localhost LOCALHOST:1 localhost. localhost: 127.0.0.1 127.8.9.1:80 [::1]:8181 [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1]"
    " memory.test Memory.Test.:8181 box:1".split(),
)
def test_own_hosts_are_answered(dev: httpx.Client, host: str) -> None:
    assert dev.get("/v1/whoami", headers={"Host": host, "X-Forwarded-Host": "evil.example"}).status_code == 200


def test_two_hosts_are_refused(dev: httpx.Client) -> None:
    for hosts in (["localhost", "localhost"], ["localhost", "evil.example"], ["evil.example", "localhost"]):
        request = httpx.Request("GET", "http://localhost/v1/whoami", headers=[("Host", host) for host in hosts])
        assert dev.send(request).status_code in (403, 422)


PAGES = [
    {"Origin": EVIL},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost@evil.example"},
    {"Origin": "http://evil.example@localhost"},
    {"Origin": "http://threefold.local"},
    {"Origin": "chrome-extension://localhost"},
    {"Origin": "http://[::1"},
    {"Origin": EVIL, "Sec-Fetch-Site": "none"},
    {"Origin": EVIL, "Referer": "http://localhost/"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "anything"},
    {"Referer": f"{EVIL}/page"},
]


@pytest.mark.parametrize("page", PAGES, ids=str)
@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain", "application/x-www-form-urlencoded"])
def test_foreign_page_stores_nothing(
    dev: httpx.Client, gateway: httpx.Client, page: dict[str, str], content_type: str | None
) -> None:
    typed = {"Content-Type": content_type} if content_type else {}
    for client in (dev, gateway):
        assert saved(client, page | typed).json()["error"]["code"] == "forbidden"
        assert client.post("/v1/sessions/s/end", headers=page).status_code == 403
        assert client.delete("/v1/facts/x", headers=page).status_code == 403
        assert client.post("/mcp", json={}, headers=page).status_code == 403
        assert_nothing_was_stored(client)


UNTYPED = [
    *("", "text/plain", "text/plain;charset=application/json", "application/x-www-form-urlencoded", "json", "*/*"),
    *("multipart/form-data; boundary=x", "application/json, text/plain", "text/json", "application/jsonl"),
]


@pytest.mark.parametrize("content_type", [None, *UNTYPED])
def test_only_declared_json_is_read(dev: httpx.Client, gateway: httpx.Client, content_type: str | None) -> None:
    typed = {} if content_type is None else {"Content-Type": content_type}
    for client in (dev, gateway):
        for body in (b'{"text": "Planted."}', b'{"text": "Planted.", "x=": 1}'):
            answer = saved(client, typed, body)
            assert (answer.status_code, answer.json()["error"]["details"]) == (422, {"field": "content-type"})
        chunked = client.post("/v1/facts", content=iter([b'{"text": ', b'"Planted."}']), headers=typed)
        assert chunked.status_code == 422
        assert_nothing_was_stored(client)


def test_own_pages_and_plain_clients_are_answered(dev: httpx.Client, gateway: httpx.Client) -> None:
    for page in (
        {},
        {"Origin": "http://localhost:6274"},
        {"Origin": "https://[::1]:3000", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://memory.test"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin", "Referer": "http://127.0.0.1:8181/"},
    ):
        assert dev.post("/v1/list", json={}, headers=page).status_code == 200
    for page in ({}, {"Origin": "https://memory.corp"}, {"Origin": "https://x.corp", "Sec-Fetch-Site": "same-origin"}):
        assert gateway.post("/v1/list", json={}, headers=page).status_code == 200
    assert gateway.post("/v1/list", json={}, headers={"Origin": "http://localhost:3000"}).status_code == 403


@pytest.mark.parametrize("path", ["/v1/recall/", "/v1/whoami/", "/healthz/", "/mcp/", "//evil.example/v1/recall/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_is_redirected(dev: httpx.Client, gateway: httpx.Client, method: str, path: str) -> None:
    for client in (dev, gateway):
        answer = client.request(method, str(client.base_url).rstrip("/") + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert "location" not in answer.headers


def raw(url: str, request: str) -> bytes:
    """Return the answer to a request that no client library would send."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as connection:
        connection.sendall(request.encode())
        return connection.makefile("rb").read()


def test_raw_requests_follow_the_same_rules(tmp_path: Path) -> None:
    """The rules also apply to requests that only the HTTP parser sees."""
    with running("serve", "--port", "0", "--data", str(tmp_path), "--embedder", "hash") as process:
        end = "Connection: close\r\n\r\n"
        body = json.dumps({"text": "Planted."})
        for head in (
            "GET /v1/whoami HTTP/1.1\r\nHost: threefold.local\r\n",
            "GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
            "GET /v1/whoami HTTP/1.1\r\n",
            "GET /v1/whoami HTTP/1.0\r\n",
            "GET http://localhost/v1/whoami HTTP/1.1\r\nHost: evil.example\r\n",
            "GET /v1/recall/ HTTP/1.1\r\nHost: evil.example\r\n",
            f"POST /v1/facts HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n",
        ):
            status, _, rest = raw(process.first_line, f"{head}{end}{body}").partition(b"\r\n")
            assert status.split()[1] in (b"400", b"403", b"422"), head
            assert b"location:" not in rest.lower()
        assert raw(process.first_line, f"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\n{end}").startswith(
            b"HTTP/1.1 200"
        )


def test_files_are_unreadable_for_other_users(tmp_path: Path) -> None:
    """Without a umask, everything below the data directory is closed to other users from the start."""
    seen: set[int] = set()
    before = os.umask(0)
    try:
        with running("serve", "--port", "0", "--data", str(tmp_path / "store"), "--embedder", "hash") as process:
            with process.client() as memory:
                memory.save("The code word is kumquat.")
            seen |= {path.stat().st_mode & 0o077 for path in (tmp_path / "store", *(tmp_path / "store").iterdir())}
    finally:
        os.umask(before)
    assert seen == {0}
