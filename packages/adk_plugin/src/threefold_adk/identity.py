"""Whose memory a run of ADK uses: its user's, with its app as the agent, exactly as the runner was told."""

from __future__ import annotations

from google.adk.sessions import Session

from threefold import AsyncMemoryClient, AsyncMemorySession, Policy


def session_of(client: AsyncMemoryClient, session: Session, policy: Policy) -> AsyncMemorySession:
    """A session of ADK as memory's. Ids that memory cannot hold are refused."""
    return AsyncMemorySession(client, session.id, user=session.user_id, agent=session.app_name, policy=policy)
