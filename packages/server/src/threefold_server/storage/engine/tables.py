"""The schema of both databases. Times are microseconds since 1970 in UTC; keys have 128 bits.

The primary key of every tenant table starts with `owner` (or `pool`): unique checks and foreign keys ignore row-level
security, so otherwise a key of one tenant could block the same key of another.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from threefold_server.storage.engine.belief_tables import (
    belief_events as belief_events,
)
from threefold_server.storage.engine.belief_tables import (
    belief_supports as belief_supports,
)
from threefold_server.storage.engine.belief_tables import (
    beliefs as beliefs,
)
from threefold_server.storage.engine.belief_tables import (
    clearances as clearances,
)
from threefold_server.storage.engine.belief_tables import (
    experiments as experiments,
)
from threefold_server.storage.engine.metadata import metadata as metadata
from threefold_server.storage.engine.types import ByteOrdered, Key, Vector

owners = Table(
    "owners",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("erase_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("facts_rev", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", BigInteger, nullable=False),
    Column("index_rev", BigInteger, nullable=False, server_default=text("0"), comment="raised by each change"),
    Column("index_cut", BigInteger, nullable=False, server_default=text("0"), comment="the last that removed passages"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("session", Key, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("last_seq", Integer, nullable=False, server_default=text("0")),
    Column("turns", Integer, nullable=False, server_default=text("0")),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("revision", BigInteger, nullable=False, server_default=text("0")),
    Column("state", Text),
    Column("digested_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("digest_version", Integer, nullable=False, server_default=text("0")),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
    Index("sessions_by_time", "owner", "updated_at", "session"),
)

turns = Table(
    "turns",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("session", Key, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("turn_id", Text, comment="the writer's id; null once erased"),
    Column("role", Text, nullable=False),
    Column("name", Text),
    Column("kind", Text, nullable=False),
    Column("turn_group", Text),
    Column("content", Text, nullable=False),
    Column("payload", Text),
    Column("tokens", Integer, nullable=False),
    Column("visibility", SmallInteger, nullable=False),
    Column("erased", Boolean, nullable=False, server_default=text("false")),
    Column("imported", Boolean, nullable=False, server_default=text("false"), comment="from an archive, unverified"),
    Column("created_at", BigInteger, nullable=False),
    Column("utc_offset", SmallInteger, nullable=False, server_default=text("0")),
    Column("event_at", BigInteger, nullable=False),
    Column("noted_by", Text, comment="who reported it, if not its speaker"),
    UniqueConstraint("owner", "session", "turn_id", name="turns_once"),
    ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
    Index("turns_by_time", "owner", "event_at", "session", "seq"),
)

digests = Table(
    "digests",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("session", Key, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("text", Text, nullable=False),
    Column("from_seq", Integer, nullable=False),
    Column("upto_seq", Integer, nullable=False),
    Column("covered_tokens", BigInteger, nullable=False),
    Column("parent", Integer),
    Column("model", Text, nullable=False),
    Column("prompt", Text, comment="the version of the model's instructions; null where no model was asked"),
    Column("tokens", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("trust", Float(53), nullable=False, server_default=text("0"), comment="the least of its turns"),
    ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
)

facts = Table(
    "facts",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("fact", Key, primary_key=True),
    Column("root", Key, nullable=False),
    Column("agent", Text, nullable=False),
    Column("session", Key),
    Column("session_id", Text),
    Column("visibility", SmallInteger, nullable=False),
    Column("shared", Boolean, nullable=False, server_default=text("false")),
    Column("writer", Text, comment="the writer's user name, shown with a shared fact"),
    Column("text", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("extracted_by", Text, comment="the model; null if somebody saved it"),
    Column("trust", Float(53), nullable=False),
    Column("metadata", Text, nullable=False, server_default=text("'{}'")),
    Column("created_at", BigInteger, nullable=False),
    Column("event_at", BigInteger, nullable=False),
    Column("valid_from", BigInteger, nullable=False),
    Column("valid_to", BigInteger),
    Column("superseded_by", Key),
    Column("expires_at", BigInteger),
    Column("extended", Boolean, nullable=False, server_default=text("false")),
    Column("pinned", Boolean, nullable=False, server_default=text("false")),
    Column("access_count", BigInteger, nullable=False, server_default=text("0")),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
    Index("facts_by_root", "owner", "root"),
    Index("facts_by_time", "owner", "event_at", "fact"),
    Index("facts_by_access", "owner", "access_count", "fact"),
    Index("facts_shared", "event_at", "fact", postgresql_where=text("shared"), sqlite_where=text("shared")),
    Index(
        "facts_expiring",
        "expires_at",
        postgresql_where=text("expires_at IS NOT NULL"),
        sqlite_where=text("expires_at IS NOT NULL"),
    ),
)

fact_sources = Table(
    "fact_sources",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("fact", Key, primary_key=True),
    Column("session", Key, primary_key=True),
    Column("from_seq", Integer, primary_key=True),
    Column("upto_seq", Integer, nullable=False),
    Column(
        "support",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="rows of one number stand or fall together",
    ),
    ForeignKeyConstraint(["owner", "fact"], ["facts.owner", "facts.fact"], ondelete="CASCADE"),
    ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
    Index("fact_sources_by_session", "owner", "session"),
)

items = Table(
    "items",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("item", Key, primary_key=True, comment="of pool, path and key"),
    Column("pool", Key, nullable=False, comment="of one user and agent, or of one agent for all its users"),
    Column("agent", Text, nullable=False),
    Column("for_all", Boolean, nullable=False),
    Column("path", LargeBinary, nullable=False, comment="the namespace: each label in UTF-8, ended by a zero byte"),
    Column("key", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("fields", Text, nullable=False, comment="the paths that are found by meaning"),
    Column("ttl", Float(53), comment="minutes; null: for ever"),
    Column("expires_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
    Index("items_by_path", "owner", "pool", "path"),
    Index("items_for_all", "agent", postgresql_where=text("for_all"), sqlite_where=text("for_all")),
    Index(
        "items_expiring",
        "expires_at",
        postgresql_where=text("expires_at IS NOT NULL"),
        sqlite_where=text("expires_at IS NOT NULL"),
    ),
)

barred_sources = Table(
    "barred_sources",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("session", Key, primary_key=True),
    Column("from_seq", Integer, primary_key=True),
    Column("upto_seq", Integer, nullable=False),
    ForeignKeyConstraint(["owner", "session"], ["sessions.owner", "sessions.session"], ondelete="CASCADE"),
)

passages = Table(
    "passages",
    metadata,
    Column("pool", Key, primary_key=True),
    Column("source", Key, primary_key=True, comment="the session of a turn, or the fact or item itself"),
    Column("seq", Integer, primary_key=True, comment="the turn's; 0 for a fact, -1 for an item"),
    Column("part", SmallInteger, primary_key=True),
    Column("owner", Key, nullable=False),
    Column("agent", Text, nullable=False),
    Column("session", Key),
    Column("visibility", SmallInteger, nullable=False),
    Column("speaker", Text),
    Column("length", Integer, nullable=False, comment="terms, for BM25"),
    Column("event_at", BigInteger, nullable=False),
    Column("trust", Float(53), nullable=False),
    Column("expires_at", BigInteger),
    Column("embedder", Text, comment="the stamp of the vector; null while it is pending"),
    Column("vector", Vector),
    Column("rev", BigInteger, nullable=False, server_default=text("0"), comment="the owner's index_rev at its change"),
    Column("terms", Text, comment="the postings of the passage: term and count by turns, between spaces"),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
    Index("passages_by_owner", "owner", "source"),
    Index("passages_by_rev", "pool", "rev"),
    Index("passages_length", "pool", "length"),
    Index(
        "passages_pending",
        "owner",
        "source",
        "seq",
        postgresql_where=text("embedder IS NULL"),
        sqlite_where=text("embedder IS NULL"),
    ),
)

postings = Table(
    "postings",
    metadata,
    Column("pool", Key, primary_key=True),
    Column("term", Text, primary_key=True),
    Column("source", Key, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("part", SmallInteger, primary_key=True),
    Column("owner", Key, nullable=False),
    Column("tf", SmallInteger, nullable=False),
    sqlite_with_rowid=False,
)

tasks = Table(
    "tasks",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("subject", Key, primary_key=True, comment="a session, or the owner for the vectors of its facts and items"),
    Column("kind", Text, primary_key=True),
    Column("upto", Integer, nullable=False, server_default=text("0"), comment="this work is done up to here"),
    Column("due_at", BigInteger, comment="null: nothing to do"),
    Column("lease", Key),
    Column("lease_until", BigInteger),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("parked", Text, comment="the reason; null unless a person has to look"),
    Column("failure", Text, comment="why the last attempt failed; null once there is progress"),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
    Index("tasks_due", "due_at", postgresql_where=text("due_at IS NOT NULL"), sqlite_where=text("due_at IS NOT NULL")),
    Index(
        "tasks_open",
        "owner",
        "kind",
        postgresql_where=text("due_at IS NOT NULL OR parked IS NOT NULL"),
        sqlite_where=text("due_at IS NOT NULL OR parked IS NOT NULL"),
    ),
)

threads = Table(
    "threads",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("thread", Key, primary_key=True, comment="the key of the session of the same name, or of the agent's own"),
    Column("agent", Text, nullable=False),
    Column("thread_id", Text, nullable=False),
    Column("for_all", Boolean, nullable=False, server_default=text("false"), comment="the agent's, for its users"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("thread", Key, primary_key=True),
    Column("place", Key, primary_key=True, comment="the key of the namespace"),
    Column("checkpoint_id", ByteOrdered, primary_key=True),
    Column("ns", Text, nullable=False),
    Column("parent_id", Text),
    Column("type", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("versions", Text, nullable=False, comment="JSON: the version of every channel"),
    Column("run_id", Text, comment="of the metadata"),
    Column("created_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["owner", "thread"], ["threads.owner", "threads.thread"], ondelete="CASCADE"),
    Index("checkpoints_by_id", "owner", "thread", "checkpoint_id"),
    Index("checkpoints_by_run", "owner", "run_id"),
)

checkpoint_blobs = Table(
    "checkpoint_blobs",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("thread", Key, primary_key=True),
    Column("place", Key, primary_key=True),
    Column("blob", Key, primary_key=True, comment="the key of channel and version"),
    Column("channel", Text, nullable=False),
    Column("version", Text, nullable=False, comment="JSON, as it may be text or a number"),
    Column("type", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    ForeignKeyConstraint(["owner", "thread"], ["threads.owner", "threads.thread"], ondelete="CASCADE"),
)

checkpoint_writes = Table(
    "checkpoint_writes",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("thread", Key, primary_key=True),
    Column("place", Key, primary_key=True),
    Column("checkpoint_id", Text, primary_key=True, comment="of a checkpoint that may come later"),
    Column("task_id", Text, primary_key=True),
    Column("idx", Integer, primary_key=True),
    Column("task_path", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    ForeignKeyConstraint(["owner", "thread"], ["threads.owner", "threads.thread"], ondelete="CASCADE"),
)

model_use = Table(
    "model_use",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("day", Integer, primary_key=True, comment="days since 1970, in UTC"),
    Column("calls", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
    Index("model_use_by_day", "day"),
)

erased_turns = Table(
    "erased_turns",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("turn", LargeBinary, primary_key=True, comment="keyed hash of session and turn id"),
    Column("until", BigInteger, nullable=False),
    Index("erased_turns_until", "until"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("owner", Key, primary_key=True, comment="a pseudonym"),
    Column("receipt", Key, primary_key=True),
    Column("selector", Text, nullable=False),
    Column("counts", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("owner", Key, primary_key=True, comment="whose memory, by a pseudonym; zero: the store's own affairs"),
    Column("entry", Key, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", Key, comment="the caller, by a pseudonym; null: nobody whom the service has verified"),
    Column("agent", Key, comment="a pseudonym of the caller's agent"),
    Column("admin", Boolean, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False, comment="the kind of selector, a level, a route; never an id"),
    Column("counts", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("seq", BigInteger, comment="the place in the chain; null until a worker has given it one"),
    Column("hash", LargeBinary, comment="of this entry and the hash before it"),
    Index("audit_by_seq", "seq", "at"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("label", Text, nullable=False),
    Column("user_grant", Text, nullable=False),
    Column("user_value", Text),
    Column("agent_grant", Text, nullable=False),
    Column("agent_value", Text, nullable=False),
    Column("ceiling", SmallInteger, nullable=False),
    Column("may_share", Boolean, nullable=False),
    Column("admin", Boolean, nullable=False, server_default=text("false")),
    Column("policy", Text, nullable=False, server_default=text("'{}'")),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("old_secret_hash", LargeBinary),  # also accepted until `old_secret_until`
    Column("old_secret_until", BigInteger),
)

store = Table(
    "store",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

TENANT_TABLES = (
    owners,
    sessions,
    turns,
    digests,
    facts,
    fact_sources,
    items,
    barred_sources,
    beliefs,
    belief_supports,
    belief_events,
    experiments,
    clearances,
    passages,
    postings,
    tasks,
    threads,
    checkpoints,
    checkpoint_blobs,
    checkpoint_writes,
    model_use,
    erased_turns,
    receipts,
    audit,
)
"""The tables under row-level security on Postgres: only transactions of its owner see a row, and only "system" those of
`audit`."""
