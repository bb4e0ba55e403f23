"""What models cost an owner per day, and why a task waits for its next attempt."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import tenant_policies
from threefold_server.storage.engine.types import Key

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table and bind it to its owners; add the column."""
    op.create_table(
        "model_use",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False, comment="days since 1970, in UTC"),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "day"),
    )
    op.create_index("model_use_by_day", "model_use", ["day"])
    comment = "why the last attempt failed; null once there is progress"
    op.add_column("tasks", sa.Column("failure", sa.Text(), nullable=True, comment=comment))
    if op.get_bind().dialect.name == "postgresql":
        for statement in tenant_policies("model_use"):
            op.execute(statement)
