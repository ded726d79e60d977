"""The contract on every backend."""

from langgraph_takeover.testing.sandboxes import *  # noqa: F403
