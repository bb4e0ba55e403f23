"""The turns of sessions: append and read. Only a forget or the store's retention removes turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, Connection, Integer, and_, bindparam, func, insert, literal, select

from threefold.contract import Turn, TurnIn
from threefold_server.clock import from_micros, to_micros
from threefold_server.rules.access import Reach
from threefold_server.rules.trust import trust_of
from threefold_server.storage.engine import excerpts
from threefold_server.storage.engine.prepared import Pending, Prepared, among, texts
from threefold_server.storage.engine.tables import sessions, turns
from threefold_server.storage.engine.types import AnyRow

_CONTENT = ("role", "name", "kind", "turn_group", "content", "payload", "noted_by")
_INSERTED = [column.name for column in turns.c if column.name not in ("erased", "imported")]
_WITHOUT_PAYLOAD = [column for column in turns.c if column.name != "payload"]
_SHOWN = [column for column in _WITHOUT_PAYLOAD if column.name not in ("owner", "session", "event_at", "content")]

PAGE_CHARS = 16_000_000
"""The most characters of contents and payloads in one page; a page always has at least one turn."""


def send_contents(
    connection: Connection, owner: UUID, session: UUID, ids: Sequence[str]
) -> Pending[dict[str, dict[str, Any]]]:
    """Send for the stored turns with these ids, to tell a retry from a conflict.

    The result has the columns of `content_of` by turn id.
    """
    rows = _BY_IDS.send(connection, owner=owner, session=session, ids=texts(connection, ids))
    return lambda: {row.turn_id: {name: getattr(row, name) for name in _CONTENT} for row in rows()}


def content_of(turn: TurnIn) -> dict[str, Any]:
    """Return the columns that must be equal for a retry. Times are not among them, as a retry may have another time."""
    values = (turn.role, turn.name, turn.kind, turn.group, turn.content, turn.payload, turn.noted_by)
    return dict(zip(_CONTENT, values, strict=True))


def append(connection: Connection, owner: UUID, session: UUID, rows: Sequence[dict[str, Any]]) -> None:
    """Insert turns."""
    _INSERT.run_many(connection, [{"owner": owner, "session": session, **row} for row in rows])


def rows_of(batch: Sequence[tuple[TurnIn, int]], *, after: int, visibility: Reach, now: int) -> list[dict[str, Any]]:
    """Return turns with their token counts as rows of a session, numbered from `after + 1` on."""
    rows: list[dict[str, Any]] = []
    for seq, (turn, tokens) in enumerate(batch, after + 1):
        created_at = now if turn.created_at is None else to_micros(turn.created_at)
        offset = None if turn.created_at is None else turn.created_at.utcoffset()
        rows.append(
            {
                "seq": seq,
                "turn_id": turn.id,
                **content_of(turn),
                "tokens": tokens,
                "visibility": int(visibility),
                "created_at": created_at,
                "utc_offset": int(offset.total_seconds() // 60) if offset else 0,
                "event_at": min(created_at, now),  # a clock that runs ahead must not rank above the present
            }
        )
    return rows


class Reading(NamedTuple):
    """How contents are read: whole up to `most` characters, otherwise head and tail, redacted."""

    most: int
    redact: Callable[[str], str]

    @property
    def values(self) -> dict[str, int]:
        return {"most": self.most, "end": excerpts.end_of(self.most)}

    def turn(self, row: AnyRow) -> Turn:
        """Return a row as a model of the contract, with `cut` set if its content was not read whole."""
        turn = to_turn(row)
        if not excerpts.is_cut(row):
            return turn
        return turn.model_copy(update={"content": excerpts.shown(row, self.redact), "cut": True})


def newest(connection: Connection, owner: UUID, session: UUID, limit: int, reading: Reading) -> list[Turn]:
    """Return the newest turns of a session that are not erased, oldest first."""
    return [reading.turn(row) for row in _newest(connection, _NEWEST, owner, session, limit, **reading.values)]


def outlines(connection: Connection, owner: UUID, session: UUID, limit: int) -> list[Turn]:
    """Return the newest turns like `newest`, but without their contents."""
    return [to_turn(row) for row in _newest(connection, _OUTLINES, owner, session, limit)]


def _newest(
    connection: Connection, statement: Prepared, owner: UUID, session: UUID, limit: int, **reading: int
) -> list[Any]:
    values: dict[str, Any] = {"owner": owner, "session": session, "limit": limit, **reading}
    rows = statement.all(connection, **values, reach=limit)
    if len(rows) < limit and (not rows or rows[-1].seq > 1):  # some of the last are erased
        rows = statement.all(connection, **values, reach=_EVERY)
    return list(reversed(rows))


def fitting(
    connection: Connection, owner: UUID, session: UUID, from_seq: int, limit: int, *, payload: bool
) -> tuple[int, int | None]:
    """Return how many turns from `from_seq` on make a page of at most `limit`, and where the next page starts."""
    length = func.octet_length if connection.dialect.name != "sqlite" else func.length
    size = length(turns.c.content) + (func.coalesce(length(turns.c.payload), 0) if payload else 0)
    statement = (
        select(turns.c.seq, size)
        .where(turns.c.owner == owner, turns.c.session == session, turns.c.seq >= from_seq)
        .order_by(turns.c.seq)
        .limit(limit + 1)
    )
    used = 0
    for count, (seq, chars) in enumerate(connection.execute(statement).all()):
        used += chars
        if count == limit or (count and used > PAGE_CHARS):
            return count, seq if limit else None
    return limit, None


def newest_of_user(connection: Connection, owner: UUID, session: UUID, reach: int, reading: Reading) -> Turn | None:
    """Return the last message of the user among the newest `reach` turns, or None."""
    rows = _NEWEST_OF_USER.all(connection, owner=owner, session=session, reach=reach, **reading.values)
    return reading.turn(rows[0]) if rows else None


def page(connection: Connection, owner: UUID, session: UUID, from_seq: int, limit: int, *, payload: bool) -> list[Turn]:
    """Return turns from `from_seq` on, oldest first, with erased ones as turns without content."""
    columns = turns.c if payload else _WITHOUT_PAYLOAD
    statement = (
        select(*columns)
        .where(turns.c.owner == owner, turns.c.session == session, turns.c.seq >= from_seq)
        .order_by(turns.c.seq)
        .limit(limit)
    )
    return [to_turn(row) for row in connection.execute(statement)]


def to_turn(row: AnyRow) -> Turn:
    """Return a row as a model of the contract."""
    return Turn.model_construct(  # validated at the write; validating again took 4 of the 6 ms of a window
        id=row.turn_id or "",
        seq=row.seq,
        role=row.role,
        content=row.content,
        name=row.name,
        kind=row.kind,
        group=row.turn_group,
        payload=getattr(row, "payload", None),
        created_at=from_micros(row.created_at, row.utc_offset),
        tokens=row.tokens,
        visibility=Reach(row.visibility).name,
        erased=row.erased,
        noted_by=row.noted_by,
        trust=trust_of(row),
    )


_SESSION = and_(turns.c.owner == bindparam("owner"), turns.c.session == bindparam("session"))
_INSERT = Prepared(insert(turns).values({name: bindparam(name) for name in _INSERTED}))
_EVERY = 2**62
# Postgres underestimates the number of rows of one session: without a bound it reads and sorts all turns of a session
# that is a large part of the table.
_BOUND = (
    select(sessions.c.last_seq - bindparam("reach", type_=BigInteger))
    .where(sessions.c.owner == bindparam("owner"), sessions.c.session == bindparam("session"))
    .scalar_subquery()
)
_READ = excerpts.columns(turns.c.content, bindparam("most", type_=Integer), bindparam("end", type_=Integer))
_NEWEST = Prepared(
    select(*_SHOWN, *_READ)
    .where(_SESSION, turns.c.seq > _BOUND, turns.c.erased.is_(False))
    .order_by(turns.c.seq.desc())
    .limit(bindparam("limit"))
)

_OUTLINES = Prepared(
    select(*_SHOWN, literal("").label("content"))
    .where(_SESSION, turns.c.seq > _BOUND, turns.c.erased.is_(False))
    .order_by(turns.c.seq.desc())
    .limit(bindparam("limit"))
)

_NEWEST_OF_USER = Prepared(
    select(*_SHOWN, *_READ)
    .where(_SESSION, turns.c.seq > _BOUND, turns.c.erased.is_(False))
    .where(turns.c.role == "user", turns.c.kind == "message", turns.c.content != "")
    .order_by(turns.c.seq.desc())
    .limit(1)
)


def _by_ids(dialect: str) -> Any:
    return select(turns.c.turn_id, *(turns.c[name] for name in _CONTENT)).where(
        _SESSION, among(turns.c.turn_id, "ids", dialect)
    )


_BY_IDS = Prepared(_by_ids)
