"""All errors of Threefold, and the table of codes, classes and statuses.

ThreefoldError
├── ServiceError                 the service answered with an error body
│   ├── InvalidRequest           422  the request is wrong; the message names the field
│   ├── TooLarge                 413  the body, or the items of an answer, exceed a limit
│   ├── Unauthenticated          401  no identity, or its key or token is not valid
│   ├── Forbidden                403  the identity is verified but may not do this
│   │   └── QuotaExceeded        403  the user has stored as much as the store allows
│   ├── NotFound                 404  it does not exist or is not visible to this identity
│   ├── Conflict                 409  the id was written before with other content
│   │   └── RevisionConflict     409  the session changed after it was read
│   ├── RateLimited              429  too many requests; wait `retry_after` seconds
│   ├── EmbedderMismatch         503  the stored vectors are of another embedder
│   ├── Unavailable              503  the service cannot reach its database
│   └── InternalError            500  the service failed; details are in its log
├── Unreachable                  no usable answer: refused, reset, timed out, or from something else
│   └── CircuitOpen              not tried, because the last calls failed
└── WaitTimeout                  `wait` gave up: work is still pending, or parked
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class ThreefoldError(Exception):
    """Root of every error that Threefold raises."""


class ServiceError(ThreefoldError):
    """An error that the service stated: a stable `code`, an HTTP `status`, a message and details."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    refusal: ClassVar[bool] = False
    """True if a retry cannot help, because the request has to change."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})


class InvalidRequest(ServiceError):
    """The request is wrong; the message names the field."""

    code, status, refusal = "invalid_request", 422, True


class TooLarge(ServiceError):
    """The body of the request is larger than the limit."""

    code, status, refusal = "too_large", 413, True


class Unauthenticated(ServiceError):
    """The request has no identity, or its key or token is not valid."""

    code, status, refusal = "unauthenticated", 401, True


class Forbidden(ServiceError):
    """The identity is verified but may not do this."""

    code, status, refusal = "forbidden", 403, True


class QuotaExceeded(Forbidden):
    """The user has stored as much as the store allows. Nothing was stored; forget something first."""

    code = "quota_exceeded"


class NotFound(ServiceError):
    """The thing does not exist or is not visible to this identity; the answer is the same for both."""

    code, status, refusal = "not_found", 404, True


class Conflict(ServiceError):
    """The id was written before with other content. Nothing of the call was stored."""

    code, status, refusal = "conflict", 409, True


class RevisionConflict(Conflict):
    """The session changed after it was read; `details["revision"]` is its current revision."""

    code = "revision_conflict"


class RateLimited(ServiceError):
    """Too many requests; `details["retry_after"]` says after how many seconds to try again."""

    code, status = "rate_limited", 429


class EmbedderMismatch(ServiceError):
    """The stored vectors are of another embedder; run `threefold reembed`."""

    code, status = "embedder_mismatch", 503


class Unavailable(ServiceError):
    """The database does not answer. Nothing was stored, unless `details["outcome"]` is "unknown"."""

    code, status = "unavailable", 503


class InternalError(ServiceError):
    """The service failed. The details are in its log, never in the answer."""

    code, status = "internal", 500


class Unreachable(ThreefoldError):
    """No usable answer: the connection was refused or reset, timed out, or something else answered."""


class CircuitOpen(Unreachable):
    """The call was not made, because the last calls failed. The breaker closes when a later call is answered."""


class WaitTimeout(ThreefoldError, TimeoutError):
    """`wait` gave up: work on the session is still pending, or it is parked."""


ERRORS: dict[str, type[ServiceError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        TooLarge,
        Unauthenticated,
        Forbidden,
        QuotaExceeded,
        NotFound,
        Conflict,
        RevisionConflict,
        RateLimited,
        EmbedderMismatch,
        Unavailable,
        InternalError,
    )
}
