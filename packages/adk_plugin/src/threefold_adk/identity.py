"""The identity of a run of ADK: its user is the user, its app is the agent."""

from __future__ import annotations

from google.adk.sessions import Session

from threefold import AsyncMemoryClient, AsyncMemorySession, Policy


def session_of(client: AsyncMemoryClient, session: Session, policy: Policy) -> AsyncMemorySession:
    """Return the memory session of a session of ADK. Raise InvalidRequest for ids that are not valid."""
    return AsyncMemorySession(client, session.id, user=session.user_id, agent=session.app_name, policy=policy)
