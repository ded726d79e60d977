"""Readers of agents that cannot continue a record here: their sessions are imported, and captured where they are found."""
