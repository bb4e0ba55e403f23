"""The Threefold memory service."""
