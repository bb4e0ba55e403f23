"""Threefold as the native memory of Google ADK."""
