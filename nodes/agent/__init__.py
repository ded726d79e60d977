"""Nodes of a single agent: begin, think, interrupt, take over, finish."""
