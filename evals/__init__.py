"""The experiment: tasks, runs, their grading, statistics and reports, each command a module."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

for _name in ("sandbox", "handoff", "nodes", "graph"):
    _ours, _found = Path(__file__).parents[1] / _name / "__init__.py", find_spec(_name)
    if _found is None or _found.origin is None or not _ours.samefile(_found.origin):
        raise ImportError(
            f"langgraph-takeover needs its own package {_name!r}, {_ours.parent}, but Python finds "
            f"{(_found and _found.origin) or 'none'}; rename that one, or take it off the path",
            name=__name__,
        )
