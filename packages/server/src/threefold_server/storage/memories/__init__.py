"""Rows of long-term memory: facts and their versions, items, the search index, and searches over them."""
