"""Items of a framework's store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import tenant_policies
from threefold_server.storage.engine.types import Key

revision = "0004"
down_revision = "0003"

COMMENTS = {
    "passages.source": "the session of a turn, or the fact or item itself",
    "passages.seq": "the turn''s; 0 for a fact, -1 for an item",
    "tasks.subject": "a session, or the owner for the vectors of its facts and items",
}


def upgrade() -> None:
    """Create the table and bind it to its owners."""
    op.create_table(
        "items",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("item", Key(), nullable=False, comment="of pool, path and key"),
        sa.Column("pool", Key(), nullable=False, comment="of one user and agent, or of one agent for all its users"),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("for_all", sa.Boolean(), nullable=False),
        sa.Column(
            "path",
            sa.LargeBinary(),
            nullable=False,
            comment="the namespace: each label in UTF-8, ended by a zero byte",
        ),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False, comment="the paths that are found by meaning"),
        sa.Column("ttl", sa.Float(53), nullable=True, comment="minutes; null: for ever"),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "item"),
    )
    op.create_index("items_by_path", "items", ["owner", "pool", "path"], unique=False)
    for name, column, condition in (
        ("items_for_all", "agent", "for_all"),
        ("items_expiring", "expires_at", "expires_at IS NOT NULL"),
    ):
        where = sa.text(condition)
        op.create_index(name, "items", [column], unique=False, postgresql_where=where, sqlite_where=where)
    if op.get_bind().dialect.name == "postgresql":
        for statement in tenant_policies("items"):
            op.execute(statement)
        for column, comment in COMMENTS.items():
            op.execute(f"COMMENT ON COLUMN {column} IS '{comment}'")
