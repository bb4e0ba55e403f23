"""Large bodies, which are parsed in a thread, get the same answers as small ones."""

from __future__ import annotations

import json

import httpx
import pytest

from threefold_server.http.bodies import LARGE_BYTES

JSON = {"Content-Type": "application/json"}
PADDING = b" " * LARGE_BYTES


def both(http: httpx.Client, body: bytes, path: str = "/v1/write") -> list[httpx.Response]:
    """Return the answers to a small body, and to the same body padded with spaces so that it counts as large."""
    return [http.post(path, content=content, headers=JSON) for content in (body, PADDING + body)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"session_id": "s", "turns": [{"role": "nobody", "content": "x"}]}',
        b'{"session_id": "s", "turns": [], "user": "bob"}',
        b'{"turns": []}',
        b"[]",
        b"null",
        b'{"session_id": "s", "turns": [{"role": "user", "content": "\xe9"}]}',
        b'{"session_id": "s", "turns": ' + b"[" * 5_000,
        b'{"session_id": "s", "expected_revision": ' + b"9" * 5_000 + b"}",
    ],
)
def test_a_wrong_body_is_refused_alike(http: httpx.Client, body: bytes) -> None:
    small, large = both(http, body)
    assert (small.status_code, large.status_code) == (422, 422)
    assert large.json()["error"]["code"] == "invalid_request"
    fields = [answer.json()["error"]["details"].get("fields") for answer in (small, large)]
    if fields[0]:
        assert fields[0] == fields[1]


def test_broken_json_names_its_position(http: httpx.Client) -> None:
    answers = both(http, b'{"session_id": "s", "turns": [}')
    assert [answer.status_code for answer in answers] == [422, 422]
    assert "JSON decode error" in answers[1].json()["error"]["message"]


@pytest.mark.parametrize("content", ["kumquat", "", "\u00e9\U0001f600", '\n\t"\\', "a\x00b", "\ud800"], ids=ascii)
def test_a_right_body_is_stored_alike(http: httpx.Client, content: str) -> None:
    body = json.dumps({"session_id": "s1", "turns": [{"role": "user", "content": content}]}).encode()
    assert [answer.status_code for answer in both(http, body)] == [200, 200]
    small, large = (turn["content"] for turn in http.get("/v1/sessions/s1/turns").json()["turns"])
    assert small == large


def test_too_many_values_are_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/write", content=b'{"turns":[' + b"[]," * 500_000 + b"0]}", headers=JSON)
    assert answer.status_code == 422
    assert "500,000 values" in answer.json()["error"]["message"]
