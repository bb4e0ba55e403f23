"""The HTTP layer: one form of errors, a complete OpenAPI document, and probes and metrics without ids."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from fixtures.postgres import Databases
from threefold import MemoryClient
from threefold.errors import ERRORS
from threefold_server.app import create_app
from threefold_server.local import LocalService
from threefold_server.settings import Settings


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/write", 405, "invalid_request"),
        ("GET", "/v1/sessions/unknown/turns", 404, "not_found"),
        ("GET", "/v1/sessions/unknown/status", 404, "not_found"),
        ("POST", "/v1/sessions/unknown/end", 404, "not_found"),
        ("GET", "/v1/sessions/unknown/digests", 404, "not_found"),
        ("GET", "/v1/sessions/unknown/digests/1", 404, "not_found"),
        ("GET", "/v1/sessions/unknown/digests/x", 422, "invalid_request"),
        ("GET", "/v1/sessions/%20/turns", 422, "invalid_request"),
        ("GET", "/v1/sessions/a%00b/turns", 422, "invalid_request"),
        ("GET", "/v1/sessions?limit=-1", 422, "invalid_request"),
        ("GET", "/v1/sessions?limit=1000000000", 422, "invalid_request"),
        ("GET", "/v1/sessions?cursor=garbage", 422, "invalid_request"),
        ("GET", "/v1/sessions?cursor=WzEsMl0", 422, "invalid_request"),
        ("GET", "/v1/sessions?user_id=bob", 422, "invalid_request"),
        ("GET", "/v1/sessions/s/turns?from_seq=0", 422, "invalid_request"),
        ("GET", "/v1/sessions/s/turns?from_seq=99999999999999999999", 422, "invalid_request"),
        ("POST", "/v1/sessions/s/end?wait=-1", 422, "invalid_request"),
        ("POST", "/v1/sessions/s/end?wait=nan", 422, "invalid_request"),
    ],
)
def test_every_error_has_the_same_form(http: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message", "details"}
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["message"]


def test_body_that_is_not_utf8_is_an_invalid_request(http: httpx.Client) -> None:
    answer = http.post("/v1/recall", content=b"\xe9\x80", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
    assert "UTF-8" in answer.json()["error"]["message"]


def test_limit_zero_is_an_empty_page(http: httpx.Client) -> None:
    http.post("/v1/facts", json={"text": "x"})
    answer = http.post("/v1/list", json={"limit": 0})
    assert answer.json() == {"items": [], "next_cursor": None}


def test_liveness_and_readiness(memory: MemoryClient) -> None:
    assert memory.health().status == "ok"
    assert memory.ready().status == "ok"
    assert memory.check().user == "ana"


def test_metrics_contain_no_ids(memory: MemoryClient, http: httpx.Client) -> None:
    memory.write("session-kumquat", [{"role": "user", "content": "kumquat"}])
    memory.wait("session-kumquat")
    memory.forget(session_id="session-kumquat")
    text = http.get("/metrics").text
    assert 'threefold_requests_total{operation="post_write",status="200"} 1.0' in text
    assert 'threefold_erasures_total{selector="session"} 1.0' in text
    assert 'threefold_erased_rows_total{tier="turns"} 1.0' in text
    for secret in ("kumquat", "ana", "support"):
        assert not re.search(rf"\b{secret}", text)


def test_logs_contain_no_content(memory: MemoryClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    memory.write("session-kumquat", [{"role": "user", "content": "kumquat", "id": "kumquat"}])
    memory.recall("kumquat")
    memory.save("kumquat")
    memory.wait("session-kumquat")
    memory.forget(level="agent")
    ours = [record for record in caplog.records if not record.name.startswith("httpx")]  # httpx is the caller here
    assert "kumquat" not in "".join(record.getMessage() + repr(record.__dict__) for record in ours)


def test_openapi_document_is_complete() -> None:
    app = create_app(Settings(embedder="hash"))
    document = app.openapi()
    statuses = {str(error.status) for error in ERRORS.values()}
    operations: list[dict[str, Any]] = [
        operation
        for path, methods in document["paths"].items()
        if path.startswith("/v1")
        for operation in methods.values()
    ]
    assert operations
    for operation in operations:
        assert operation["summary"]
        assert operation["description"], operation
        assert statuses <= operation["responses"].keys()
        success = next(response for status, response in operation["responses"].items() if status.startswith("2"))
        for kind, body in success["content"].items():
            assert kind == "application/jsonl" or "$ref" in body["schema"], operation


def test_unexpected_error_reveals_no_details(
    memory: MemoryClient, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret kumquat")

    monkeypatch.setattr("threefold_server.storage.memories.listing.page", broken)
    answer = http.post("/v1/list", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "kumquat" not in answer.text
    assert "kumquat" not in caplog.text
    assert "ZeroDivisionError" in "".join(repr(record.__dict__) for record in caplog.records)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"compaction_trigger": 100, "compaction_target": 100}, "compaction"),
        ({"compaction_trigger": 5000}, "compaction"),
        ({"host": "0.0.0.0"}, "loopback"),
        ({"max_read_level": "store"}, "store"),
        ({"allowed_hosts": "memory.test, *"}, "allowed_hosts"),
        ({"allowed_hosts": "http://memory.test"}, "allowed_hosts"),
        ({"allowed_hosts": "memory.test:8181"}, "allowed_hosts"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"token_budget": 0}, "token_budget"),
    ],
)
def test_invalid_settings_are_refused_at_startup(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Settings(**settings)


def test_another_embedder_is_refused_until_reembed(database_url: str) -> None:
    """Users reported crashes and meaningless results after a change of the embedding model."""
    with LocalService(database_url=database_url, embedder="hash"):
        pass
    with (
        pytest.raises(Exception, match="reembed"),
        LocalService(database_url=database_url, embedder="minilm"),
    ):
        pass


def test_superuser_role_is_refused(postgres_url: str, databases: Databases) -> None:
    url = make_url(databases.admin_url).set(database=make_url(postgres_url).database)
    with (
        pytest.raises(RuntimeError, match="NOSUPERUSER"),
        LocalService(database_url=url.render_as_string(hide_password=False), embedder="hash"),
    ):
        pass
