"""A migration after the newest one, so that every store in a test is one migration behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import sqlalchemy as sa
from alembic import op
from alembic.script import ScriptDirectory

from threefold_server.storage import migrations

revision = "after"
down_revision = ScriptDirectory(str(Path(migrations.__path__[0]))).get_current_head()


def upgrade() -> None:
    """Create a table and write to standard output."""
    sys.stdout.write("noise from a migration\n")
    os.write(1, b"noise from the driver of a migration\n")
    op.create_table("after", sa.Column("id", sa.Integer, primary_key=True))
