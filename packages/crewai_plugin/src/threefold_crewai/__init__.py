"""Threefold as the native memory of CrewAI."""
