"""Column types that differ between SQLite and Postgres."""

from __future__ import annotations

from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, LargeBinary, Row, Text, Uuid, literal, tuple_
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
"""A row whose columns are attributes."""

ByteOrdered = Text().with_variant(Text(collation="C"), "postgresql")
"""Text that sorts by its bytes, whatever the collation of the Postgres database."""


class Key(TypeDecorator[UUID]):
    """A 128-bit key: `uuid` on Postgres, 16 bytes on SQLite."""

    impl = Uuid
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(LargeBinary(16) if dialect.name == "sqlite" else Uuid())

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:
        return value.bytes if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        return UUID(bytes=value) if isinstance(value, bytes) else value


def row_value(*values: int | UUID) -> ColumnElement[Any]:
    """Return an SQL row value, to compare a tuple of columns with.

    The type `Key` is explicit because SQLAlchemy would pass a UUID to SQLite as text, which never equals a key.
    """
    return tuple_(*(literal(value, Key) if isinstance(value, UUID) else literal(value) for value in values))


class PgVector(UserDefinedType[NDArray[np.float32]]):
    """pgvector's type without a fixed dimension; numpy arrays are sent in binary form."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "vector"


class Vector(TypeDecorator[NDArray[np.float32]]):
    """A float32 vector: `vector` on Postgres, raw bytes on SQLite."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(LargeBinary() if dialect.name == "sqlite" else PgVector())

    def process_bind_param(self, value: NDArray[np.float32] | None, dialect: Dialect) -> Any:
        return value.astype("<f4").tobytes() if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> NDArray[np.float32] | None:
        if value is None:
            return None
        return np.frombuffer(value, dtype="<f4") if isinstance(value, bytes) else value.to_numpy()


def parse_key(text: str) -> UUID | None:
    """Return the key of a fact's id (32 lower-case hexadecimal digits), or None if the text has another form."""
    try:
        key = UUID(text)
    except ValueError:
        return None
    return key if key.hex == text else None
