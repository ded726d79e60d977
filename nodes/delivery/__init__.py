"""Nodes that deliver a handoff: offer, attempt, resend, escalate, roll back, block."""
