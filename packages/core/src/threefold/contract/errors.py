"""The one form of every error on the wire."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from threefold.contract.common import Response


class ErrorDetail(Response):
    """`code` is stable; `message` says what was wrong and what to do."""

    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorBody(Response):
    """`{"error": {...}}`"""

    error: ErrorDetail
