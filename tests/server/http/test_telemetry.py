"""Traces of requests, models and background work, without ids and content."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from threefold.errors import InternalError
from threefold_server import telemetry
from threefold_server.local import LocalService


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "trace", provider)
    yield exporter
    provider.shutdown()


def test_requests_models_and_background_work_have_spans(sqlite_url: str, spans: InMemorySpanExporter) -> None:
    with (
        LocalService(database_url=sqlite_url, embedder="hash", tier_deadline=30) as service,
        service.client(user="kumquat", timeout=60) as memory,
    ):
        memory.write("kumquat", [{"role": "user", "content": "kumquat"}])
        memory.wait("kumquat")
        memory.recall("kumquat")
    finished = spans.get_finished_spans()
    assert {"post_write", "post_recall", "embed", "search", "index"} <= {span.name for span in finished}
    [recall] = [span for span in finished if span.name == "post_recall"]
    assert dict(recall.attributes or {}) == {"http.response.status_code": 200}
    assert "kumquat" not in "".join(span.to_json() for span in finished)


def test_spans_are_empty_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "trace", None)
    with telemetry.span("anything") as nothing:
        assert nothing is None


def test_span_of_a_failed_request_contains_no_content(
    sqlite_url: str, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret kumquat")

    monkeypatch.setattr("threefold_server.storage.listing.page", broken)
    with (
        LocalService(database_url=sqlite_url, embedder="hash") as service,
        service.client() as memory,
        pytest.raises(InternalError),
    ):
        memory.list()
    [span] = [span for span in spans.get_finished_spans() if span.name == "post_list"]
    assert dict(span.attributes or {}) == {"http.response.status_code": 500}
    assert "kumquat" not in span.to_json()
