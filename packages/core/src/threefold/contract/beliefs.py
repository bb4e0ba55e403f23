"""Beliefs, the experiments that judge them, and the check of an approach against refuted ones."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from threefold.contract.common import (
    MAX_FACT_CHARS,
    Id,
    NotedBy,
    Origin,
    Request,
    Response,
    Timestamp,
    Visibility,
    check_exact,
    clean_text,
)
from threefold.contract.facts import FactText

MAX_SUPPORTS = 100
MAX_EVIDENCE = 100

BeliefKind = Literal["hypothesis", "assumption"]
Verdict = Literal["pending", "confirmed", "falsified"]
Judgement = Literal["confirmed", "falsified"]
Standing = Literal["supported", "unsupported"]
BeliefCause = Literal["recorded", "changed", "verdict", "cascade", "forgotten", "imported"]
ReasonKind = Literal["falsified", "unsupported", "forgotten"]


def check_context(value: dict[str, str]) -> dict[str, str]:
    """Refuse a context that is too large to compare."""
    if len(value) > 50 or any(len(text) > 512 for pair in value.items() for text in pair):
        raise ValueError("at most 50 entries, with names and values of at most 512 characters")
    return value


ShortText = Annotated[str, BeforeValidator(clean_text), Field(max_length=MAX_FACT_CHARS)]
Context = Annotated[
    dict[Annotated[str, BeforeValidator(check_exact)], Annotated[str, BeforeValidator(check_exact)]],
    AfterValidator(check_context),
]
Support = Annotated[
    list[Annotated[list[Id], Field(min_length=1, max_length=MAX_SUPPORTS)]], Field(max_length=MAX_SUPPORTS)
]
Evidence = Annotated[list[ShortText], Field(max_length=MAX_EVIDENCE)]
Confidence = Annotated[float, Field(ge=0, le=1)]
NOTED_BY = "Who states it, if not the user; a model's tools use `assistant`. It can only lower the trust."


class RecordBeliefRequest(Request):
    """`POST /v1/beliefs`: record a belief, whose verdict is pending."""

    statement: FactText
    falsification: FactText | None = Field(
        default=None, description="What would show that it is wrong; needed unless `kind` is `assumption`."
    )
    confidence: Confidence = Field(default=0.5, description="0 to 1, as the caller estimates it.")
    kind: BeliefKind = "hypothesis"
    support: Support = Field(
        default_factory=list[list[str]],
        description="Sets of ids of beliefs. Each set is sufficient by itself; without one the belief is a premise.",
    )
    context: Context = Field(default_factory=dict, description="Where it applies, such as `env: staging`.")
    session_id: Id | None = Field(default=None, description="Session of the belief; needed for visibility `session`.")
    visibility: Visibility | None = Field(
        default=None, description="Widest level at which the belief may be read (default `user`)."
    )
    noted_by: NotedBy | None = Field(default=None, description=NOTED_BY)

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.kind == "hypothesis" and self.falsification is None:
            raise ValueError("falsification: say what would show that it is wrong, or set `kind` to 'assumption'")
        if self.visibility == "session" and self.session_id is None:
            raise ValueError("visibility 'session' needs a session_id")
        return self


class UpdateBeliefRequest(Request):
    """`PATCH /v1/beliefs/{id}`: change a belief at a known revision. Support and context never change."""

    revision: int = Field(
        ge=1, le=2**53, description="The revision that was read; the answer is 409 if it has changed."
    )
    statement: FactText | None = Field(default=None, description="Only while the verdict is pending.")
    falsification: FactText | None = Field(default=None, description="Only while the verdict is pending.")
    confidence: Confidence | None = None


class Reason(Response):
    """Why a support set does not hold: one of its members."""

    belief_id: str
    reason: ReasonKind


class Belief(Response):
    """One belief. The verdict comes from experiments, the standing from the beliefs that it rests on."""

    id: str
    statement: str
    falsification: str | None = None
    confidence: float
    kind: BeliefKind
    verdict: Verdict
    standing: Standing
    because: list[Reason] = Field(
        default_factory=list[Reason], description="Why it is unsupported: the members of its sets that do not hold."
    )
    support: list[list[str]] = Field(default_factory=list[list[str]])
    context: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    agent: str
    session_id: str | None = None
    visibility: Visibility
    origin: Origin
    trust: float = Field(description="0 to 1, set by the service from the origin.")
    revision: int
    created_at: Timestamp
    updated_at: Timestamp
    valid_from: Timestamp
    valid_to: Timestamp | None = Field(default=None, description="When it was falsified.")


class BeliefPage(Response):
    """One page of beliefs, the newest first."""

    beliefs: list[Belief]
    next_cursor: str | None = None


class BeliefEvent(Response):
    """One change of a belief: the state after it, and the cause."""

    revision: int
    at: Timestamp
    agent: str | None = Field(default=None, description="The agent that caused it.")
    cause: BeliefCause
    cause_id: str | None = Field(default=None, description="The experiment, or the belief where a cascade started.")
    statement: str
    falsification: str | None = None
    confidence: float
    verdict: Verdict
    standing: Standing


class BeliefHistory(Response):
    """Every change of one belief, oldest first: each event is the state before the next one."""

    events: list[BeliefEvent]


class OpenExperimentRequest(Request):
    """`POST /v1/experiments`: start an attempt to judge a belief."""

    belief_id: Id
    plan: ShortText | None = None


class CloseExperimentRequest(Request):
    """`POST /v1/experiments/{id}/close`: give the verdict, once."""

    verdict: Judgement
    justification: FactText
    evidence: Evidence = Field(default_factory=list[str])
    noted_by: NotedBy | None = Field(default=None, description=NOTED_BY)


class PriorExperiment(Response):
    """An earlier attempt that was closed, word for word."""

    n: int
    verdict: Judgement
    justification: str
    evidence: list[str] = Field(default_factory=list[str])
    closed_at: Timestamp


class Cascade(Response):
    """The beliefs whose standing changed because of a verdict."""

    unsupported: list[str] = Field(default_factory=list[str])
    restored: list[str] = Field(default_factory=list[str])


class Experiment(Response):
    """One attempt to judge a belief, with all earlier ones."""

    id: str
    belief_id: str
    n: int = Field(description="Its number among the experiments of the belief.")
    state: Literal["open", "closed"]
    plan: str | None = None
    reason: str | None = Field(default=None, description="Why a falsified belief is tried again.")
    changed: str | None = Field(default=None, description="What is different from the earlier attempts.")
    verdict: Judgement | None = None
    justification: str | None = None
    evidence: list[str] = Field(default_factory=list[str])
    opened_at: Timestamp
    closed_at: Timestamp | None = None
    prior: list[PriorExperiment] = Field(default_factory=list[PriorExperiment])


class ClosedExperiment(Experiment):
    """A closed experiment, with the changes that its verdict caused."""

    cascade: Cascade


class ReverifyRequest(Request):
    """`POST /v1/beliefs/{id}/reverify`: try a falsified belief again, on purpose."""

    reason: FactText
    changed: ShortText | None = Field(default=None, description="What is different from the earlier attempts.")


class Reverification(Response):
    """A new experiment on a falsified belief, and a clearance that lets one check of an approach pass."""

    experiment: Experiment
    clearance: str = Field(description="Opaque; for this owner and belief, for one check.")
    expires_at: Timestamp
