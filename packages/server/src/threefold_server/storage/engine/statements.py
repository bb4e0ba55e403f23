"""Building blocks of SQL statements that differ between the databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(connection: Connection, table: Table) -> Any:
    """`INSERT` with the `ON CONFLICT` clause that both databases know."""
    return insert_for(connection.dialect.name, table)


def insert_for(dialect: str, table: Table) -> Any:
    """The same for a statement that is prepared."""
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)
