"""Metrics, logs and spans: numbers and kinds, never ids and never content."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
        self.erasures = Counter("threefold_erasures", "Forgets carried out.", ["selector"], registry=self.registry)
        self.erased_rows = Counter("threefold_erased_rows", "Rows erased.", ["tier"], registry=self.registry)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


class JsonFormatter(logging.Formatter):
    """One JSON object per line. Fields come from `extra={"fields": {...}}`; exceptions give their type only here."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(level: str) -> None:
    """Send the service's log to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
