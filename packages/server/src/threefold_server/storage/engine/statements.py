"""Building blocks of SQL statements that differ between the databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(connection: Connection, table: Table) -> Any:
    """Return an `INSERT` for the connection's database, to which `ON CONFLICT` can be added."""
    return insert_for(connection.dialect.name, table)


def insert_for(dialect: str, table: Table) -> Any:
    """Return the same for the dialect of a statement that will be prepared."""
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)
