"""What a forget selects, as conditions on the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, exists, func, not_, or_, select, true

from threefold.contract import ForgetRequest, ForgetSource
from threefold.errors import Conflict
from threefold_server.clock import to_micros
from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.storage.engine.scope import FACTS, erasable, managed
from threefold_server.storage.engine.tables import fact_sources, facts, items, sessions, threads, turns
from threefold_server.storage.engine.types import parse_key


@dataclass(frozen=True)
class Selection:
    """What goes in each tier: rows, or of turns their content. None where a tier is not selected by itself."""

    sessions: ColumnElement[bool] | None = None
    facts: ColumnElement[bool] | None = None
    turns: ColumnElement[bool] | None = None
    items: ColumnElement[bool] | None = None
    threads: ColumnElement[bool] | None = None
    whole_owner: bool = False
    named_turns: ColumnElement[bool] | None = None
    """Turns named by their own ids, which must not stand in several sessions."""


def select_request(request: ForgetRequest, scope: ScopeFilter) -> Selection:
    """The selection of a request; its scope has been allowed already."""
    if request.session_id is not None:
        # A fact may be saved in a session that has no turn, and so no row, yet. Those that rest on turns go with these.
        saved_there = and_(facts.c.session == scope.session, _rests_on_no_turn())
        return Selection(
            sessions=sessions.c.session == scope.session, facts=saved_there, threads=threads.c.thread == scope.session
        )
    if request.level is not None:
        return Selection(
            sessions=erasable(sessions, scope),
            facts=erasable(facts, scope),
            items=erasable(items, scope),
            threads=erasable(threads, scope),
            whole_owner=scope.reach >= Reach.user,
        )
    if request.memory_ids is not None:
        return _by_ids(request.memory_ids, scope, with_sources=request.sources)
    assert request.source is not None
    since = None if request.since is None else to_micros(request.since)
    return _by_source(request.source, scope, since)


def remaining(connection: Connection, owner: UUID, selection: Selection) -> int:
    """Rows of the selection that are still there: 0 after a complete erasure."""
    tiers = (
        (sessions, selection.sessions),
        (facts, selection.facts),
        (turns, selection.turns),
        (items, selection.items),
        (threads, selection.threads),
    )
    counts = [
        select(func.count()).select_from(table).where(table.c.owner == owner, condition)
        for table, condition in tiers
        if condition is not None
    ]
    return sum(connection.execute(statement).scalar_one() for statement in counts)


def left_out(connection: Connection, scope: ScopeFilter, selection: Selection) -> list[str]:
    """What a forget does not look into: the state of graphs and sessions may hold what was forgotten elsewhere."""
    held: dict[str, ColumnElement[bool]] = {}
    if selection.threads is None:
        held["threads"] = erasable(threads, scope)
    if selection.sessions is None:
        held["session_state"] = and_(erasable(sessions, scope), sessions.c.state.is_not(None))
    return [name for name, there in held.items() if connection.execute(select(exists().where(there))).scalar_one()]


def _by_ids(ids: Sequence[str], scope: ScopeFilter, *, with_sources: bool) -> Selection:
    """Facts by their ids and, since a turn is recalled under its own id, turns by theirs."""
    wanted = and_(managed(FACTS, scope), facts.c.fact.in_([key for key in map(parse_key, ids) if key is not None]))
    within = and_(_in_sessions(scope), turns.c.erased.is_(False))
    if scope.session is not None:
        within = and_(within, turns.c.session == scope.session)
    named = and_(turns.c.turn_id.in_(ids), within)
    rested_on = and_(_sources_of(wanted), within if scope.reach is Reach.session else _in_sessions(scope))
    chosen = or_(named, rested_on) if with_sources else named
    return Selection(facts=wanted, turns=and_(chosen, turns.c.erased.is_(False)), named_turns=named)


def check_unambiguous(connection: Connection, owner: UUID, selection: Selection) -> None:
    """Refuse a turn's id that stands in several sessions: a turn's id is unique only in its own."""
    if selection.named_turns is None:
        return
    statement = (
        select(turns.c.turn_id)
        .where(turns.c.owner == owner, selection.named_turns)
        .group_by(turns.c.turn_id)
        .having(func.count() > 1)
        .limit(1)
    )
    ambiguous = connection.execute(statement).scalar_one_or_none()
    if ambiguous is not None:
        raise Conflict(
            f"the turn id {ambiguous!r} stands in several sessions; name one by `in_session`", {"turn_id": ambiguous}
        )


def _rests_on_no_turn() -> ColumnElement[bool]:
    return not_(exists().where(fact_sources.c.owner == facts.c.owner, fact_sources.c.fact == facts.c.fact))


def _rests_elsewhere(chosen: ColumnElement[bool]) -> ColumnElement[bool]:
    """Facts with a support among other turns than the chosen ones."""
    return exists().where(
        fact_sources.c.owner == facts.c.owner,
        fact_sources.c.fact == facts.c.fact,
        turns.c.owner == fact_sources.c.owner,
        turns.c.session == fact_sources.c.session,
        turns.c.seq.between(fact_sources.c.from_seq, fact_sources.c.upto_seq),
        turns.c.erased.is_(False),
        not_(chosen),
    )


def _sources_of(wanted: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(
        fact_sources.c.owner == turns.c.owner,
        fact_sources.c.session == turns.c.session,
        fact_sources.c.from_seq <= turns.c.seq,
        fact_sources.c.upto_seq >= turns.c.seq,
        fact_sources.c.fact.in_(select(facts.c.fact).where(wanted)),
    )


def _by_source(source: ForgetSource, scope: ScopeFilter, since: int | None) -> Selection:
    recent = turns.c.event_at >= since if since is not None else true()
    alive = and_(recent, turns.c.erased.is_(False))
    if source.kind == "tool":
        return Selection(turns=and_(turns.c.role == "tool", turns.c.name == source.name, _in_sessions(scope), alive))
    if source.kind == "session":
        own = sessions.c.session == scope.session
        contributed = facts.c.session == scope.session
        held = None
        run = threads.c.thread == scope.session
    else:
        own = and_(erasable(sessions, scope), sessions.c.agent == source.name)
        contributed = and_(erasable(facts, scope), facts.c.agent == source.name)
        held = and_(erasable(items, scope), items.c.agent == source.name)
        run = and_(erasable(threads, scope), threads.c.agent == source.name)
    if since is None:
        # Those that rest on turns go with these, unless other sessions support them, too.
        return Selection(sessions=own, facts=and_(contributed, _rests_on_no_turn()), items=held, threads=run)
    of_sessions = turns.c.session.in_(select(sessions.c.session).where(sessions.c.owner == scope.owner, own))
    recently = None if held is None else and_(held, items.c.updated_at >= since)
    chosen = and_(of_sessions, alive)
    stated = and_(contributed, facts.c.event_at >= since, not_(_rests_elsewhere(chosen)))
    return Selection(facts=stated, turns=chosen, items=recently)


def _in_sessions(scope: ScopeFilter) -> ColumnElement[bool]:
    return turns.c.session.in_(select(sessions.c.session).where(erasable(sessions, scope)))
