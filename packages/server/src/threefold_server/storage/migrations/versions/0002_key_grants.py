"""Keys may administer the store, carry a policy of their own, tell their last use, and be rotated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; keys that are there keep their grants and administer nothing."""
    op.add_column("api_keys", sa.Column("admin", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("api_keys", sa.Column("policy", sa.Text(), server_default=sa.text("'{}'"), nullable=False))
    op.add_column("api_keys", sa.Column("last_used_at", sa.BigInteger(), nullable=True))
    op.add_column("api_keys", sa.Column("old_secret_hash", sa.LargeBinary(), nullable=True))
    op.add_column("api_keys", sa.Column("old_secret_until", sa.BigInteger(), nullable=True))
