"""The extra `evals`: the packages that the experiment needs beyond the base installation."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from langgraph_takeover.evals.cli.runner import USAGE

MODULES = ("jinja2", "markupsafe", "matplotlib", "numpy", "pyarrow", "scipy", "swebench")
"""The modules that the packages of the extra provide."""


def require_experiment() -> None:
    """Exit with one line unless the packages of the experiment are installed."""
    if any(find_spec(name) is None for name in MODULES):
        print(
            "error: the experiment is not installed (pip install 'langgraph-takeover[evals]')",
            file=sys.stderr,
        )
        raise SystemExit(USAGE)
