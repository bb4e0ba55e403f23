"""Rows of sessions: turns, digests, and the background tasks of a session."""
