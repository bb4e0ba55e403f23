"""Metrics, logs and spans. They contain numbers and kinds, never ids and never content."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

try:
    from opentelemetry import propagate, trace
except ImportError:  # the [otel] extra is not installed: there are no spans
    propagate = trace = None

logger = logging.getLogger("threefold")

REPEAT_SECONDS = 3_600.0
"""Interval in which an exporter's log shows one record."""
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_INSTRUMENTED = "_is_instrumented_by_opentelemetry"


class Metrics:
    """The metrics of one service, in their own registries so that two services can share a process.

    Those of background work have a registry of their own: they may come from another process.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.work_registry = CollectorRegistry()
        self.requests = Counter(
            "threefold_requests", "Requests answered.", ["operation", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "threefold_request_seconds",
            "Seconds per request.",
            ["operation"],
            registry=self.registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
        )
        self.degraded = Counter(
            "threefold_degraded", "Recalls that answered without a tier.", ["tier"], registry=self.registry
        )
        self.tasks = Gauge(
            "threefold_tasks", "Background tasks by kind and state.", ["kind", "state"], registry=self.work_registry
        )
        self.task_failures = Counter(
            "threefold_task_failures",
            "Background attempts that failed.",
            ["kind", "permanent"],
            registry=self.work_registry,
        )
        self.consolidation_up = Gauge(
            "threefold_consolidation_up", "1 while background work runs here, else 0.", registry=self.registry
        )
        self.consolidation_restarts = Counter(
            "threefold_consolidation_restarts",
            "Times the process of background work was started again.",
            registry=self.registry,
        )
        self.jwks_failures = Counter(
            "threefold_jwks_failures", "Times the issuer's keys could not be read.", registry=self.registry
        )
        self.model_calls = Counter(
            "threefold_model_calls", "Model calls of background work.", ["outcome"], registry=self.work_registry
        )
        self.model_tokens = Counter(
            "threefold_model_tokens",
            "Tokens of the model calls of background work, sent and received.",
            registry=self.work_registry,
        )
        self.facts = Counter(
            "threefold_facts", "Facts extracted from turns, by outcome.", ["outcome"], registry=self.work_registry
        )
        self.index_lookups = Counter(
            "threefold_index_lookups",
            "Recalls by where they searched: in memory (hit, update, load), or in the database.",
            ["outcome"],
            registry=self.registry,
        )
        self.index_bytes = Gauge(
            "threefold_index_bytes", "Bytes of the search indexes kept in memory.", registry=self.registry
        )
        self.index_evictions = Counter(
            "threefold_index_evictions", "Owners whose index was dropped to make room.", registry=self.registry
        )
        self.erasures = Counter(
            "threefold_erasures", "Forget requests carried out.", ["selector"], registry=self.registry
        )
        self.erased_rows = Counter("threefold_erased_rows", "Rows erased.", ["tier"], registry=self.registry)

    def render(self, work: bytes | None = None) -> bytes:
        """Return the metrics in the Prometheus text format; `work` are those of background work in another process."""
        return generate_latest(self.registry) + (self.render_work() if work is None else work)

    def render_work(self) -> bytes:
        """Return the metrics of the background work of this process in the Prometheus text format."""
        return generate_latest(self.work_registry)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with the fields of `extra={"fields": {...}}`.

    Of an exception it shows the type only: the message may quote what was said.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = getattr(record.exc_info[0], "__name__", "unknown")
        return json.dumps(entry, ensure_ascii=False)


class Hourly(logging.Filter):
    """Passes one record of each logger per hour: exporters repeat an error while their collector is down."""

    def __init__(self) -> None:
        super().__init__()
        self._until: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created < self._until.get(record.name, 0):
            return False
        self._until[record.name] = record.created + REPEAT_SECONDS
        return True


def configure_logging(level: str) -> None:
    """Send the service's log to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    exporters = logging.StreamHandler()
    exporters.setFormatter(JsonFormatter())
    exporters.addFilter(Hourly())
    opentelemetry = logging.getLogger("opentelemetry")
    opentelemetry.handlers[:] = [exporters]
    opentelemetry.propagate = False
    # The MCP library quotes messages that it cannot parse, through its own loggers and through the root logger.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_mcp)


def _not_of_mcp(record: logging.LogRecord) -> bool:
    return "/mcp/shared/" not in record.pathname


def configure_tracing() -> None:
    """Export spans by OTLP over HTTP, unless the process already has a tracer provider.

    The standard OTEL_* variables configure the exporter. Needs the [otel] extra.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider, set_tracer_provider

    if not isinstance(get_tracer_provider(), ProxyTracerProvider):
        return
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):  # OTEL_SERVICE_NAME is not set
        resource = resource.merge(Resource({"service.name": "threefold"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_tracer_provider(provider)


def keep_own_spans(app: Any) -> None:
    """Prevent OpenTelemetry's instrumentation of an app: its spans contain paths with ids and query strings."""
    if getattr(app, _INSTRUMENTED, False):
        from opentelemetry.instrumentation.fastapi import (  # pyright: ignore[reportMissingTypeStubs]
            FastAPIInstrumentor,
        )

        FastAPIInstrumentor.uninstrument_app(app)
    setattr(app, _INSTRUMENTED, True)  # so that it is not instrumented later


def span(name: str, **attributes: str | int | float) -> AbstractContextManager[Any]:
    """Return a context manager with a span around some work; without tracing, one that does nothing.

    Attributes are kinds and numbers, never ids.
    """
    if trace is None:
        return nullcontext()
    # By default a span records the message of an exception, which may quote what was said.
    return trace.get_tracer("threefold").start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    )


@contextmanager
def request_span(method: str, headers: Iterable[tuple[bytes, bytes]]) -> Generator[Any]:
    """Open a span around a request, in the trace that its headers name. Yield None without tracing."""
    if trace is None:
        yield None
        return
    attributes = {"http.request.method": method if method in METHODS else "_OTHER"}
    with trace.get_tracer("threefold").start_as_current_span(
        "request",
        context=_caller_context(headers),
        kind=trace.SpanKind.SERVER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        yield current


def _caller_context(headers: Iterable[tuple[bytes, bytes]]) -> Any:
    """Return the caller's trace; None within a span of this process (of a host application, or of a call over MCP)."""
    carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in TRACE_HEADERS}
    if not carrier or propagate is None or trace is None or trace.get_current_span().get_span_context().is_valid:
        return None
    return propagate.extract(carrier)
