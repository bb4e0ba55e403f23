"""One call from its first attempt to its answer: whether to try again, and what the answer means. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Self

import httpx
from pydantic import ValidationError

from threefold.calls import Call, R
from threefold.contract import ErrorBody, ErrorDetail, SessionStatus
from threefold.errors import (
    ERRORS,
    Conflict,
    Forbidden,
    InternalError,
    InvalidRequest,
    NotFound,
    RateLimited,
    ServiceError,
    ThreefoldError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unreachable,
    WaitTimeout,
)

ATTEMPTS = 3
BACKOFF = 0.1  # seconds before the second attempt, doubled for the third: a refused recall costs 0.3 s at most
TEMPORARY = frozenset({429, 502, 503, 504})

_BY_STATUS = {
    cls.status: cls for cls in (TooLarge, Unauthenticated, Forbidden, NotFound, Conflict, RateLimited, Unavailable)
}

NEXT_STEP: dict[type[ThreefoldError], str] = {
    Unreachable: "start the service with `threefold serve`, or correct the URL (THREEFOLD_URL)",
    Unauthenticated: "pass a valid api_key (THREEFOLD_API_KEY)",
    Forbidden: "ask for a key that is granted this user and agent (THREEFOLD_USER, THREEFOLD_AGENT)",
    InvalidRequest: "name the user and the agent that the key speaks for (THREEFOLD_USER, THREEFOLD_AGENT)",
}


@dataclass(frozen=True)
class Reply:
    """An HTTP response, read to its end."""

    status: int
    content: bytes
    retry_after: float | None = None

    @classmethod
    def read(cls, response: httpx.Response, content: bytes) -> Self:
        """Return the parts that are used. A `Retry-After` that is a date is ignored."""
        after = response.headers.get("retry-after", "")
        return cls(response.status_code, content, float(after) if after.replace(".", "", 1).isdecimal() else None)


Outcome = Reply | httpx.RequestError


class Retries(Generic[R]):
    """State of one call over its attempts."""

    def __init__(self, call: Call[R], url: str, seconds: float, clock: Callable[[], float]) -> None:
        self._call = call
        self._url = url
        self._clock = clock
        self._end = clock() + seconds
        self._attempts = 0

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._end - self._clock())

    def in_time(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks until the deadline. httpx limits each read but not their sum."""
        for chunk in chunks:
            if not self.left():
                raise httpx.ReadTimeout("the deadline has passed")
            yield chunk

    def pause(self, outcome: Outcome) -> float | None:
        """Return the seconds to wait before the next attempt, or None if this outcome is final."""
        self._attempts += 1
        if self._attempts >= ATTEMPTS or not self._may_repeat(outcome):
            return None
        seconds = BACKOFF * 2 ** (self._attempts - 1) * random.uniform(0.5, 1.0)
        if isinstance(outcome, Reply) and outcome.retry_after is not None:
            seconds = outcome.retry_after
        return seconds if seconds < self.left() else None

    def result(self, outcome: Outcome) -> R:
        """Return the answer as its model, or raise the error that it states."""
        if isinstance(outcome, httpx.RequestError):
            raise Unreachable(f"no answer from {self._url}: {_reason(outcome)}")
        if 200 <= outcome.status < 300 or outcome.status == self._call.success_status:
            reply = _parsed(self._call.reply, outcome.content)
            if reply is not None:
                return reply
        raise self._refusal(outcome)

    def _refusal(self, reply: Reply) -> ThreefoldError:
        body = _parsed(ErrorBody, reply.content)
        if body is None:
            return Unreachable(
                f"{self._url} answered {reply.status} without an error of Threefold: check the URL and any proxy"
            )
        return _error(body.error, reply)

    def _may_repeat(self, outcome: Outcome) -> bool:
        if isinstance(outcome, httpx.RequestError):
            unsent = isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout)
            return self._call.repeatable or unsent
        return self._call.repeatable and outcome.status in TEMPORARY - {self._call.success_status}


def is_settled(status: SessionStatus, pause: float, left: float) -> bool:
    """Return True if nothing is pending. Raise WaitTimeout if work is parked, or if the time left is shorter than a
    pause."""
    if status.state == "idle":
        return True
    if status.state == "parked":
        raise WaitTimeout(f"consolidation is parked: {status.reason or 'see the log of the service'}")
    if left < pause:
        raise WaitTimeout(
            f"still {status.state}: of {status.last_seq} turns, {status.indexed_upto} are indexed "
            f"and {status.extracted_upto} extracted"
        )
    return False


def with_next_step(error: ThreefoldError) -> ThreefoldError:
    """Return the error with the next step added to its message."""
    step = next((text for kind, text in NEXT_STEP.items() if isinstance(error, kind)), None)
    if step is None:
        return error
    if isinstance(error, ServiceError):
        return type(error)(f"{error.message}; {step}", error.details)
    return type(error)(f"{error}; {step}")


def _parsed(model: type[R], content: bytes) -> R | None:
    try:
        return model.model_validate_json(content)
    except ValidationError:
        return None


def _error(body: ErrorDetail, reply: Reply) -> ServiceError:
    """Return an error of the class that belongs to the code, or to the status if the code is of a newer service."""
    fallback = _BY_STATUS.get(reply.status) or (InternalError if reply.status >= 500 else InvalidRequest)
    details = body.details if reply.retry_after is None else {"retry_after": reply.retry_after, **body.details}
    return ERRORS.get(body.code, fallback)(body.message, details)


def _reason(error: httpx.RequestError) -> str:
    """Return why there is no answer. Only the text of connection errors is used: others may quote the request."""
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    return str(error) if isinstance(error, httpx.ConnectError) else type(error).__name__
