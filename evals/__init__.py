"""The experiment: tasks, runs, their grading, statistics and reports, each command a module."""

from __future__ import annotations

if __name__ == "evals":  # the short name in a checkout
    from langgraph_takeover._checkout import alias

    alias(__name__)
