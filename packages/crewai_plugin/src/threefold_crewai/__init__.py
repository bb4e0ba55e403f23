"""A place for Threefold as the native memory of CrewAI: empty as yet."""
