"""The name that a command line goes by in its usage text and in the commands that it suggests."""

from __future__ import annotations

import sys

_PACKAGE = "langgraph_takeover"


def program_name(script: str, module: str) -> str:
    """Return `python -m MODULE` if the program was started so, else the name of the installed script.

    `module` is the short name, such as `evals.takeover`.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    started_as = spec.name.removesuffix(".__main__") if spec else ""
    return f"python -m {started_as}" if started_as in (module, f"{_PACKAGE}.{module}") else script
