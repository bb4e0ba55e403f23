"""The routes of beliefs and experiments."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request

from threefold.contract import ForgetReceipt, Level, paths
from threefold.contract.beliefs import (
    Belief,
    BeliefHistory,
    BeliefPage,
    ClosedExperiment,
    CloseExperimentRequest,
    Experiment,
    OpenExperimentRequest,
    RecordBeliefRequest,
    Reverification,
    ReverifyRequest,
    Standing,
    UpdateBeliefRequest,
    Verdict,
)
from threefold.contract.common import Cursor, Id, PageLimit, Timestamp
from threefold_server.clock import to_micros
from threefold_server.http.bodies import IdentifiedRoute
from threefold_server.http.gone import unless_gone
from threefold_server.http.identity import CallerDep
from threefold_server.http.routes import LONG, REFUSALS, ServiceDep, check_query
from threefold_server.operations import beliefs, experiments

router = APIRouter(responses=REFUSALS, dependencies=[Depends(check_query)], route_class=IdentifiedRoute)


@router.post(paths.BELIEFS, status_code=201)
async def post_belief(body: RecordBeliefRequest, caller: CallerDep, service: ServiceDep) -> Belief:
    """Record a belief. Its verdict is pending until an experiment is closed."""
    return await beliefs.record_belief(service, caller, body)


@router.get(paths.BELIEFS, dependencies=LONG)
async def get_beliefs(
    request: Request,
    caller: CallerDep,
    service: ServiceDep,
    verdict: Verdict | None = None,
    standing: Standing | None = None,
    as_of: Timestamp | None = None,
    level: Level | None = None,
    session_id: Id | None = None,
    cursor: Cursor | None = None,
    limit: PageLimit = 50,
) -> BeliefPage:
    """Return the beliefs that are visible at a level, the newest first, as they are or as they were at a moment."""
    moment = None if as_of is None else to_micros(as_of)
    wanted = beliefs.ListBeliefs(verdict, standing, moment, level, session_id, cursor, limit)
    return await unless_gone(request, beliefs.list_beliefs(service, caller, wanted))


@router.get(paths.BELIEF_HISTORY)
async def get_belief_history(belief_id: Id, caller: CallerDep, service: ServiceDep) -> BeliefHistory:
    """Return every change of a belief, oldest first."""
    return await beliefs.belief_history(service, caller, belief_id)


@router.get(paths.BELIEF_DEPENDENTS, dependencies=LONG)
async def get_belief_dependents(belief_id: Id, caller: CallerDep, service: ServiceDep) -> BeliefPage:
    """Return all beliefs that rest on a belief, directly or through others."""
    return await beliefs.belief_dependents(service, caller, belief_id)


@router.post(paths.BELIEF_REVERIFY, status_code=201)
async def post_reverify(belief_id: Id, body: ReverifyRequest, caller: CallerDep, service: ServiceDep) -> Reverification:
    """Start another attempt at a falsified belief, and return all earlier ones and a clearance."""
    return await experiments.reverify(service, caller, belief_id, body)


@router.get(paths.BELIEF)
async def get_belief(belief_id: Id, caller: CallerDep, service: ServiceDep) -> Belief:
    """Return one belief."""
    return await beliefs.get_belief(service, caller, belief_id)


@router.patch(paths.BELIEF)
async def patch_belief(belief_id: Id, body: UpdateBeliefRequest, caller: CallerDep, service: ServiceDep) -> Belief:
    """Change a belief at the revision that was read."""
    return await beliefs.update_belief(service, caller, belief_id, body)


@router.delete(paths.BELIEF, dependencies=LONG)
async def remove_belief(belief_id: Id, caller: CallerDep, service: ServiceDep) -> ForgetReceipt:
    """Erase one belief with its history and experiments. Beliefs that rest on it become unsupported."""
    return await beliefs.delete_belief(service, caller, belief_id)


@router.post(paths.EXPERIMENTS, status_code=201)
async def post_experiment(body: OpenExperimentRequest, caller: CallerDep, service: ServiceDep) -> Experiment:
    """Start an attempt to judge a belief."""
    return await experiments.open_experiment(service, caller, body)


@router.post(paths.EXPERIMENT_CLOSE, dependencies=LONG)
async def post_experiment_close(
    experiment_id: Id, body: CloseExperimentRequest, caller: CallerDep, service: ServiceDep
) -> ClosedExperiment:
    """Give the verdict of an experiment, once."""
    return await experiments.close_experiment(service, caller, experiment_id, body)
