"""The user, agent and session of a run: fixed values, or functions of the framework's context of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast
from uuid import UUID

from threefold.errors import InvalidRequest

C = TypeVar("C")


class RunIdentity(NamedTuple):
    """User, agent and session of one run. None means the user or the agent of the client."""

    user: str | None
    agent: str | None
    session_id: str


@dataclass(frozen=True)
class Identity(Generic[C]):
    """Where a plugin takes user, agent and session from.

    A function gets the framework's context of the run and must return a string that is not empty.
    """

    user: str | Callable[[C], str] | None = None
    agent: str | Callable[[C], str] | None = None
    session: str | Callable[[C], str] | None = None

    def of(self, run: C, session_id: str) -> RunIdentity:
        """Return the identity of a run.

        Args:
            run: The framework's context of the run.
            session_id: The session of the framework, used if this identity names no session.

        Raises:
            InvalidRequest: A function did not return a string, or returned an empty one.
        """
        session = value_of("session", self.session, run)
        return RunIdentity(value_of("user", self.user, run), value_of("agent", self.agent, run), session or session_id)


def value_of(name: str, given: str | Callable[[C], str] | None, run: C) -> str | None:
    """Return a fixed value, or the result of a function.

    Raise InvalidRequest for an empty result: to go on with another identity would mix two users.
    """
    if not callable(given):
        return given
    found = cast(object, given(run))
    if not isinstance(found, str) or not found:
        raise InvalidRequest(
            f"{name}: its function returned {found!r}; it must return a string with text for every run"
        )
    return found


def name_of(kind: str, value: Any) -> str | None:
    """Return the name of a user or session from free-form data of a framework.

    Numbers and UUIDs become text, as frameworks accept them. Raise InvalidRequest for other types.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise InvalidRequest(f"{kind}: must be a string, not {type(value).__name__}")
