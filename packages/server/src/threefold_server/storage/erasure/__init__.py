"""Erasure: what a forget selects, deletes and proves, and what a purge removes from the files."""
