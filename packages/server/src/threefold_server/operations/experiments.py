"""Experiments: the only source of verdicts on beliefs."""

from __future__ import annotations

import json
from uuid import UUID

from threefold.contract.beliefs import (
    Cascade,
    ClosedExperiment,
    CloseExperimentRequest,
    Experiment,
    OpenExperimentRequest,
    Reverification,
    ReverifyRequest,
)
from threefold.errors import Conflict, NotFound
from threefold_server.clock import DAY, from_micros
from threefold_server.operations.beliefs import find
from threefold_server.rules.access import Principal, item_scope
from threefold_server.rules.trust import TRUST, noted_origin
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow, parse_key
from threefold_server.storage.knowledge import belief_standing, beliefs, experiments
from threefold_server.storage.knowledge.belief_standing import Change
from threefold_server.storage.sessions import sessions
from threefold_server.storage.store.audit import actor_of, note
from threefold_server.text.redaction import redact_value

CLEARANCE_DAYS = 7
"""Days until an unused clearance expires."""


async def open_experiment(service: Service, principal: Principal, request: OpenExperimentRequest) -> Experiment:
    """Start an attempt to judge a belief. Raise Conflict for a falsified one, which needs a reverification."""
    now = service.clock()
    plan = redact_value({"plan": request.plan}, service.redact)

    def start(connection: Connection) -> Experiment:
        sessions.lock_owner(connection, principal.owner)
        belief = find(connection, principal, request.belief_id)
        if belief.verdict == "falsified":
            raise Conflict(
                "the belief is falsified; to try it again on purpose, use POST /v1/beliefs/{id}/reverify",
                {"verdict": belief.verdict},
            )
        row = experiments.add(connection, belief.owner, belief.belief, principal.agent, now, **plan)
        return experiments.to_experiment(connection, row)

    return await service.database.write(principal.owner, start)


async def close_experiment(
    service: Service, principal: Principal, experiment_id: str, request: CloseExperimentRequest
) -> ClosedExperiment:
    """Give the verdict of an experiment, and derive the standing of all beliefs that it changes.

    Raises:
        NotFound: There is no such experiment, or its belief is not visible to the caller.
        Conflict: It was closed before.
    """
    now = service.clock()
    clean = redact_value(request.model_dump(include={"justification", "evidence"}), service.redact)
    trust = TRUST[noted_origin("assistant" if principal.user is None else "user", request.noted_by)]
    values = {**clean, "evidence": json.dumps(clean["evidence"], ensure_ascii=False), "verdict": request.verdict}

    def close(connection: Connection) -> ClosedExperiment:
        sessions.lock_owner(connection, principal.owner)
        row = _find(connection, principal, experiment_id)
        if row.verdict is not None:
            raise Conflict(f"the experiment was closed as {row.verdict}; open another one", {"verdict": row.verdict})
        row = experiments.close(connection, row.owner, row.experiment, {**values, "trust": trust, "closed_at": now})
        changed = _judge(connection, row, now, principal.agent)
        counts = {"unsupported": len(changed.unsupported), "restored": len(changed.restored)}
        actor = actor_of(principal)
        note(connection, row.owner, actor, "verdict", target=request.verdict, counts=counts, at=now)
        cascade = Cascade(
            unsupported=[key.hex for key in changed.unsupported], restored=[key.hex for key in changed.restored]
        )
        return ClosedExperiment(**experiments.to_experiment(connection, row).model_dump(), cascade=cascade)

    return await service.database.write(principal.owner, close)


async def reverify(service: Service, principal: Principal, belief_id: str, request: ReverifyRequest) -> Reverification:
    """Start another attempt at a falsified belief, with all earlier ones, and give a clearance for one check.

    The belief stays falsified until this experiment confirms it.

    Raises:
        NotFound: There is no such belief.
        Conflict: It is not falsified.
    """
    now = service.clock()
    expires_at = now + CLEARANCE_DAYS * DAY
    texts = redact_value({"reason": request.reason, "changed": request.changed}, service.redact)

    def again(connection: Connection) -> Reverification:
        sessions.lock_owner(connection, principal.owner)
        belief = find(connection, principal, belief_id)
        if belief.verdict != "falsified":
            raise Conflict(
                f"the belief is {belief.verdict}, not falsified; open an experiment with POST /v1/experiments",
                {"verdict": belief.verdict},
            )
        experiments.sweep_clearances(connection, belief.owner, now)
        row = experiments.add(connection, belief.owner, belief.belief, principal.agent, now, **texts)
        clearance = experiments.add_clearance(connection, belief.owner, belief.belief, expires_at)
        note(connection, belief.owner, actor_of(principal), "reverify", counts={"attempt": row.n}, at=now)
        experiment = experiments.to_experiment(connection, row)
        return Reverification(experiment=experiment, clearance=clearance, expires_at=from_micros(expires_at))

    return await service.database.write(principal.owner, again)


def _judge(connection: Connection, experiment: AnyRow, now: int, agent: str) -> belief_standing.Changed:
    """Give the belief of a closed experiment its verdict; return the beliefs whose standing changed."""
    owner, belief = experiment.owner, experiment.belief
    falsified = experiment.verdict == "falsified"
    verdict = {"verdict": experiment.verdict, "verdict_trust": experiment.trust, "valid_to": now if falsified else None}
    change = Change(now, "verdict", experiment.experiment, agent)
    belief_standing.update_rows(connection, owner, [belief], verdict, change)
    return belief_standing.recompute(connection, owner, [belief], Change(now, "cascade", belief, agent))


def _find(connection: Connection, principal: Principal, experiment_id: str) -> AnyRow:
    key: UUID | None = parse_key(experiment_id)
    row = None if key is None else experiments.find(connection, principal.owner, key)
    if row is None or not beliefs.find(connection, item_scope(principal), [row.belief]):
        raise NotFound("no such experiment")
    return row
