"""Threads of graphs: checkpoints, the values of their channels, and pending writes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import tenant_policies
from threefold_server.storage.engine.types import ByteOrdered, Key

revision = "0005"
down_revision = "0004"

TABLES = ("threads", "checkpoints", "checkpoint_blobs", "checkpoint_writes")


def upgrade() -> None:
    """Create the tables, and bind them to their owners."""
    op.create_table(
        "threads",
        sa.Column("owner", Key(), nullable=False),
        sa.Column(
            "thread", Key(), comment="the key of the session of the same name, or of the agent's own", nullable=False
        ),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column(
            "for_all",
            sa.Boolean(),
            server_default=sa.text("false"),
            comment="the agent's, for its users",
            nullable=False,
        ),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "thread"),
    )

    op.create_table(
        "checkpoints",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("thread", Key(), nullable=False),
        sa.Column("place", Key(), comment="the key of the namespace", nullable=False),
        sa.Column("checkpoint_id", ByteOrdered, nullable=False),
        sa.Column("ns", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), comment="JSON: the version of every channel", nullable=False),
        sa.Column("run_id", sa.Text(), comment="of the metadata", nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "thread"], ["threads.owner", "threads.thread"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "thread", "place", "checkpoint_id"),
    )
    op.create_index("checkpoints_by_id", "checkpoints", ["owner", "thread", "checkpoint_id"])
    op.create_index("checkpoints_by_run", "checkpoints", ["owner", "run_id"])
    op.create_table(
        "checkpoint_blobs",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("thread", Key(), nullable=False),
        sa.Column("place", Key(), nullable=False),
        sa.Column("blob", Key(), comment="the key of channel and version", nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), comment="JSON, as it may be text or a number", nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "thread"], ["threads.owner", "threads.thread"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "thread", "place", "blob"),
    )

    op.create_table(
        "checkpoint_writes",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("thread", Key(), nullable=False),
        sa.Column("place", Key(), nullable=False),
        sa.Column("checkpoint_id", sa.Text(), comment="of a checkpoint that may come later", nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("task_path", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "thread"], ["threads.owner", "threads.thread"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "thread", "place", "checkpoint_id", "task_id", "idx"),
    )

    if op.get_bind().dialect.name == "postgresql":
        for statement in (statement for table in TABLES for statement in tenant_policies(table)):
            op.execute(statement)
