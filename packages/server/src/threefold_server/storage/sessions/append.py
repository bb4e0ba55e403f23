"""An ordinary write on Postgres in one round trip: of turns that nothing is known of, into a session that is there, by
an owner of whom nothing was erased lately.

Its two statements are sent and committed together; where they find that it is not ordinary, they do nothing. The
general way, which is left for all else, takes nine and two round trips: twice the processor time.
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
from threefold_server.storage.sessions.tasks import TaskKind, extracts, folds, or_appoint, or_make_due


@dataclass(frozen=True)
class Marks:
    """When a write makes consolidation due: past how many undigested tokens (never: a number that none reach), each
    time that so many have come, and when the session has been idle; None where no facts are drawn."""

    fold_above: int
    extract_every: int
    idle_at: int | None


def send_append(
    connection: Connection, scope: ScopeFilter, rows: Sequence[dict[str, Any]], marks: Marks, now: int
) -> Pending[SessionRow | None]:
    """Append rows (numbered from 1) to a session; what it was before, or None if this is for the general way."""
    key = {"own": scope.owner, "which": scope.session}
    _LOCK.run(connection, **key)  # so that the next statement sees all that was committed before it had the lock
    found = _APPEND.send(
        connection,
        **key,
        rows=json.dumps(rows, ensure_ascii=False),  # as any other text, whatever the encoding of the database
        ids=[row["turn_id"] for row in rows],
        more_turns=len(rows),
        more_tokens=sum(row["tokens"] for row in rows),
        now=now,
        fold_above=marks.fold_above,
        every=marks.extract_every,
        idle_at=marks.idle_at or 0,
        extracting=marks.idle_at is not None,
    )
    return lambda: next((SessionRow(*row) for row in found()), None)


def _append(_: str) -> Any:
    locked = func.current_setting(_LOCKED, True) == _YES
    erased = exists().where(erased_turns.c.owner == _OWNER)
    named = exists().where(owners.c.owner == _OWNER, owners.c.name != "")  # by the general way, where a forget took it
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
        or_appoint(_task(found, "extract", extract_at, bindparam("extracting", type_=Boolean))),
    )
    return select(found).add_cte(*(change.cte(f"change_{number}") for number, change in enumerate(changes)))


def _known() -> ColumnElement[bool]:
    """Whether any of the ids is in the session. Each is looked up by itself: of one condition on all of them, the plan
    for the mean session reads the whole of a long one."""
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
# Postgres finds no row to lock of a session that another transaction is just creating, but the next statement may see
# it: two writers at once gave their turns the same numbers. So the lock leaves a mark, for this transaction alone.
_LOCK = Prepared(
    select(func.set_config(_LOCKED, _YES, True)).select_from(sessions).where(OWN).with_for_update(key_share=True)
)
_APPEND = Prepared(_append)
