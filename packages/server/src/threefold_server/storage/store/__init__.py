"""Rows that belong to the store: keys, audit, spending, archives, transfers, work across owners."""
