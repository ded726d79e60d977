"""The node that delegates tasks to child agents."""
