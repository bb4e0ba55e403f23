"""Traces of requests, models and background work, without ids and content."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fixtures.command_line import running
from threefold.errors import InternalError
from threefold_server import telemetry
from threefold_server.local import LocalService


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def test_requests_models_and_background_work_have_spans(sqlite_url: str, spans: InMemorySpanExporter) -> None:
    with (
        LocalService(database_url=sqlite_url, embedder="hash") as service,
        service.client(user="kumquat", timeout=60) as memory,
    ):
        memory.write("kumquat", [{"role": "user", "content": "kumquat"}])
        memory.wait("kumquat")
        memory.recall("kumquat")
    finished = spans.get_finished_spans()
    assert {"post_write", "post_recall", "embed", "search", "index"} <= {span.name for span in finished}
    [recall] = [span for span in finished if span.name == "post_recall"]
    expected = {"http.request.method": "POST", "http.route": "/v1/recall", "http.response.status_code": 200}
    assert dict(recall.attributes or {}) == expected
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

    monkeypatch.setattr("threefold_server.storage.memories.listing.page", broken)
    with (
        LocalService(database_url=sqlite_url, embedder="hash") as service,
        service.client() as memory,
        pytest.raises(InternalError),
    ):
        memory.list()
    [span] = [span for span in spans.get_finished_spans() if span.name == "post_list"]
    expected = {"http.request.method": "POST", "http.route": "/v1/list", "http.response.status_code": 500}
    assert dict(span.attributes or {}) == expected
    assert "kumquat" not in span.to_json()


HOST = """
import json, sys
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

instrumented, data = sys.argv[1:]
spans, logs, reader = InMemorySpanExporter(), InMemoryLogRecordExporter(), InMemoryMetricReader()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(spans))
metrics.set_meter_provider(MeterProvider([reader]))
_logs.set_logger_provider(LoggerProvider())
_logs.get_logger_provider().add_log_record_processor(SimpleLogRecordProcessor(logs))

from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
if instrumented == "before":
    FastAPIInstrumentor().instrument()
from threefold_server import local
if instrumented == "after":
    made = local.create_app
    def create_app(settings):
        app = made(settings)
        FastAPIInstrumentor.instrument_app(app)
        return app
    local.create_app = create_app

import httpx
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
with local.LocalService(data, embedder="hash", consolidate=False) as service:
    with httpx.Client(base_url="http://localhost", transport=service.transport()) as http:
        sent = [
            ("POST", "/v1/facts", {"text": "kumquat"}, {"traceparent": PARENT}),
            ("GET", "/v1/facts/kumquat?in_session=kumquat", None, {}),
            ("GET", "/v1/sessions/kumquat/digests/1?user=kumquat", None, {}),
            ("GET", "/kumquat?user=kumquat", None, {}),
            ("KUMQUAT", "/v1/whoami", None, {}),
            ("POST", "/v1/write", {"kumquat": "kumquat"}, {}),
            ("GET", "/v1/whoami", None, {"Host": "kumquat"}),
            *(("GET", path, None, {}) for path in ("/healthz", "/readyz", "/metrics", "/healthz?user=kumquat")),
        ]
        for method, path, body, headers in sent:
            http.request(method, path, json=body, headers=headers)
measured = reader.get_metrics_data()
print(json.dumps({
    "spans": [json.loads(span.to_json()) for span in spans.get_finished_spans()],
    "metrics": measured and json.loads(measured.to_json()),
    "logs": [str(record.log_record.body) for record in logs.get_finished_logs()],
}))
"""


@pytest.mark.parametrize("instrumented", ["not", "before", "after"])
def test_one_span_per_request_reaches_the_providers_of_a_host(tmp_path: Path, instrumented: str) -> None:
    """Neither FastAPI's own telemetry nor OpenTelemetry's instrumentation of it adds spans, metrics or logs."""
    command = [sys.executable, "-c", HOST, instrumented, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    assert "kumquat" not in done.stdout.lower()
    assert "http.server" not in json.dumps(told["metrics"])
    assert told["logs"] == []
    requests = [span for span in told["spans"] if span["kind"] == "SpanKind.SERVER"]
    assert [(span["name"], span["attributes"].get("http.route")) for span in requests] == [
        ("post_fact", "/v1/facts"),
        ("get_fact", "/v1/facts/{fact_id}"),
        ("get_digest", "/v1/sessions/{session_id}/digests/{version}"),
        ("unknown", None),
        ("get_whoami", "/v1/whoami"),
        ("post_write", "/v1/write"),
        ("unknown", None),
    ]
    assert requests[4]["attributes"]["http.request.method"] == "_OTHER"
    assert requests[0]["context"]["trace_id"] == "0x0af7651916cd43dd8448eb211c80319c"
    assert requests[0]["parent_id"] == "0xb7ad6b7169203331"
    assert {span["parent_id"] for span in requests[1:]} == {None}


def test_failing_collector_is_logged_once_as_json(tmp_path: Path) -> None:
    asked = Semaphore(0)

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(400)
            self.end_headers()
            asked.release()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as collector:
        thread = Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (exporting | {"OTEL_BSP_SCHEDULE_DELAY": "50"}).items():
                patch.setenv(name, value)
            arguments = ("serve", "--port", "0", "--data", str(tmp_path / "data"), "--embedder", "hash", "--otel")
            with running(*arguments) as process, process.client() as memory:
                for _ in range(3):
                    memory.whoami()
                    assert asked.acquire(timeout=60)
                assert process.stop() == 0
        collector.shutdown()
        thread.join()
    lines: list[dict[str, Any]] = [json.loads(line) for line in process.rest.splitlines()]
    [told] = [line for line in lines if line["logger"].startswith("opentelemetry")]
    assert "Failed to export span batch" in told["message"]
