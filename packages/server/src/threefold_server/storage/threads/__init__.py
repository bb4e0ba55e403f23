"""Rows of threads: the checkpoints of graph runs, their values and their pending writes."""
