"""The options of one agent that the runtime, the experiment and the command line share."""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

from annotated_types import Ge, Gt

from langgraph_takeover.handoff.names import ActionProtocol


class AgentOptions:
    """Names, types, bounds and defaults. Pydantic models inherit them; `--help` reads them without pydantic."""

    protocol: ActionProtocol = "text"
    """How the model calls tools: in the text of its reply, or by the provider's native tool calls."""
    max_steps: Annotated[int, Gt(0)] = 500
    """Maximum number of steps: model replies, each with its action."""
    max_tokens: Annotated[int | None, Gt(0)] = None
    """Prompt and completion tokens of all calls together."""
    max_seconds: Annotated[float, Gt(0)] = 4 * 3600.0
    """Working time of the thread: model calls and actions together."""
    window_tokens: Annotated[int | None, Ge(1000)] = None
    """Context window of the model; longer views are cut. Default: as in the model's profile."""
    condense: bool = False
    """When the conversation reaches 80 % of the context window, leave out its oldest observations."""
    command_timeout_s: Annotated[float, Gt(0)] = 120.0
    """Time limit of one shell command."""


def select_options(options_class: type, source: object) -> dict[str, Any]:
    """Return the values that `source` has for the options of `kind`."""
    return {name: getattr(source, name) for name in get_type_hints(options_class)}
