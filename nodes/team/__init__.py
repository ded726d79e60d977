"""Nodes of a team of agents that take turns."""
