"""Threefold as the native memory of LangGraph."""
