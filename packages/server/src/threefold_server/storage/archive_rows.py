"""One row of an archive: the columns of its table as plain JSON, and back, with everything that a writer has to obey.

Keys are in hex, bytes in base64, times in microseconds since 1970. The owner is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, get_args
from uuid import UUID

from pydantic import Json, TypeAdapter
from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, SmallInteger, Table

from threefold.contract.common import Id, Origin, Role, TurnKind, Visibility, check_exact
from threefold.contract.threads import Version, check_json_object
from threefold.errors import InvalidRequest
from threefold_server.access import Holder, Principal, Reach, data_holder, item_key, session_key, thread_key
from threefold_server.storage.tables import facts, items, sessions, threads
from threefold_server.storage.types import Key, from_micros

Values = dict[str, Any]

_ALLOWED: dict[str, Collection[Any]] = {
    "role": get_args(Role),
    "kind": get_args(TurnKind),
    "origin": get_args(Origin),
    "visibility": [int(Reach[name]) for name in get_args(Visibility)],
}
_BITS = ((SmallInteger, 15), (BigInteger, 63), (Integer, 31), (Float, 63))
_LEAST = {"seq": 1, "tokens": 0, "trust": 0.0, "ttl": 0.0, "revision": 0}
_MOST = {"trust": 1.0}

_is_id = TypeAdapter[str](Id).validate_python
_TEXTS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("agent", "session_id", "thread_id", "turn_id", "writer"), _is_id),
    **dict.fromkeys(("metadata", "value", "versions"), check_json_object),
    "fields": TypeAdapter[list[str]](Json[list[str]]).validate_python,
    "version": TypeAdapter[Version](Json[Version]).validate_python,
}
"""What raises `ValueError` where the text of a column is no id, or not its JSON."""


def encode(value: Any) -> Any:
    """A value of a column as JSON."""
    if isinstance(value, UUID):
        return value.hex
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def decode(table: Table, row: Mapping[str, Any], where: str) -> Values:
    """The columns of a row; one that an older version did not write gets its default."""
    known = {column.name: column for column in table.columns if column.name != "owner"}
    unknown = row.keys() - known.keys()
    missing = {name for name, column in known.items() if column.server_default is None and not column.nullable}
    if unknown or missing - row.keys():
        names = ", ".join(sorted(unknown or missing - row.keys()))
        raise InvalidRequest(f"{where}: {'unknown' if unknown else 'missing'}: {names}")
    try:
        values = {name: _value(known[name], value) for name, value in row.items()}
        _check_moments(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{where}: a value does not fit its column") from error
    return values


def check_keys(table: Table, row: Values, owner: Principal, where: str) -> None:
    """Refuse a row whose keys, or whose writer, do not follow from its owner: nobody would find it, or only others."""
    if table not in (sessions, facts, threads, items):
        return  # it rests on one of these
    holder = data_holder(replace(owner, agent=row["agent"]), "agent" if row.get("for_all") else "user")
    follow = {**_keys(table, row, holder), "writer": row.get("writer") and owner.user}
    if holder.owner != owner.owner or any(row.get(name) != value for name, value in follow.items()):
        raise InvalidRequest(f"{where}: its keys are not this owner's; the archive is of somebody else")


def _keys(table: Table, row: Values, holder: Holder) -> Mapping[str, UUID | None]:
    if table is items:
        return {"pool": holder.pool, "item": item_key(holder.pool, row["path"], row["key"])}
    if table is threads:
        return {"thread": thread_key(holder, row["thread_id"])}
    named = row.get("session_id")
    return {"session": None if named is None else session_key(holder.owner, holder.agent, named)}


def _check_moments(row: Values) -> None:
    """Moments beyond the calendar could be stored, and never shown."""
    for name, value in row.items():
        if value is not None and (name.endswith("_at") or name in ("valid_from", "valid_to")):
            from_micros(value, row.get("utc_offset", 0))


def _value(column: Column[Any], value: Any) -> Any:
    """A value as the database takes it; `ValueError` or `TypeError` where it cannot be one of the column's."""
    if value is None:
        if not column.nullable:
            raise TypeError
        return None
    kind = column.type
    if isinstance(kind, Key):
        return UUID(_of_type(str, value))
    if isinstance(kind, LargeBinary):
        return base64.b64decode(value, validate=True)
    python = bool if isinstance(kind, Boolean) else int if isinstance(kind, Integer) else kind.python_type
    _check_value(column, float(value) if python is float and type(value) is int else _of_type(python, value))
    return value


def _of_type(python: type[Any], value: Any) -> Any:
    if type(value) is not python:
        raise TypeError
    return value


def _check_value(column: Column[Any], value: Any) -> None:
    name, kind = column.name, column.type
    if type(value) is int and not -(2**63) <= value < 2 ** next(bits for sort, bits in _BITS if isinstance(kind, sort)):
        raise ValueError
    if name in _ALLOWED and value not in _ALLOWED[name]:
        raise ValueError
    if isinstance(value, int | float) and not _LEAST.get(name, -(2**63)) <= value <= _MOST.get(name, 2**63):
        raise ValueError
    if isinstance(value, str):
        check_exact(value)
        _TEXTS.get(name, check_exact)(value)
