"""Find user, agent and session: from `acting_as`, the arguments of the memory, or the inputs of the kickoff."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from threefold import InvalidRequest
from threefold.identity import Identity, RunIdentity, name_of, value_of
from threefold_crewai.runs import UNNAMED, Run, acting, check_inputs_known, current_run, current_task

Inputs = Mapping[str, Any]
Name = str | Callable[[Inputs], str] | None

AGENT_NOT_KNOWN = (
    "agent: outside of a kickoff neither crew nor role is known; name the agent whose memory is to be erased: "
    "ThreefoldMemory(agent=...), or acting_as(agent=...) around the call"
)


@dataclass(frozen=True)
class Ownership:
    """How a memory finds its user, agent and session."""

    identity: Identity[Inputs]
    per_role: bool
    client_agent: str | None

    def find(self) -> RunIdentity:
        """Return user, agent and session of the current task, kickoff or call."""
        run, task_run = current_run(), current_task()
        user, agent = self._find_name("user", run), self._agent(run)
        if user is None or agent is None:
            check_inputs_known(run)
        if task_run is not None and self.per_role:
            agent = f"{first(agent, self.client_agent, UNNAMED)}/{quoted(task_run.role)}"
        session_id = self._find_name("session", run)
        if session_id is None:
            session_id = run.session_id if run else uuid4().hex
        return RunIdentity(user, agent, session_id)

    def check_agent(self) -> None:
        """Raise InvalidRequest if the agent is not known for sure, because an erasure cannot be undone."""
        is_named = acting().agent is not None
        if not is_named and (self.per_role or first(self._agent(current_run()), self.client_agent) is None):
            raise InvalidRequest(AGENT_NOT_KNOWN)

    def _agent(self, run: Run | None) -> str | None:
        own = self.identity.agent
        return first(acting().agent, own if isinstance(own, str) else None, run.name if run else None)

    def _find_name(self, kind: Literal["user", "session"], run: Run | None) -> str | None:
        acted: str | None = getattr(acting(), kind)
        given: Name = getattr(self.identity, kind)
        inputs = run.all_inputs if run else {}
        if acted is not None or given is None:
            return first(acted, name_of(f"{kind}_id", inputs.get(f"{kind}_id")))
        try:
            return value_of(kind, given, inputs)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"{kind}: its function failed on the inputs of the kickoff: {error!r}") from error


def first(*names: str | None) -> str | None:
    """Return the first name that is not None."""
    return next((name for name in names if name is not None), None)


def quoted(role: str) -> str:
    """Return a role as the last part of an agent's name, without a slash, so that crew and role stay distinct."""
    return role.strip().replace("%", "%25").replace("/", "%2F")
