"""The operations on beliefs and experiments as data. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict, Unpack

from threefold.calls import Call, given, json_body, path_of
from threefold.checks import checked
from threefold.contract import (
    Belief,
    BeliefHistory,
    BeliefKind,
    BeliefPage,
    ClosedExperiment,
    CloseExperimentRequest,
    Experiment,
    ForgetReceipt,
    Judgement,
    Level,
    OpenExperimentRequest,
    RecordBeliefRequest,
    Reverification,
    ReverifyRequest,
    Standing,
    UpdateBeliefRequest,
    Verdict,
    Visibility,
    paths,
)
from threefold.contract.common import NotedBy


class BeliefOptions(TypedDict, total=False):
    """Options of `record`, as in `RecordBeliefRequest`."""

    falsification: str | None
    """What would show that the statement is wrong; needed unless `kind` is `assumption`."""
    confidence: float
    """0 to 1, as the caller estimates it (default 0.5)."""
    kind: BeliefKind
    """`hypothesis` (default) or `assumption`."""
    support: Sequence[Sequence[str]]
    """Sets of ids of beliefs; each set is sufficient by itself (default: none, a premise)."""
    context: Mapping[str, str]
    """Where the belief applies, such as `{"env": "staging"}`."""
    session_id: str | None
    """Session of the belief; needed for visibility `session`."""
    visibility: Visibility | None
    """Widest level at which the belief may be read (default `user`)."""
    noted_by: NotedBy | None
    """`assistant` or `tool` if the user did not state it; it lowers the trust."""


class BeliefChanges(TypedDict, total=False):
    """Changes of `update`, as in `UpdateBeliefRequest`."""

    statement: str | None
    """The new statement; only while the verdict is pending."""
    falsification: str | None
    """The new falsification; only while the verdict is pending."""
    confidence: float | None
    """0 to 1."""


class BeliefFilter(TypedDict, total=False):
    """The part of the beliefs that `list` returns."""

    verdict: Verdict | None
    """Only beliefs with this verdict."""
    standing: Standing | None
    """Only beliefs with this standing."""
    as_of: datetime | None
    """The beliefs as they were at this moment; needs an offset."""
    level: Level | None
    """How far to read (default: the lower of `agent` and the ceiling)."""
    session_id: str | None
    """The session; needed at level `session`."""
    cursor: str | None
    """`next_cursor` of the previous page."""
    limit: int | None
    """Beliefs per page, 0 to 1,000 (default 50)."""


def record(statement: str, **options: Unpack[BeliefOptions]) -> Call[Belief]:
    """Record a belief. Not repeatable: the request has no idempotency key."""
    request = checked(RecordBeliefRequest, statement=statement, **options)
    return Call("POST", paths.BELIEFS, Belief, body=json_body(request), repeatable=False)


def get(belief_id: str) -> Call[Belief]:
    """Return one belief."""
    return Call("GET", path_of(paths.BELIEF, belief_id), Belief)


def update(belief_id: str, revision: int, **changes: Unpack[BeliefChanges]) -> Call[Belief]:
    """Change a belief at a revision. Not repeatable: a second arrival would find another revision."""
    request = checked(UpdateBeliefRequest, revision=revision, **changes)
    return Call("PATCH", path_of(paths.BELIEF, belief_id), Belief, body=json_body(request), repeatable=False)


def delete(belief_id: str) -> Call[ForgetReceipt]:
    """Erase one belief. Not repeatable: a second arrival would answer that there is no such belief."""
    return Call("DELETE", path_of(paths.BELIEF, belief_id), ForgetReceipt, deadline="long", repeatable=False)


def list_beliefs(**wanted: Unpack[BeliefFilter]) -> Call[BeliefPage]:
    """Return one page of beliefs."""
    as_of = wanted.get("as_of")
    named = {name: wanted.get(name) for name in ("verdict", "standing", "level", "session_id", "cursor")}
    texts = {name: value if value is None else str(value) for name, value in named.items()}
    params = given(**texts, as_of=None if as_of is None else as_of.isoformat(), limit=wanted.get("limit"))
    return Call("GET", paths.BELIEFS, BeliefPage, params, deadline="long")


def history(belief_id: str) -> Call[BeliefHistory]:
    """Return every change of a belief."""
    return Call("GET", path_of(paths.BELIEF_HISTORY, belief_id), BeliefHistory)


def dependents(belief_id: str) -> Call[BeliefPage]:
    """Return the beliefs that rest on a belief."""
    return Call("GET", path_of(paths.BELIEF_DEPENDENTS, belief_id), BeliefPage, deadline="long")


def open_experiment(belief_id: str, plan: str | None = None) -> Call[Experiment]:
    """Start an attempt to judge a belief. Not repeatable."""
    request = checked(OpenExperimentRequest, belief_id=belief_id, plan=plan)
    return Call("POST", paths.EXPERIMENTS, Experiment, body=json_body(request), repeatable=False)


def close_experiment(
    experiment_id: str,
    verdict: Judgement,
    justification: str,
    evidence: Sequence[str] = (),
    noted_by: NotedBy | None = None,
) -> Call[ClosedExperiment]:
    """Give a verdict. Not repeatable: a second arrival would answer that the experiment is closed."""
    given_fields = {"verdict": verdict, "justification": justification, "evidence": evidence, "noted_by": noted_by}
    request = checked(CloseExperimentRequest, **given_fields)
    path = path_of(paths.EXPERIMENT_CLOSE, experiment_id)
    return Call("POST", path, ClosedExperiment, body=json_body(request), deadline="long", repeatable=False)


def reverify(belief_id: str, reason: str, changed: str | None = None) -> Call[Reverification]:
    """Start another attempt at a falsified belief. Not repeatable."""
    request = checked(ReverifyRequest, reason=reason, changed=changed)
    path = path_of(paths.BELIEF_REVERIFY, belief_id)
    return Call("POST", path, Reverification, body=json_body(request), repeatable=False)
