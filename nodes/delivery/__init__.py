"""Nodes that deliver a handoff: offer, attempt, escalate, roll back, block."""
