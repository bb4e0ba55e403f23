"""Rows of experiments, and the clearances that a reverification gives."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from threefold.contract.beliefs import Experiment, PriorExperiment
from threefold_server.clock import from_micros
from threefold_server.storage.engine.tables import clearances, experiments
from threefold_server.storage.engine.types import AnyRow


def add(connection: Connection, owner: UUID, belief: UUID, agent: str, now: int, **texts: str | None) -> AnyRow:
    """Insert an open experiment with the next number of its belief; `texts` are plan, reason and changed."""
    of_belief = and_(experiments.c.owner == owner, experiments.c.belief == belief)
    last = connection.execute(select(func.coalesce(func.max(experiments.c.n), 0)).where(of_belief)).scalar_one()
    key = uuid4()
    values = {"owner": owner, "experiment": key, "belief": belief, "n": last + 1, "agent": agent, "created_at": now}
    connection.execute(insert(experiments).values(**values, **texts))
    return get(connection, owner, key)


def get(connection: Connection, owner: UUID, experiment: UUID) -> AnyRow:
    """Return the row of an experiment that exists."""
    return connection.execute(select(experiments).where(_one(owner, experiment))).one()


def find(connection: Connection, owner: UUID, experiment: UUID) -> AnyRow | None:
    """Return the row of an experiment of the owner, or None."""
    return connection.execute(select(experiments).where(_one(owner, experiment))).one_or_none()


def close(connection: Connection, owner: UUID, experiment: UUID, values: dict[str, Any]) -> AnyRow:
    """Store the verdict of an experiment; return its row."""
    connection.execute(update(experiments).where(_one(owner, experiment)).values(values))
    return get(connection, owner, experiment)


def to_experiment(connection: Connection, row: AnyRow) -> Experiment:
    """Return a row as a model of the contract, with every earlier attempt that was closed."""
    earlier = and_(experiments.c.owner == row.owner, experiments.c.belief == row.belief, experiments.c.n < row.n)
    closed = select(experiments).where(earlier, experiments.c.verdict.is_not(None)).order_by(experiments.c.n)
    return Experiment(
        id=row.experiment.hex,
        belief_id=row.belief.hex,
        state="open" if row.verdict is None else "closed",
        evidence=json.loads(row.evidence),
        opened_at=from_micros(row.created_at),
        closed_at=None if row.closed_at is None else from_micros(row.closed_at),
        prior=[_to_prior(one) for one in connection.execute(closed)],
        **{name: getattr(row, name) for name in ("n", "plan", "reason", "changed", "verdict", "justification")},
    )


def add_clearance(connection: Connection, owner: UUID, belief: UUID, expires_at: int) -> str:
    """Store a clearance for one belief and return its text, which is not stored."""
    text = secrets.token_urlsafe(24)
    values = {"owner": owner, "clearance": _hash(text), "belief": belief, "expires_at": expires_at}
    connection.execute(insert(clearances).values(values))
    return text


def sweep_clearances(connection: Connection, owner: UUID, now: int) -> None:
    """Delete the expired clearances of an owner."""
    connection.execute(delete(clearances).where(clearances.c.owner == owner, clearances.c.expires_at <= now))


def _to_prior(row: AnyRow) -> PriorExperiment:
    return PriorExperiment(
        n=row.n,
        verdict=row.verdict,
        justification=row.justification,
        evidence=json.loads(row.evidence),
        closed_at=from_micros(row.closed_at),
    )


def _one(owner: UUID, experiment: UUID) -> ColumnElement[bool]:
    return and_(experiments.c.owner == owner, experiments.c.experiment == experiment)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
