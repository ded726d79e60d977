"""The state machines: the agent, its takeover, and how both are run."""

from __future__ import annotations
