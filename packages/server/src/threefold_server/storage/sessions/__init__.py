"""Rows of sessions: turns, digests, and the background tasks that a session has."""
