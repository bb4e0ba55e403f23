"""A place for Threefold as the native memory of Google ADK: empty as yet."""
