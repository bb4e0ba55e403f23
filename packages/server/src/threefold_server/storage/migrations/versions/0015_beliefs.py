"""Beliefs: what they rest on, their history, experiments, and clearances of the gate."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import tenant_policies
from threefold_server.storage.engine.types import Key

revision = "0015"
down_revision = "0012"

TABLES = ("beliefs", "belief_supports", "belief_events", "experiments", "clearances")


def upgrade() -> None:
    """Create the tables and bind them to their owners."""
    op.create_table(
        "beliefs",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("belief", Key(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("session", Key(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("visibility", sa.SmallInteger(), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("falsification", sa.Text(), nullable=True),
        sa.Column("confidence", sa.Float(53), nullable=False),
        sa.Column("assumption", sa.Boolean(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False, comment="JSON: names and values"),
        sa.Column("verdict", sa.Text(), nullable=False, comment="of the last experiment that was closed"),
        sa.Column(
            "verdict_trust",
            sa.Float(53),
            nullable=True,
            comment="of the verdict; null while it is pending",
        ),
        sa.Column("supported", sa.Boolean(), nullable=False, comment="derived from `belief_supports`"),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("trust", sa.Float(53), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("valid_from", sa.BigInteger(), nullable=False),
        sa.Column("valid_to", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "belief"),
    )
    op.create_index("beliefs_by_time", "beliefs", ["owner", "created_at", "belief"], unique=False)
    op.create_index("beliefs_by_verdict", "beliefs", ["owner", "verdict"], unique=False)
    op.create_table(
        "belief_supports",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("belief", Key(), nullable=False),
        sa.Column("alternative", sa.SmallInteger(), nullable=False, comment="the number of the support set"),
        sa.Column("supporter", Key(), nullable=False, comment="a belief; stays after it has been forgotten"),
        sa.ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "belief", "alternative", "supporter"),
    )
    op.create_index("belief_supports_by_supporter", "belief_supports", ["owner", "supporter", "belief"], unique=False)
    op.create_table(
        "belief_events",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("belief", Key(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=True, comment="the agent that caused the change"),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("cause_id", Key(), nullable=True, comment="the experiment, or the belief where a cascade started"),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("falsification", sa.Text(), nullable=True),
        sa.Column("confidence", sa.Float(53), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("supported", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "belief", "revision"),
    )

    op.create_table(
        "experiments",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("experiment", Key(), nullable=False),
        sa.Column("belief", Key(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False, comment="its number among the experiments of the belief"),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True, comment="why a falsified belief is tried again"),
        sa.Column("changed", sa.Text(), nullable=True, comment="what is different from the earlier attempts"),
        sa.Column("verdict", sa.Text(), nullable=True, comment="null while it is open"),
        sa.Column("justification", sa.Text(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=False, server_default=sa.text("'[]'")),
        sa.Column("trust", sa.Float(53), nullable=True, comment="of the verdict"),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "experiment"),
    )
    op.create_index("experiments_by_belief", "experiments", ["owner", "belief", "n"], unique=True)
    op.create_table(
        "clearances",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("clearance", sa.LargeBinary(), nullable=False, comment="the hash of its text"),
        sa.Column("belief", Key(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "clearance"),
    )
    op.create_index("clearances_by_belief", "clearances", ["owner", "belief"], unique=False)
    op.create_index("clearances_expiring", "clearances", ["expires_at"], unique=False)
    if op.get_bind().dialect.name == "postgresql":
        for statement in (statement for table in TABLES for statement in tenant_policies(table)):
            op.execute(statement)
