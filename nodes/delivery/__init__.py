"""Nodes that deliver a handoff: offer, attempt, resend, alert, escalate, roll back, block."""
