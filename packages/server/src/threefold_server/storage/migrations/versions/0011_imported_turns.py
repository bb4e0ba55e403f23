"""A turn tells whether it came from an archive, so that it is trusted no further than an import."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0009"


def upgrade() -> None:
    """Add the column. Turns that are there already count as written by their callers."""
    comment = "from an archive, unverified"
    default = sa.text("false")
    op.add_column("turns", sa.Column("imported", sa.Boolean(), nullable=False, server_default=default, comment=comment))
