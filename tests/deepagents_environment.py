"""The environment of deepagents, whose requirements exclude some of this project's pinned packages."""

from __future__ import annotations

import os
from pathlib import Path

from .conftest import skip_missing

DIRECTORY = Path(__file__).parents[1] / ".agents" / "deepagents"
VARIABLE = "TAKEOVER_TEST_DEEPAGENTS"
"""Environment variable with another directory that `make deepagents` made."""


def find_deepagents() -> Path:
    """Return the directory of the environment; skips the test if it is missing."""
    directory = Path(os.environ.get(VARIABLE) or DIRECTORY)
    if not (directory / "bin" / "python").exists():
        skip_missing("deepagents is not installed (make deepagents)")
    return directory


def find_deepagents_python() -> Path:
    """Return the Python of the environment; skips the test if it is missing."""
    return find_deepagents() / "bin" / "python"
