"""The fast path of a write on Postgres: append turns in one round trip.

It applies if the session exists, none of the turn ids is in it, and the owner has no recently erased turns. Its two
statements are sent together with the commit, and do nothing if these conditions are not met. Then the general path
(`operations/write.py`) runs: nine statements and two round trips, with twice the processor time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Text,
    bindparam,
    case,
    column,
    exists,
    func,
    insert,
    literal,
    not_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY, JSON

from threefold_server.rules.access import ScopeFilter
from threefold_server.storage.engine.prepared import Pending, Prepared
from threefold_server.storage.engine.tables import erased_turns, owners, sessions, tasks, turns
from threefold_server.storage.engine.types import Key
from threefold_server.storage.sessions.sessions import ADVANCED, COUNTERS, OWN, SessionRow
from threefold_server.storage.sessions.tasks import TaskKind, extracts, folds, or_make_due, or_reschedule


@dataclass(frozen=True)
class Thresholds:
    """When a write makes consolidation of its session due."""

    fold_above: int
    """A fold is due above this number of undigested tokens; a number that no session reaches if never."""
    extract_every: int
    """An extraction is due each time that this number of tokens has been written."""
    idle_at: int | None
    """Otherwise an extraction is due at this time, when the session has been idle; None without an extractor."""


def send_append(
    connection: Connection, scope: ScopeFilter, rows: Sequence[dict[str, Any]], thresholds: Thresholds, now: int
) -> Pending[SessionRow | None]:
    """Send the append of rows (numbered from 1) to a session.

    The result has the counters of the session before the append, or is None if the general path has to write the rows.
    """
    key = {"own": scope.owner, "which": scope.session}
    _LOCK.run(connection, **key)  # a statement of its own: the next one sees all commits before the lock
    found = _APPEND.send(
        connection,
        **key,
        rows=json.dumps(rows, ensure_ascii=False),  # no \u escapes: the same as any text, whatever the encoding
        ids=[row["turn_id"] for row in rows],
        more_turns=len(rows),
        more_tokens=sum(row["tokens"] for row in rows),
        now=now,
        fold_above=thresholds.fold_above,
        every=thresholds.extract_every,
        idle_at=thresholds.idle_at or 0,
        extracting=thresholds.idle_at is not None,
    )
    return lambda: next((SessionRow(*row) for row in found()), None)


def _append(_: str) -> Any:
    locked = func.current_setting(_LOCKED, True) == _YES
    erased = exists().where(erased_turns.c.owner == _OWNER)
    named = exists().where(owners.c.owner == _OWNER, owners.c.name != "")  # the general path restores an erased name
    found = select(*COUNTERS).where(OWN, locked, named, not_(_known()), not_(erased)).cte("found")
    now, added, every, fold_above, idle_at = (
        bindparam(name, type_=BigInteger) for name in ("now", "more_tokens", "every", "fold_above", "idle_at")
    )
    extract_at = case((extracts(found.c.tokens, added, every), now), else_=idle_at)
    advanced = update(sessions).where(OWN, exists().select_from(found)).values(**ADVANCED, updated_at=now)
    changes = (
        _insert(found),
        advanced,
        or_make_due(_task(found, "index", now)),
        or_make_due(_task(found, "fold", now, folds(found.c.tokens, found.c.digested_tokens, added, fold_above))),
        or_reschedule(_task(found, "extract", extract_at, bindparam("extracting", type_=Boolean))),
    )
    return select(found).add_cte(*(change.cte(f"change_{number}") for number, change in enumerate(changes)))


def _known() -> ColumnElement[bool]:
    """Return the condition that any of the ids is in the session.

    Each id is looked up by itself: with one condition for all ids, the plan for an average session reads all turns of a
    long one.
    """
    ids = func.unnest(bindparam("ids", type_=ARRAY(Text))).table_valued("id", name="ids").render_derived()
    there = select(true()).where(turns.c.owner == _OWNER, turns.c.session == _SESSION, turns.c.turn_id == ids.c.id)
    return exists().select_from(ids).where(there.correlate(ids).scalar_subquery())


def _insert(found: CTE) -> Any:
    given = [column for column in turns.c if column.name not in ("owner", "session", "erased", "imported")]
    listed = func.json_to_recordset(bindparam("rows", type_=JSON)).table_valued(
        *(column(c.name, c.type) for c in given)
    )
    rows = listed.render_derived(name="given", with_types=True)
    values = {c.name: rows.c[c.name] for c in given}
    values |= {"owner": _OWNER, "session": _SESSION, "seq": found.c.last_seq + rows.c.seq}
    return insert(turns).from_select(list(values), select(*values.values()).select_from(found.join(rows, true())))


def _task(found: CTE, kind: TaskKind, due_at: ColumnElement[int], *conditions: ColumnElement[bool]) -> Any:
    values = {"owner": _OWNER, "subject": _SESSION, "kind": literal(kind, Text), "due_at": due_at}
    chosen = select(*values.values()).select_from(found).where(*conditions)
    return postgresql.insert(tasks).from_select(list(values), chosen)


_OWNER, _SESSION = bindparam("own", type_=Key), bindparam("which", type_=Key)
_LOCKED, _YES = "threefold.locked", "yes"
# Postgres finds no row to lock if another transaction is just creating the session, but the next statement may see that
# row: two concurrent writers gave their turns the same numbers. So the lock sets a variable in its transaction, and the
# append does nothing without it.
_LOCK = Prepared(
    select(func.set_config(_LOCKED, _YES, True)).select_from(sessions).where(OWN).with_for_update(key_share=True)
)
_APPEND = Prepared(_append)
