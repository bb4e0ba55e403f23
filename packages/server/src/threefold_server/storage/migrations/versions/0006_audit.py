"""The audit: who did what to whose memory, in a chain of hashes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import append_only_policies
from threefold_server.storage.engine.types import Key

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table; owners may only add to it."""
    op.create_table(
        "audit",
        sa.Column("owner", Key(), nullable=False, comment="whose memory; zero: the store's own affairs"),
        sa.Column("entry", Key(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", Key(), comment="the caller's owner key; null: nobody whom the service has verified"),
        sa.Column("agent", Key(), comment="a hash of the caller's agent"),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False, comment="the kind of selector, a level, a route; never an id"),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), comment="the place in the chain; null until a worker has given it one"),
        sa.Column("hash", sa.LargeBinary(), comment="of this entry and the hash before it"),
        sa.PrimaryKeyConstraint("owner", "entry"),
    )
    op.create_index("audit_by_seq", "audit", ["seq", "at"], unique=False)
    if op.get_bind().dialect.name == "postgresql":
        for statement in append_only_policies("audit"):
            op.execute(statement)
