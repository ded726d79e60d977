"""Traces: the events of a run, and their conversion to other formats."""
