"""Sessions: listing, digests, and the state of consolidation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from threefold.contract.common import Response, Timestamp


class Session(Response):
    """One session of the caller's agent and user."""

    session_id: str
    agent: str
    turns: int
    tokens: int
    last_seq: int
    revision: int
    created_at: Timestamp
    updated_at: Timestamp
    state: str | None = Field(default=None, description="Returned only with `state=true`.")


class SessionPage(Response):
    """One page of sessions, the most recently written first."""

    sessions: list[Session]
    next_cursor: str | None = None


class SessionState(Response):
    """The state that a framework keeps beside the turns of a session."""

    state: str | None = Field(default=None, description="JSON text, byte for byte.")
    revision: int = Field(description="Pass it as `expected_revision` of the next write.")
    last_seq: int
    updated_at: Timestamp


class Digest(Response):
    """One version of a session's digest and the turns it covers, inclusive."""

    version: int
    text: str
    from_seq: int
    upto_seq: int
    trust: float | None = Field(default=None, description="The least trust of the turns that it was made of.")
    parent: int | None = Field(default=None, description="The version that this one continues.")
    model: str
    prompt: str | None = Field(
        default=None, description="Version of the model's instructions; null for the built-in digest."
    )
    tokens: int
    created_at: Timestamp


class DigestPage(Response):
    """One page of the kept versions, newest first."""

    digests: list[Digest]
    next_cursor: str | None = None


class SessionStatus(Response):
    """How far consolidation has come. Nothing is pending once every watermark in use equals `last_seq`."""

    last_seq: int
    indexed_upto: int
    digested_upto: int
    extracted_upto: int
    state: Literal["idle", "pending", "running", "parked"]
    reason: str | None = None
