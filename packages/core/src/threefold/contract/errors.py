"""The body of every error."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from threefold.contract.common import Response


class ErrorDetail(Response):
    """One error. `code` is stable; `message` says what is wrong and what to do."""

    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorBody(Response):
    """The body of an answer that is an error: `{"error": {...}}`."""

    error: ErrorDetail
