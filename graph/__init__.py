"""The state machines and the functions that run them.

`from graph import …` offers the public names of `langgraph_takeover`.
"""

from __future__ import annotations

from typing import Any

if __name__ == "graph":  # the short name in a checkout
    from langgraph_takeover._checkout import alias

    alias(__name__)


def __getattr__(name: str) -> Any:
    import langgraph_takeover

    if name in langgraph_takeover.__all__:
        return getattr(langgraph_takeover, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    import langgraph_takeover

    return sorted({*globals(), *langgraph_takeover.__all__})
