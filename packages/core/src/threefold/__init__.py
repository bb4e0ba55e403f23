"""Threefold: one memory for every agent framework."""
