"""Turns say who reported them, and digests how far they are trusted."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"

TRUST = {"user": 1.0, "system": 0.8, "assistant": 0.6, "tool": 0.3}


def _table(name: str, *columns: str) -> sa.TableClause:
    made: list[sa.ColumnClause[Any]] = [sa.column(column) for column in columns]
    return sa.table(name, *made)


DIGESTS = _table("digests", "owner", "session", "from_seq", "upto_seq", "trust")
TURNS = _table("turns", "owner", "session", "seq", "role", "kind")


def upgrade() -> None:
    """A digest that is there already gets the least trust of the turns that it covers."""
    op.add_column(
        "turns", sa.Column("noted_by", sa.Text(), nullable=True, comment="who reported it, if not its speaker")
    )
    op.add_column(
        "digests",
        sa.Column(
            "trust",
            sa.Float(53),
            server_default=sa.text("0"),
            nullable=False,
            comment="the least of its turns",
        ),
    )
    of_role = sa.case(
        (TURNS.c.kind == "tool_result", TRUST["tool"]), *((TURNS.c.role == role, TRUST[role]) for role in TRUST)
    )
    covered = (
        sa.select(sa.func.min(of_role))
        .where(
            TURNS.c.owner == DIGESTS.c.owner,
            TURNS.c.session == DIGESTS.c.session,
            TURNS.c.seq.between(DIGESTS.c.from_seq, DIGESTS.c.upto_seq),
            TURNS.c.role != "system",
        )
        .scalar_subquery()
    )
    op.execute(sa.update(DIGESTS).values(trust=sa.func.coalesce(covered, 0.0)))
