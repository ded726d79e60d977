"""The contract on every backend."""

from sandbox.contract import *  # noqa: F403
