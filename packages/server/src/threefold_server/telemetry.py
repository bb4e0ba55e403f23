"""Metrics, logs and spans: numbers and kinds, never ids and never content."""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

try:
    from opentelemetry import trace
except ImportError:  # the [otel] extra is not installed: there are no spans
    trace = None

logger = logging.getLogger("threefold")


class Metrics:
    """The counters of one service, in a registry of their own so that two services share a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
            "threefold_tasks", "Background tasks by kind and state.", ["kind", "state"], registry=self.registry
        )
        self.task_failures = Counter(
            "threefold_task_failures",
            "Background attempts that failed.",
            ["kind", "permanent"],
            registry=self.registry,
        )
        self.jwks_failures = Counter(
            "threefold_jwks_failures", "Times the issuer's keys could not be read.", registry=self.registry
        )
        self.model_calls = Counter(
            "threefold_model_calls", "Model calls of background work.", ["outcome"], registry=self.registry
        )
        self.model_tokens = Counter(
            "threefold_model_tokens", "Tokens of these calls, sent and received.", registry=self.registry
        )
        self.facts = Counter(
            "threefold_facts", "Facts drawn from turns, by what became of them.", ["outcome"], registry=self.registry
        )
        self.erasures = Counter("threefold_erasures", "Forgets carried out.", ["selector"], registry=self.registry)
        self.erased_rows = Counter("threefold_erased_rows", "Rows erased.", ["tier"], registry=self.registry)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the fields of `extra={"fields": {...}}`. Of an exception only the type is told:
    its message may quote what was said."""

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


def configure_logging(level: str) -> None:
    """Send the service's log to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    # MCP's library quotes messages that it cannot read, through its own loggers and through the root logger.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_mcp)


def _not_of_mcp(record: logging.LogRecord) -> bool:
    return "/mcp/shared/" not in record.pathname


def configure_tracing() -> None:
    """Export spans by OTLP over HTTP; the standard OTEL_* variables say where to. Needs the [otel] extra."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_tracer_provider

    provider = TracerProvider(resource=Resource.create({"service.name": "threefold"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_tracer_provider(provider)


def span(name: str, **attributes: str | int | float) -> AbstractContextManager[Any]:
    """A span around a piece of work; nothing where no tracing is configured. Attributes are kinds, never ids."""
    if trace is None:
        return nullcontext()
    # By default a span takes down the message of what is raised through it, which may quote what was said.
    return trace.get_tracer("threefold").start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    )
