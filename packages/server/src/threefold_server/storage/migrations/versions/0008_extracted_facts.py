"""Facts that a model drew from turns: who drew them, which turns stand together, and which turns give none again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import tenant_policies
from threefold_server.storage.engine.types import Key

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Facts that are there were saved by somebody."""
    op.add_column(
        "facts", sa.Column("extracted_by", sa.Text(), nullable=True, comment="the model; null if somebody saved it")
    )
    op.add_column(
        "fact_sources",
        sa.Column(
            "support",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="rows of one number stand or fall together",
        ),
    )
    op.create_table(
        "barred_sources",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("session", Key(), nullable=False),
        sa.Column("from_seq", sa.Integer(), nullable=False),
        sa.Column("upto_seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "session", "from_seq"),
    )
    if op.get_bind().dialect.name == "postgresql":
        for statement in tenant_policies("barred_sources"):
            op.execute(statement)
