"""The contract on every backend."""

from langgraph_takeover.sandbox.contract import *  # noqa: F403
