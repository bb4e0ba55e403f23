"""Conversion of an archive's rows between columns and plain JSON, with checks of the values and keys.

Keys are in hexadecimal digits, bytes in base64, times in microseconds since 1970. The owner is left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, get_args
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, SmallInteger, Table

from threefold.contract.beliefs import BeliefCause, Verdict
from threefold.contract.common import MAX_PAYLOAD_CHARS, NotedBy, Origin, Role, TurnKind, Visibility, check_exact
from threefold.errors import InvalidRequest
from threefold_server.clock import from_micros
from threefold_server.rules.access import Holder, Principal, Reach, data_holder, item_key, session_key, thread_key
from threefold_server.storage.engine.tables import (
    beliefs,
    checkpoint_blobs,
    checkpoints,
    facts,
    items,
    sessions,
    threads,
)
from threefold_server.storage.engine.types import Key
from threefold_server.storage.threads.threads import blob_key, namespace_key

Values = dict[str, Any]

_ALLOWED: dict[str, Collection[Any]] = {
    "role": get_args(Role),
    "kind": get_args(TurnKind),
    "origin": get_args(Origin),
    "noted_by": get_args(NotedBy),
    "verdict": get_args(Verdict),
    "cause": get_args(BeliefCause),
    "visibility": [int(Reach[name]) for name in get_args(Visibility)],
}
_BITS = ((SmallInteger, 15), (BigInteger, 63), (Integer, 31), (Float, 63))
_LEAST = {"seq": 1, "from_seq": 1, "upto_seq": 1, "trust": 0.0, "n": 1, "idx": -(2**31)}
_MOST = {"trust": 1.0, "verdict_trust": 1.0, "confidence": 1.0}
_COUNT = (0, 2**30 - 1)
"""The range of other numbers: a count that the service can add to without an overflow of the column."""
_LARGE_COUNT = (0, 2**53 - 1)
_MOMENTS = ("valid_from", "valid_to")
MAX_TEXT_CHARS = 6 * MAX_PAYLOAD_CHARS
"""No column of text holds more than the JSON of an item's value, whose own rule counts bytes."""


def encode(value: Any) -> Any:
    """Return a value of a column as JSON."""
    if isinstance(value, UUID):
        return value.hex
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def decode(table: Table, row: Mapping[str, Any], where: str) -> Values:
    """Return the columns of a row. Columns that an older release did not write get their defaults."""
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
    """Raise InvalidRequest if the keys of a row do not follow from its owner and names, or its writer is another user.

    Nobody could read such a row, or only other users could.
    """
    holder = data_holder(replace(owner, agent=row.get("agent", "")), "agent" if row.get("for_all") else "user")
    if holder.owner != owner.owner or any(row.get(name) != value for name, value in _keys(table, row, holder).items()):
        raise InvalidRequest(f"{where}: its keys are not this owner's; the archive is of somebody else")


def _keys(table: Table, row: Values, holder: Holder) -> Mapping[str, Any]:
    if table is items:
        return {"pool": holder.pool, "item": item_key(holder.pool, row["path"], row["key"])}
    if table is threads:
        return {"thread": thread_key(holder, row["thread_id"])}
    if table is checkpoints:
        return {"place": namespace_key(row["ns"])}
    if table is checkpoint_blobs:
        return {"blob": blob_key(row["channel"], json.loads(row["version"]))}
    if table not in (sessions, facts, beliefs):
        return {}  # it refers to a row of another table, whose keys are checked
    named = row.get("session_id")
    session = None if named is None else session_key(holder.owner, holder.agent, named)
    if table in (sessions, beliefs):
        return {"session": session}
    return {"session": session, "writer": holder.principal.user if row.get("shared") else None}


def _check_moments(row: Values) -> None:
    """Raise ValueError or OverflowError for a time outside the calendar, which could be stored but not read."""
    for name, value in row.items():
        if value is not None and _is_moment(name):
            from_micros(value, row.get("utc_offset", 0))


def _is_moment(name: str) -> bool:
    return name.endswith("_at") or name in _MOMENTS


def _value(column: Column[Any], value: Any) -> Any:
    """Return a value for the database; raise ValueError or TypeError if the column cannot have it."""
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
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(column, value)
    if isinstance(value, str):
        check_exact(value)
        if len(value) > MAX_TEXT_CHARS:
            raise ValueError


def _check_number(column: Column[Any], value: float) -> None:
    name = column.name
    if _is_moment(name) or name == "utc_offset":
        return  # limited by the calendar
    low, high = _LARGE_COUNT if isinstance(column.type, BigInteger | Float) else _COUNT
    if not _LEAST.get(name, low) <= value <= _MOST.get(name, high):  # NaN fails as well
        raise ValueError
