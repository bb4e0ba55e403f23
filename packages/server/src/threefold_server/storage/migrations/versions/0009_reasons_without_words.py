"""Reasons of failed work lose the words of models and their servers, which may quote what somebody said."""

from __future__ import annotations

import re
import time

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

TASKS = sa.table("tasks", sa.column("failure", sa.Text()), sa.column("parked", sa.Text()))
STORE = sa.table("store", sa.column("name", sa.Text()), sa.column("value", sa.Text()))
REMOVED = "an upgrade removed the reason, which may have quoted a model; the next attempt gives it again"
STATUS = re.compile(r"the model's server answered \d{3}(?!\d)")


def upgrade() -> None:
    """Keep the HTTP status of a reason, if it has one. On Postgres the old texts stay in the files until a purge."""
    connection = op.get_bind()
    changed = sum(_clean(connection, TASKS.c[name]) for name in ("failure", "parked"))
    due = connection.execute(sa.select(STORE.c.value).where(STORE.c.name == "purge_needed_since")).first()
    if changed and due is None and connection.dialect.name == "postgresql":
        now = str(time.time_ns() // 1_000)
        connection.execute(sa.insert(STORE).values(name="purge_needed_since", value=now))


def _clean(connection: sa.Connection, column: sa.ColumnClause[str]) -> int:
    changed = 0
    for reason in connection.execute(sa.select(column).where(column.is_not(None)).distinct()).scalars().all():
        found = STATUS.match(reason)
        cleaned = found[0] if found else REMOVED
        changed += connection.execute(sa.update(TASKS).where(column == reason).values({column: cleaned})).rowcount
    return changed
