"""Checkpointed handoffs between coding agents."""
