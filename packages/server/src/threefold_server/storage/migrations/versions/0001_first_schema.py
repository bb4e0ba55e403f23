"""The first schema, with row-level security from the start on Postgres."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import shared_reads, tenant_policies
from threefold_server.storage.engine.types import Key, Vector

revision = "0001"
down_revision = None

TENANTS = "owners sessions turns digests facts fact_sources passages postings tasks erased_turns receipts".split()
SHARED = {"facts": "shared", "passages": "pool = '{shared}'", "postings": "pool = '{shared}'"}


def upgrade() -> None:
    """Create every table, then bind the tenant tables to their owners."""

    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("user_grant", sa.Text(), nullable=False),
        sa.Column("user_value", sa.Text(), nullable=True),
        sa.Column("agent_grant", sa.Text(), nullable=False),
        sa.Column("agent_value", sa.Text(), nullable=False),
        sa.Column("ceiling", sa.SmallInteger(), nullable=False),
        sa.Column("may_share", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id"),
    )

    op.create_table(
        "erased_turns",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("turn", sa.LargeBinary(), nullable=False, comment="keyed hash of session and turn id"),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "turn"),
    )
    op.create_index("erased_turns_until", "erased_turns", ["until"], unique=False)

    op.create_table(
        "owners",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("erase_epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("facts_rev", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner"),
    )

    op.create_table(
        "postings",
        sa.Column("pool", Key(), nullable=False),
        sa.Column("term", sa.Text(), nullable=False),
        sa.Column("source", Key(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("owner", Key(), nullable=False),
        sa.Column("tf", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "term", "source", "seq", "part"),
        sqlite_with_rowid=False,
    )

    op.create_table(
        "receipts",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("receipt", Key(), nullable=False),
        sa.Column("selector", sa.Text(), nullable=False),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "receipt"),
    )

    op.create_table(
        "store",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )

    op.create_table(
        "facts",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("fact", Key(), nullable=False),
        sa.Column("root", Key(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("session", Key(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("visibility", sa.SmallInteger(), nullable=False),
        sa.Column("shared", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("writer", sa.Text(), nullable=True, comment="the writer's user name, shown with a shared fact"),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("trust", sa.Float(precision=53), nullable=False),
        sa.Column("metadata", sa.Text(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("event_at", sa.BigInteger(), nullable=False),
        sa.Column("valid_from", sa.BigInteger(), nullable=False),
        sa.Column("valid_to", sa.BigInteger(), nullable=True),
        sa.Column("superseded_by", Key(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("extended", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("access_count", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "fact"),
    )
    op.create_index("facts_by_access", "facts", ["owner", "access_count", "fact"], unique=False)
    op.create_index("facts_by_root", "facts", ["owner", "root"], unique=False)
    op.create_index("facts_by_time", "facts", ["owner", "event_at", "fact"], unique=False)
    op.create_index(
        "facts_expiring",
        "facts",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("expires_at IS NOT NULL"),
        sqlite_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_index(
        "facts_shared",
        "facts",
        ["event_at", "fact"],
        unique=False,
        postgresql_where=sa.text("shared"),
        sqlite_where=sa.text("shared"),
    )

    op.create_table(
        "passages",
        sa.Column("pool", Key(), nullable=False),
        sa.Column("source", Key(), nullable=False, comment="the session of a turn, or the fact itself"),
        sa.Column("seq", sa.Integer(), nullable=False, comment="the turn's; 0 for a fact"),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("owner", Key(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("session", Key(), nullable=True),
        sa.Column("visibility", sa.SmallInteger(), nullable=False),
        sa.Column("speaker", sa.Text(), nullable=True),
        sa.Column("length", sa.Integer(), nullable=False, comment="terms, for BM25"),
        sa.Column("event_at", sa.BigInteger(), nullable=False),
        sa.Column("trust", sa.Float(precision=53), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("embedder", sa.Text(), nullable=True, comment="the stamp of the vector; null while it is pending"),
        sa.Column("vector", Vector(), nullable=True),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pool", "source", "seq", "part"),
    )
    op.create_index("passages_by_owner", "passages", ["owner", "source"], unique=False)
    op.create_index("passages_length", "passages", ["pool", "length"], unique=False)
    op.create_index(
        "passages_pending",
        "passages",
        ["owner", "source", "seq"],
        unique=False,
        postgresql_where=sa.text("embedder IS NULL"),
        sqlite_where=sa.text("embedder IS NULL"),
    )

    op.create_table(
        "sessions",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("session", Key(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("last_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("turns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("digested_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("digest_version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "session"),
    )
    op.create_index("sessions_by_time", "sessions", ["owner", "updated_at", "session"], unique=False)

    op.create_table(
        "tasks",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("subject", Key(), nullable=False, comment="a session, or the owner for the vectors of its facts"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "upto", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="this work is done up to here"
        ),
        sa.Column("due_at", sa.BigInteger(), nullable=True, comment="null: nothing to do"),
        sa.Column("lease", Key(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("parked", sa.Text(), nullable=True, comment="the reason; null unless a person has to look"),
        sa.ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "subject", "kind"),
    )
    op.create_index(
        "tasks_due",
        "tasks",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("due_at IS NOT NULL"),
        sqlite_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index(
        "tasks_open",
        "tasks",
        ["owner", "kind"],
        unique=False,
        postgresql_where=sa.text("due_at IS NOT NULL OR parked IS NOT NULL"),
        sqlite_where=sa.text("due_at IS NOT NULL OR parked IS NOT NULL"),
    )

    op.create_table(
        "digests",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("session", Key(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("from_seq", sa.Integer(), nullable=False),
        sa.Column("upto_seq", sa.Integer(), nullable=False),
        sa.Column("covered_tokens", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "session", "version"),
    )

    op.create_table(
        "fact_sources",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("fact", Key(), nullable=False),
        sa.Column("session", Key(), nullable=False),
        sa.Column("from_seq", sa.Integer(), nullable=False),
        sa.Column("upto_seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "fact"], ["facts.owner", "facts.fact"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "fact", "session", "from_seq"),
    )
    op.create_index("fact_sources_by_session", "fact_sources", ["owner", "session"], unique=False)

    op.create_table(
        "turns",
        sa.Column("owner", Key(), nullable=False),
        sa.Column("session", Key(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=True, comment="the writer's id; null once erased"),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("turn_group", sa.Text(), nullable=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("visibility", sa.SmallInteger(), nullable=False),
        sa.Column("erased", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("utc_offset", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "session", "seq"),
        sa.UniqueConstraint("owner", "session", "turn_id", name="turns_once"),
    )
    op.create_index("turns_by_time", "turns", ["owner", "event_at", "session", "seq"], unique=False)
    if op.get_bind().dialect.name == "postgresql":
        for table in TENANTS:
            for statement in tenant_policies(table):
                op.execute(statement)
        for table, condition in SHARED.items():
            op.execute(shared_reads(table, condition))
