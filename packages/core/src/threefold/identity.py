"""Whose memory a run uses: fixed values, or functions of what a framework knows about the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast
from uuid import UUID

from threefold.errors import InvalidRequest

C = TypeVar("C")


class Who(NamedTuple):
    """One run's user, agent and session. None is whoever the client acts as."""

    user: str | None
    agent: str | None
    session_id: str


@dataclass(frozen=True)
class Identity(Generic[C]):
    """Where a plugin takes user, agent and session from. A function gets the framework's own context of the run."""

    user: str | Callable[[C], str] | None = None
    agent: str | Callable[[C], str] | None = None
    session: str | Callable[[C], str] | None = None

    def of(self, run: C, session_id: str) -> Who:
        """The identity of a run, in the framework's session `session_id` unless another one is named here."""
        session = value_of("session", self.session, run)
        return Who(value_of("user", self.user, run), value_of("agent", self.agent, run), session or session_id)


def value_of(name: str, given: str | Callable[[C], str] | None, run: C) -> str | None:
    """A function that finds nothing is an error: to go on as someone else would mix two users."""
    if not callable(given):
        return given
    found = cast(object, given(run))
    if not isinstance(found, str) or not found:
        raise InvalidRequest(f"{name}: its function gave {found!r}, but it must give a string for every run")
    return found


def name_of(kind: str, value: Any) -> str | None:
    """What a framework's free-form data give as the name of a user or session. Numbers and UUIDs are names by their
    text, as frameworks take them; anything else is none."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise InvalidRequest(f"{kind}: it is named by a string, not by {type(value).__name__}")
