"""The options that a run's configuration stores, without slow imports."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt

from langgraph_takeover.nodes.context.options import AgentOptions

NOTES_TIMEOUT_S = 1800.0
OPTION_FIELDS = {
    "view": ("views",),
    "model": ("predecessors", "successors"),
    "predecessor": ("predecessors",),
    "successor": ("successors",),
    "quota": ("quotas",),
    "agent_program": ("agent_programs",),
}
"""The configuration fields of options with another name."""


class RunOptions(AgentOptions):
    """The options that a run's configuration stores unchanged: those of its agents and of the experiment."""

    notes_model: str | None = None
    """None: the predecessor's model if it is an LLM, else the first successor's."""
    limit: Annotated[int | None, Ge(1)] = None
    study: str | None = None
    shard: str | None = None
    """The part of the tasks that this run covers, as `evals.run.settings.shards.read_shard` reads it."""
    prompt: Literal["short", "paper"] = "short"
    max_points: Annotated[int | None, Ge(1)] = None
    """Per predecessor."""
    repeats: Annotated[int, Ge(1)] = 1
    base_url: str | None = None
    max_reply_tokens: Annotated[int | None, Ge(1)] = None
    model_timeout_s: Annotated[float, Gt(0)] = 600.0
    read_timeout_s: Annotated[float, Gt(0)] = 300.0
    notes_timeout_s: Annotated[float, Gt(0)] = NOTES_TIMEOUT_S
    allow_unisolated: bool = False
    grading_network: bool = False
