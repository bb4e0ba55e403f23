"""Threefold as the native memory of Pydantic AI."""
