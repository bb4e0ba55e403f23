"""Rows of threads: checkpoints of graphs, their values and writes."""
