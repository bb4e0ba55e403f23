"""The tables of beliefs and of the experiments that judge them. `tables.py` lists them with all others."""

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
    text,
)

from threefold_server.storage.engine.metadata import metadata
from threefold_server.storage.engine.types import Key

beliefs = Table(
    "beliefs",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("belief", Key, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("session", Key),
    Column("session_id", Text),
    Column("visibility", SmallInteger, nullable=False),
    Column("statement", Text, nullable=False),
    Column("falsification", Text),
    Column("confidence", Float(53), nullable=False),
    Column("assumption", Boolean, nullable=False),
    Column("context", Text, nullable=False, comment="JSON: names and values"),
    Column("verdict", Text, nullable=False, comment="of the last experiment that was closed"),
    Column("verdict_trust", Float(53), comment="of the verdict; null while it is pending"),
    Column("supported", Boolean, nullable=False, comment="derived from `belief_supports`"),
    Column("origin", Text, nullable=False),
    Column("trust", Float(53), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("valid_from", BigInteger, nullable=False),
    Column("valid_to", BigInteger),
    ForeignKeyConstraint(["owner"], ["owners.owner"], ondelete="CASCADE"),
    Index("beliefs_by_time", "owner", "created_at", "belief"),
    Index("beliefs_by_verdict", "owner", "verdict"),
)

belief_supports = Table(
    "belief_supports",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("belief", Key, primary_key=True),
    Column("alternative", SmallInteger, primary_key=True, comment="the number of the support set"),
    Column("supporter", Key, primary_key=True, comment="a belief; stays after it has been forgotten"),
    ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
    # With `belief`, since SQLite prefers the primary key, which covers the query: 10,000 dependents took 14 s.
    Index("belief_supports_by_supporter", "owner", "supporter", "belief"),
)

belief_events = Table(
    "belief_events",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("belief", Key, primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("agent", Text, comment="the agent that caused the change"),
    Column("cause", Text, nullable=False),
    Column("cause_id", Key, comment="the experiment, or the belief where a cascade started"),
    Column("statement", Text, nullable=False),
    Column("falsification", Text),
    Column("confidence", Float(53), nullable=False),
    Column("verdict", Text, nullable=False),
    Column("supported", Boolean, nullable=False),
    ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
)

experiments = Table(
    "experiments",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("experiment", Key, primary_key=True),
    Column("belief", Key, nullable=False),
    Column("n", Integer, nullable=False, comment="its number among the experiments of the belief"),
    Column("agent", Text, nullable=False),
    Column("plan", Text),
    Column("reason", Text, comment="why a falsified belief is tried again"),
    Column("changed", Text, comment="what is different from the earlier attempts"),
    Column("verdict", Text, comment="null while it is open"),
    Column("justification", Text),
    Column("evidence", Text, nullable=False, server_default=text("'[]'")),
    Column("trust", Float(53), comment="of the verdict"),
    Column("created_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
    Index("experiments_by_belief", "owner", "belief", "n", unique=True),
)

clearances = Table(
    "clearances",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("clearance", LargeBinary, primary_key=True, comment="the hash of its text"),
    Column("belief", Key, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["owner", "belief"], ["beliefs.owner", "beliefs.belief"], ondelete="CASCADE"),
    Index("clearances_by_belief", "owner", "belief"),
    Index("clearances_expiring", "expires_at"),
)
