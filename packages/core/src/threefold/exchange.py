"""One call from its first attempt to its answer: what an answer means, and whether to try again. No I/O."""

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
PASSING = frozenset({429, 502, 503, 504})

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
        """The parts that matter. A `Retry-After` that is a date counts as none: the ordinary pause will do."""
        after = response.headers.get("retry-after", "")
        return cls(response.status_code, content, float(after) if after.replace(".", "", 1).isdecimal() else None)


Outcome = Reply | httpx.RequestError


class Exchange(Generic[R]):
    """The state of one call."""

    def __init__(self, call: Call[R], url: str, seconds: float, clock: Callable[[], float]) -> None:
        self._call = call
        self._url = url
        self._clock = clock
        self._end = clock() + seconds
        self._attempts = 0

    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._end - self._clock())

    def in_time(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks, as long as there is time: httpx limits each read, not their sum."""
        for chunk in chunks:
            if not self.left():
                raise httpx.ReadTimeout("the deadline has passed")
            yield chunk

    def pause(self, outcome: Outcome) -> float | None:
        """Seconds to wait before the next attempt; None when this outcome is the last."""
        self._attempts += 1
        if self._attempts >= ATTEMPTS or not self._may_repeat(outcome):
            return None
        wanted = BACKOFF * 2 ** (self._attempts - 1) * random.uniform(0.5, 1.0)
        if isinstance(outcome, Reply) and outcome.retry_after is not None:
            wanted = outcome.retry_after
        return wanted if wanted < self.left() else None

    def result(self, outcome: Outcome) -> R:
        """The model that the answer holds, or the error that it means."""
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
                f"{self._url} answered {reply.status}, but not as Threefold does: check the URL and any proxy"
            )
        return _error(body.error, reply)

    def _may_repeat(self, outcome: Outcome) -> bool:
        if isinstance(outcome, httpx.RequestError):
            unsent = isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout)
            return self._call.repeatable or unsent
        return self._call.repeatable and outcome.status in PASSING - {self._call.success_status}


def is_settled(status: SessionStatus, pause: float, left: float) -> bool:
    """True when nothing is pending; `WaitTimeout` where another look is too late, or parked work makes it useless."""
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
    """The same error, with what to do about it."""
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
    """The class of a code; for a code of a newer service, the class of its status."""
    fallback = _BY_STATUS.get(reply.status) or (InternalError if reply.status >= 500 else InvalidRequest)
    details = body.details if reply.retry_after is None else {"retry_after": reply.retry_after, **body.details}
    return ERRORS.get(body.code, fallback)(body.message, details)


def _reason(error: httpx.RequestError) -> str:
    """Why there is no answer. Other errors are only named, as their text may quote what was sent."""
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    return str(error) if isinstance(error, httpx.ConnectError) else type(error).__name__
