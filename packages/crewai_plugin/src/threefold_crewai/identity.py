"""Whose memory is used right now: what your code says, the memory's own, the inputs of the kickoff."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from threefold import InvalidRequest
from threefold.identity import Identity, RunIdentity, name_of, value_of
from threefold_crewai.runs import UNNAMED, Run, check_sight, current_run, current_step, named

Inputs = Mapping[str, Any]
Named = str | Callable[[Inputs], str] | None

UNSURE = (
    "agent: outside of kickoffs a memory knows neither its crew nor a role; name the agent to erase: "
    "ThreefoldMemory(agent=...), or acting_as(agent=...) around the call"
)


@dataclass(frozen=True)
class Ownership:
    """How a memory finds its owner."""

    identity: Identity[Inputs]
    per_role: bool
    client_agent: str | None

    def who(self) -> RunIdentity:
        """The owner and the session of whatever is going on."""
        run, step = current_run(), current_step()
        user, agent = self._named("user", run), self._agent(run)
        if user is None or agent is None:
            check_sight(run)
        if step is not None and self.per_role:
            agent = f"{first(agent, self.client_agent, UNNAMED)}/{quoted(step.role)}"
        session_id = self._named("session", run)
        if session_id is None:
            session_id = run.session_id if run else uuid4().hex
        return RunIdentity(user, agent, session_id)

    def check_agent(self) -> None:
        """Refuse where the agent is a guess: to erase the wrong one's memory cannot be made good."""
        sure = named().agent is not None
        if not sure and (self.per_role or first(self._agent(current_run()), self.client_agent) is None):
            raise InvalidRequest(UNSURE)

    def _agent(self, run: Run | None) -> str | None:
        own = self.identity.agent
        return first(named().agent, own if isinstance(own, str) else None, run.name if run else None)

    def _named(self, kind: Literal["user", "session"], run: Run | None) -> str | None:
        said: str | None = getattr(named(), kind)
        given: Named = getattr(self.identity, kind)
        inputs = run.all_inputs if run else {}
        if said is not None or given is None:
            return first(said, name_of(f"{kind}_id", inputs.get(f"{kind}_id")))
        try:
            return value_of(kind, given, inputs)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"{kind}: its function failed on the inputs of the kickoff: {error!r}") from error


def first(*names: str | None) -> str | None:
    """The first that is given."""
    return next((name for name in names if name is not None), None)


def quoted(role: str) -> str:
    """A role as the last part of an agent's name: without a slash, so that no two pairs of crew and role are one."""
    return role.strip().replace("%", "%25").replace("/", "%2F")
