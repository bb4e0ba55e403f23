"""A digest names the version of the instructions that its model had."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; digests that are there were made without a model."""
    comment = "the version of the model's instructions; null where no model was asked"
    op.add_column("digests", sa.Column("prompt", sa.Text(), nullable=True, comment=comment))
