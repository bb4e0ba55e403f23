"""The selection of a forget, as conditions on the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, exists, func, not_, or_, select, true

from threefold.contract import ForgetRequest, ForgetSource
from threefold.errors import Conflict
from threefold_server.clock import to_micros
from threefold_server.rules.access import Reach, ScopeFilter
from threefold_server.storage.engine.scope import BELIEFS, FACTS, erasable, managed
from threefold_server.storage.engine.tables import beliefs, fact_sources, facts, items, sessions, threads, turns
from threefold_server.storage.engine.types import parse_key


@dataclass(frozen=True)
class Selection:
    """The rows that a forget erases in each tier; of turns, it erases the content. None: the tier is not selected."""

    sessions: ColumnElement[bool] | None = None
    facts: ColumnElement[bool] | None = None
    turns: ColumnElement[bool] | None = None
    items: ColumnElement[bool] | None = None
    threads: ColumnElement[bool] | None = None
    beliefs: ColumnElement[bool] | None = None
    whole_owner: bool = False
    named_turns: ColumnElement[bool] | None = None
    """Turns that the request names by id. Each id must be in one session only."""


def select_request(request: ForgetRequest, scope: ScopeFilter) -> Selection:
    """Return the selection of a request whose scope has been checked."""
    if request.session_id is not None:
        # A fact may be saved in a session without turns, which has no row. The turns erase the facts that have sources.
        saved = and_(facts.c.session == scope.session, _has_no_source())
        return Selection(
            sessions=sessions.c.session == scope.session,
            facts=saved,
            threads=threads.c.thread == scope.session,
            beliefs=beliefs.c.session == scope.session,
        )
    if request.level is not None:
        return Selection(
            sessions=erasable(sessions, scope),
            facts=erasable(facts, scope),
            items=erasable(items, scope),
            threads=erasable(threads, scope),
            beliefs=erasable(beliefs, scope),
            whole_owner=scope.reach >= Reach.user,
        )
    if request.memory_ids is not None:
        return _by_ids(request.memory_ids, scope, with_sources=request.sources)
    assert request.source is not None
    since = None if request.since is None else to_micros(request.since)
    return _by_source(request.source, scope, since)


def remaining(connection: Connection, owner: UUID, selection: Selection) -> int:
    """Return the number of rows of the selection that exist: 0 after a complete erasure."""
    tiers = (
        (sessions, selection.sessions),
        (facts, selection.facts),
        (turns, selection.turns),
        (items, selection.items),
        (threads, selection.threads),
        (beliefs, selection.beliefs),
    )
    counts = [
        select(func.count()).select_from(table).where(table.c.owner == owner, condition)
        for table, condition in tiers
        if condition is not None
    ]
    return sum(connection.execute(statement).scalar_one() for statement in counts)


def not_covered(connection: Connection, scope: ScopeFilter, selection: Selection) -> list[str]:
    """Return the parts that a forget does not search. Threads and session states may contain what was forgotten."""
    parts: dict[str, ColumnElement[bool]] = {}
    if selection.threads is None:
        parts["threads"] = erasable(threads, scope)
    if selection.sessions is None:
        parts["session_state"] = and_(erasable(sessions, scope), sessions.c.state.is_not(None))
    return [name for name, rows in parts.items() if connection.execute(select(exists().where(rows))).scalar_one()]


def _by_ids(ids: Sequence[str], scope: ScopeFilter, *, with_sources: bool) -> Selection:
    """Select facts and turns by id. With `with_sources`, the source turns of these facts as well."""
    keys = [key for key in map(parse_key, ids) if key is not None]
    chosen_facts = and_(managed(FACTS, scope), facts.c.fact.in_(keys))
    chosen_beliefs = and_(managed(BELIEFS, scope), beliefs.c.belief.in_(keys))
    within = and_(_in_sessions(scope), turns.c.erased.is_(False))
    if scope.session is not None:
        within = and_(within, turns.c.session == scope.session)
    named = and_(turns.c.turn_id.in_(ids), within)
    sources = and_(_sources_of(chosen_facts), within if scope.reach is Reach.session else _in_sessions(scope))
    chosen = or_(named, sources) if with_sources else named
    return Selection(
        facts=chosen_facts,
        turns=and_(chosen, turns.c.erased.is_(False)),
        beliefs=chosen_beliefs,
        named_turns=named,
    )


def check_unambiguous(connection: Connection, owner: UUID, selection: Selection) -> None:
    """Raise Conflict if the request names a turn id that is in several sessions: ids are unique per session only."""
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
            f"the turn id {ambiguous!r} is in several sessions; name one of them in `in_session`",
            {"turn_id": ambiguous},
        )


def _has_no_source() -> ColumnElement[bool]:
    return not_(exists().where(fact_sources.c.owner == facts.c.owner, fact_sources.c.fact == facts.c.fact))


def _has_other_source(chosen: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a fact has a source turn that is not chosen."""
    return exists().where(
        fact_sources.c.owner == facts.c.owner,
        fact_sources.c.fact == facts.c.fact,
        turns.c.owner == fact_sources.c.owner,
        turns.c.session == fact_sources.c.session,
        turns.c.seq.between(fact_sources.c.from_seq, fact_sources.c.upto_seq),
        turns.c.erased.is_(False),
        not_(chosen),
    )


def _sources_of(chosen_facts: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(
        fact_sources.c.owner == turns.c.owner,
        fact_sources.c.session == turns.c.session,
        fact_sources.c.from_seq <= turns.c.seq,
        fact_sources.c.upto_seq >= turns.c.seq,
        fact_sources.c.fact.in_(select(facts.c.fact).where(chosen_facts)),
    )


def _by_source(source: ForgetSource, scope: ScopeFilter, since: int | None) -> Selection:
    recent = turns.c.event_at >= since if since is not None else true()
    not_erased = and_(recent, turns.c.erased.is_(False))
    if source.kind == "tool":
        return Selection(
            turns=and_(turns.c.role == "tool", turns.c.name == source.name, _in_sessions(scope), not_erased)
        )
    if source.kind == "session":
        own_sessions = sessions.c.session == scope.session
        own_facts = facts.c.session == scope.session
        own_items = None
        own_threads = threads.c.thread == scope.session
        own_beliefs = beliefs.c.session == scope.session
    else:
        own_sessions = and_(erasable(sessions, scope), sessions.c.agent == source.name)
        own_facts = and_(erasable(facts, scope), facts.c.agent == source.name)
        own_items = and_(erasable(items, scope), items.c.agent == source.name)
        own_threads = and_(erasable(threads, scope), threads.c.agent == source.name)
        own_beliefs = and_(erasable(beliefs, scope), beliefs.c.agent == source.name)
    if since is None:
        # Facts with sources are erased with their turns, unless turns of other sessions support them.
        saved = and_(own_facts, _has_no_source())
        return Selection(sessions=own_sessions, facts=saved, items=own_items, threads=own_threads, beliefs=own_beliefs)
    of_sessions = turns.c.session.in_(select(sessions.c.session).where(sessions.c.owner == scope.owner, own_sessions))
    recent_items = None if own_items is None else and_(own_items, items.c.updated_at >= since)
    chosen = and_(of_sessions, not_erased)
    recent_facts = and_(own_facts, facts.c.event_at >= since, not_(_has_other_source(chosen)))
    recent_beliefs = and_(own_beliefs, beliefs.c.updated_at >= since)
    return Selection(facts=recent_facts, turns=chosen, items=recent_items, beliefs=recent_beliefs)


def _in_sessions(scope: ScopeFilter) -> ColumnElement[bool]:
    return turns.c.session.in_(select(sessions.c.session).where(erasable(sessions, scope)))
