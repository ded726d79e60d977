"""Recorded runs of any agent: calls with results, sessions, and what their commands changed."""
