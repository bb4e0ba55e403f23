"""Export of all rows of one owner as plain JSON, and import of such rows into a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Table, and_, case, func, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from threefold.contract.admin import ArchiveRow
from threefold.errors import Conflict, InvalidRequest
from threefold_server.rules.access import Principal, Reach
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import (
    barred_sources,
    belief_events,
    belief_supports,
    beliefs,
    checkpoint_blobs,
    checkpoint_writes,
    checkpoints,
    digests,
    experiments,
    fact_sources,
    facts,
    items,
    threads,
    turns,
)
from threefold_server.storage.engine.tables import sessions as session_rows
from threefold_server.storage.engine.tables import tasks as task_rows
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.knowledge import belief_standing
from threefold_server.storage.knowledge.belief_standing import Change
from threefold_server.storage.memories import facts as fact_store
from threefold_server.storage.memories import index
from threefold_server.storage.sessions import digests as digest_store
from threefold_server.storage.sessions import sessions, tasks
from threefold_server.storage.store import archive_rows, archive_rules
from threefold_server.storage.store.archive_rows import Values
from threefold_server.storage.store.archive_rules import Rules
from threefold_server.text.indexed import fact_passages
from threefold_server.text.item_fields import item_passages
from threefold_server.text.redaction import Redact

ARCHIVED = (
    *(session_rows, turns, digests, facts, fact_sources, barred_sources),
    *(items, threads, checkpoints, checkpoint_blobs, checkpoint_writes),
    *(beliefs, belief_supports, belief_events, experiments),
)
"""The tables of an archive, in order: rows refer to earlier tables only. Others are derived or record erasures."""

AT_ONCE = 500
_COUNTED = ("last_seq", "turns", "tokens", "digested_tokens")
"""Columns of a session that an import computes from its turns and digests."""

Prepared = Mapping[Table, list[Values]]
Added = Mapping[Table, Sequence[Values]]


def dump(connection: Connection, owner: UUID) -> Iterator[ArchiveRow]:
    """Yield all rows of an owner, table by table."""
    for table in ARCHIVED:
        columns = [column for column in table.columns if column.name != "owner"]
        rows = select(*columns).where(table.c.owner == owner).order_by(*table.primary_key.columns)
        for row in connection.execute(rows, execution_options={"yield_per": AT_ONCE}).mappings():
            yield ArchiveRow(
                table=table.name, row={str(name): archive_rows.encode(value) for name, value in row.items()}
            )


def prepare(rows: Sequence[ArchiveRow], rules: Rules) -> Prepared:
    """Return the rows by table, each checked by the rules of a write."""
    prepared: dict[Table, list[Values]] = {table: [] for table in ARCHIVED}
    for number, row in enumerate(rows):
        table = next((table for table in ARCHIVED if table.name == row.table), None)
        if table is None:
            raise InvalidRequest(f"rows.{number}.table: unknown; a newer version may have written it")
        prepared[table].append(archive_rules.prepare(row, table, rules, f"rows.{number}"))
    return prepared


def load(connection: Connection, principal: Principal, prepared: Prepared, now: int, redact: Redact) -> Added:
    """Insert the rows that do not exist yet and return them. Raise Conflict if one contradicts an existing row."""
    sessions.ensure_owner(connection, principal, now)
    fact_store.touch_owner(connection, principal.owner)
    try:
        added = {table: _insert(connection, table, values) for table, values in prepared.items()}
    except IntegrityError as error:
        raise Conflict("a row clashes with one that is there, or rests on one that is not") from error
    _count_turns(connection, added[turns], now)
    _check_ranges(connection, [*added[digests], *added[fact_sources], *added[barred_sources]])
    _check_versions(connection, added[facts])
    _count_digests(connection, added[digests])
    _follow_up(connection, added, now, redact)
    return added


def _insert(connection: Connection, table: Table, rows: Sequence[Values]) -> list[Values]:
    """Insert the rows whose keys do not exist yet, and return them."""
    if not rows:
        return []
    if table is turns:  # lock their sessions first, as every writer does
        which = session_rows.c.session.in_({row["session"] for row in rows})
        locked = select(session_rows.c.session).where(session_rows.c.owner == rows[0]["owner"], which)
        connection.execute(locked.order_by(session_rows.c.session).with_for_update()).all()
    key = list(table.primary_key.columns)
    wanted = {tuple(row[column.name] for column in key): row for row in rows}
    known = {tuple(row) for row in connection.execute(select(*key).where(tuple_(*key).in_(list(wanted))))}
    if table is turns:
        _check_same(connection, {found: row for found, row in wanted.items() if found in known})
    fresh = [row for found, row in wanted.items() if found not in known]
    if fresh:
        empty = dict.fromkeys(_COUNTED, 0) if table is session_rows else {}
        connection.execute(table.insert(), [row | empty for row in fresh])
    return fresh


def _check_same(connection: Connection, rows: Mapping[tuple[Any, ...], Values]) -> None:
    """Raise Conflict if a stored turn has another content than the archived one."""
    said = [turns.c[name] for name in ("turn_id", "role", "content", "payload")]
    place = (turns.c.owner, turns.c.session, turns.c.seq)
    for row in connection.execute(select(*place, *said).where(tuple_(*place).in_(list(rows)))).mappings():
        archived = rows[row["owner"], row["session"], row["seq"]]
        if any(row[column.name] != archived[column.name] for column in said):
            raise Conflict(f"turn {row['seq']} of a session is another one here; nothing was stored")


def _count_turns(connection: Connection, said: Sequence[Values], now: int) -> None:
    """Update the counters of each session and queue its index. Raise InvalidRequest if numbers of turns are missing."""
    for session, rows in _by_session(said):
        owner, last = rows[0]["owner"], max(row["seq"] for row in rows)
        counted = {
            "last_seq": case((session_rows.c.last_seq < last, last), else_=session_rows.c.last_seq),
            "turns": session_rows.c.turns + sum(not row.get("erased") for row in rows),
            "tokens": session_rows.c.tokens + sum(row["tokens"] for row in rows),
        }
        connection.execute(update(session_rows).where(sessions.own_session(owner, session)).values(counted))
        here = select(func.count(), func.max(turns.c.seq)).where(turns.c.owner == owner, turns.c.session == session)
        held, highest = connection.execute(here).one()
        if held != highest:
            raise InvalidRequest(
                f"turns of a session are missing before its turn {highest}; import rows in their order"
            )
        tasks.schedule(connection, owner, session, "index", now)


def _check_ranges(connection: Connection, ranges: Sequence[Values]) -> None:
    """Raise InvalidRequest if a row refers to turns that do not exist: a reader would search for each of them."""
    for session, rows in _by_session(ranges):
        where = sessions.own_session(rows[0]["owner"], session)
        last = connection.execute(select(session_rows.c.last_seq).where(where)).scalar_one()
        if any(not row["from_seq"] <= row["upto_seq"] <= last for row in rows):
            raise InvalidRequest(f"a digest or a source covers turns that its session, which has {last}, does not have")


def _check_versions(connection: Connection, rows: Sequence[Values]) -> None:
    """Raise InvalidRequest if versions of one fact have different readers: a history shows all versions."""
    if not rows:
        return
    roots = and_(facts.c.owner == rows[0]["owner"], facts.c.root.in_({row["root"] for row in rows}))
    beyond = case((facts.c.visibility == int(Reach.session), facts.c.session))
    sorts = [
        func.count(column.distinct()) > 1 for column in (facts.c.agent, facts.c.visibility, facts.c.shared, beyond)
    ]
    mixed = select(facts.c.root).where(roots).group_by(facts.c.root).having(or_(*sorts)).limit(1)
    if connection.execute(mixed).first() is not None:
        raise InvalidRequest("the versions of a fact have different agents or visibilities; nothing was stored")


def _count_digests(connection: Connection, rows: Sequence[Values]) -> None:
    """Compute how many tokens the digests of a session cover, and update the session."""
    for session, added in _by_session(rows):
        here = and_(turns.c.owner == added[0]["owner"], turns.c.session == session)
        for row in added:
            covered = select(func.coalesce(func.sum(turns.c.tokens), 0)).where(here, turns.c.seq <= row["upto_seq"])
            one = and_(*(column == row[column.name] for column in digests.primary_key))
            connection.execute(update(digests).where(one).values(covered_tokens=covered.scalar_subquery()))
        latest = digest_store.latest(connection, added[0]["owner"], session)
        known = session_rows.c.digest_version
        counted = {
            "digest_version": case((known < latest.version, latest.version), else_=known),
            "digested_tokens": latest.covered_tokens,
        }
        where = sessions.own_session(added[0]["owner"], session)
        connection.execute(update(session_rows).where(where).values(counted))


def _follow_up(connection: Connection, added: Added, now: int, redact: Redact) -> None:
    """Add the rows to the search index, and set the watermarks of extraction."""
    for row in (*added[fact_sources], *added[barred_sources]):
        _count_as_read(connection, row)
    if roots := {row["belief"] for row in (*added[beliefs], *added[belief_supports])}:
        owner = next(iter(added[beliefs] or added[belief_supports]))["owner"]
        belief_standing.recompute(connection, owner, roots, Change(now, "imported"))
    for row in _current(connection, added[facts], now):
        index.add_fact(connection, row, fact_passages(row.text))
        tasks.schedule(connection, row.owner, row.owner, "embed", now)
    for row in added[items]:
        texts = item_passages(json.loads(row["value"]), json.loads(row["fields"]), redact)
        index.add_items(connection, [(row, len(texts), None)], embedder="")
        tasks.schedule(connection, row["owner"], row["owner"], "embed", now)


def _count_as_read(connection: Connection, source: Values) -> None:
    """Move the watermark of extraction past a source: extracting it again would bring back corrected facts."""
    values = {"owner": source["owner"], "subject": source["session"], "kind": "extract", "upto": source["upto_seq"]}
    statement = insert_into(connection, task_rows).values(values)
    further = case((statement.excluded.upto > task_rows.c.upto, statement.excluded.upto), else_=task_rows.c.upto)
    connection.execute(statement.on_conflict_do_update(index_elements=[*task_rows.primary_key], set_={"upto": further}))


def _by_session(rows: Sequence[Values]) -> Iterator[tuple[UUID, list[Values]]]:
    for session in sorted({row["session"] for row in rows}):
        own = [row for row in rows if row["session"] == session]
        yield session, own


def _current(connection: Connection, rows: Sequence[Values], now: int) -> Sequence[AnyRow]:
    if not rows:
        return []
    own = and_(facts.c.owner == rows[0]["owner"], facts.c.fact.in_([row["fact"] for row in rows]))
    return connection.execute(select(facts).where(own, fact_store.current(now))).all()
