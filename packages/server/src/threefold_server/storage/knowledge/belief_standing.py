"""The derived standing of beliefs: recomputed in the transaction that changed what it follows from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Select, and_, insert, literal, null, select, update

from threefold.contract.beliefs import BeliefCause
from threefold_server.rules.beliefs import supported
from threefold_server.storage.engine.tables import belief_events, belief_supports, beliefs
from threefold_server.storage.engine.types import Key

AT_ONCE = 1_000  # values in one condition; SQLite accepts 32,766 per statement

Support = Sequence[Collection[UUID]]


class Change(NamedTuple):
    """Who changes beliefs, when, and why."""

    at: int
    cause: BeliefCause
    cause_id: UUID | None = None
    agent: str | None = None


class Changed(NamedTuple):
    """The beliefs whose standing changed."""

    unsupported: Sequence[UUID] = ()
    restored: Sequence[UUID] = ()


class State(NamedTuple):
    """The verdict and the standing of a belief."""

    falsified: bool
    supported: bool

    @property
    def holds(self) -> bool:
        """Return whether other beliefs may rest on it."""
        return self.supported and not self.falsified


def of_beliefs(owner: UUID, keys: Collection[UUID]) -> ColumnElement[bool]:
    """Return the condition for some beliefs of one owner."""
    return and_(beliefs.c.owner == owner, beliefs.c.belief.in_(keys))


def dependents(connection: Connection, owner: UUID, roots: Collection[UUID]) -> set[UUID]:
    """Return every belief that rests on one of the roots, directly or through others."""
    found: set[UUID] = set()
    for batch in _batches(roots):
        on_roots = and_(belief_supports.c.owner == owner, belief_supports.c.supporter.in_(batch))
        reached = select(belief_supports.c.belief).where(on_roots).cte("reached", recursive=True)
        further = select(belief_supports.c.belief).join(reached, belief_supports.c.supporter == reached.c.belief)
        reached = reached.union(further.where(belief_supports.c.owner == owner))
        found.update(connection.execute(select(reached.c.belief)).scalars())
    return found


def supports(connection: Connection, owner: UUID, keys: Collection[UUID]) -> dict[UUID, list[list[UUID]]]:
    """Return the support sets of beliefs, in their order; premises are left out."""
    found: dict[UUID, dict[int, list[UUID]]] = defaultdict(lambda: defaultdict(list))
    for batch in _batches(keys):
        chosen = and_(belief_supports.c.owner == owner, belief_supports.c.belief.in_(batch))
        ordered = select(belief_supports).where(chosen).order_by(*belief_supports.primary_key.columns)
        for row in connection.execute(ordered):
            found[row.belief][row.alternative].append(row.supporter)
    return {belief: list(sets.values()) for belief, sets in found.items()}


def states(connection: Connection, owner: UUID, keys: Collection[UUID], as_of: int | None = None) -> dict[UUID, State]:
    """Return the state of the beliefs that exist, now or at an earlier moment."""
    rows = beliefs if as_of is None else belief_events
    columns = select(rows.c.belief, rows.c.verdict == "falsified", rows.c.supported).where(rows.c.owner == owner)
    if as_of is not None:
        columns = columns.where(rows.c.created_at <= as_of).order_by(rows.c.revision)  # the newest one is read last
    return {
        key: State(falsified, standing)
        for batch in _batches(keys)
        for key, falsified, standing in connection.execute(columns.where(rows.c.belief.in_(batch)))
    }


def recompute(connection: Connection, owner: UUID, roots: Collection[UUID], change: Change) -> Changed:
    """Derive again the standing of the roots and of all that rests on them, and record each change as an event.

    The caller holds the lock of the owner, so that concurrent changes run one after another.
    """
    affected = states(connection, owner, {*roots, *dependents(connection, owner, roots)})
    sets = supports(connection, owner, affected)
    others = {member for support in sets.values() for members in support for member in members} - affected.keys()
    falsified = {key for key, state in affected.items() if state.falsified}
    holding = {key for key, state in states(connection, owner, others).items() if state.holds}
    now_supported = supported({key: sets.get(key, []) for key in affected}, falsified, holding)
    restored = sorted(key for key in now_supported if not affected[key].supported)
    lost = sorted(key for key, state in affected.items() if state.supported and key not in now_supported)
    for keys, standing in ((restored, True), (lost, False)):
        update_rows(connection, owner, keys, {"supported": standing}, change)
    return Changed(lost, restored)


def is_supported(connection: Connection, owner: UUID, sets: Sequence[Collection[UUID]]) -> bool:
    """Return the standing of a new belief with these support sets."""
    known = states(connection, owner, {member for members in sets for member in members})
    return bool(supported({None: sets}, (), {key for key, state in known.items() if state.holds}))


def update_rows(
    connection: Connection, owner: UUID, keys: Collection[UUID], values: Mapping[str, object], change: Change
) -> None:
    """Change beliefs, count a revision of each, and record the events."""
    for batch in _batches(keys):
        chosen = of_beliefs(owner, batch)
        more = {"revision": beliefs.c.revision + 1, "updated_at": change.at}
        connection.execute(update(beliefs).where(chosen).values({**values, **more}))
        add_events(connection, chosen, change)


def add_events(connection: Connection, chosen: ColumnElement[bool], change: Change) -> None:
    """Record the present state of beliefs as an event of their present revision."""
    copied = ("owner", "belief", "revision", "statement", "falsification", "confidence", "verdict", "supported")
    cause_id = null() if change.cause_id is None else literal(change.cause_id, Key)
    agent = null() if change.agent is None else literal(change.agent)
    added = {"created_at": literal(change.at), "agent": agent, "cause": literal(change.cause), "cause_id": cause_id}
    rows: Select[tuple[object, ...]] = select(*(beliefs.c[name] for name in copied), *added.values()).where(chosen)
    connection.execute(insert(belief_events).from_select([*copied, *added], rows))


def add_support(connection: Connection, owner: UUID, belief: UUID, sets: Iterable[Collection[UUID]]) -> None:
    """Store the support sets of a new belief. They never change, so that no belief can rest on itself."""
    rows = [
        {"owner": owner, "belief": belief, "alternative": number, "supporter": member}
        for number, members in enumerate(sets)
        for member in sorted(set(members))
    ]
    if rows:
        connection.execute(insert(belief_supports), rows)


def _batches(keys: Collection[UUID]) -> Iterator[Sequence[UUID]]:
    ordered = sorted(keys)
    for start in range(0, len(ordered), AT_ONCE):
        yield ordered[start : start + AT_ONCE]
