"""What a process needs to keep the search index of an owner in memory: revisions, and the terms of each passage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

TERMS = """
    SELECT pool, source, seq, part, {joined} AS terms FROM postings GROUP BY pool, source, seq, part
"""
FILL = """
    UPDATE passages SET terms = found.terms FROM found
    WHERE passages.pool = found.pool AND passages.source = found.source
    AND passages.seq = found.seq AND passages.part = found.part
"""


def upgrade() -> None:
    """Add the columns. The terms of passages that are there already come from their postings."""
    zero = sa.text("0")
    raised, taken = "raised by each change", "the last that removed passages"
    op.add_column(
        "owners", sa.Column("index_rev", sa.BigInteger(), nullable=False, server_default=zero, comment=raised)
    )
    op.add_column("owners", sa.Column("index_cut", sa.BigInteger(), nullable=False, server_default=zero, comment=taken))
    revised = "the owner's index_rev at its change"
    op.add_column("passages", sa.Column("rev", sa.BigInteger(), nullable=False, server_default=zero, comment=revised))
    listed = "the postings of the passage: term and count by turns, between spaces"
    op.add_column("passages", sa.Column("terms", sa.Text(), nullable=True, comment=listed))
    sqlite = op.get_bind().dialect.name == "sqlite"
    pair = "term || ' ' || tf"
    joined = f"group_concat({pair}, ' ')" if sqlite else f"string_agg({pair}, ' ')"
    op.execute(f"CREATE TEMPORARY TABLE found AS {TERMS.format(joined=joined)}")
    op.execute("CREATE INDEX found_by_key ON found (pool, source, seq, part)")
    op.execute(FILL)
    op.execute("DROP TABLE found")
    op.create_index("passages_by_rev", "passages", ["pool", "rev"])
