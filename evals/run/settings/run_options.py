"""The options of the main command: names, types, bounds and defaults, without slow imports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from langgraph_takeover.nodes.context.agent_options import AgentOptions

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
    attempts: Annotated[int, Ge(1)] = 1
    """Of each takeover; `choose` says which one is kept."""
    choose: Literal["tests-of-the-predecessor"] | None = None
    base_url: str | None = None
    max_reply_tokens: Annotated[int | None, Ge(1)] = None
    model_timeout_s: Annotated[float, Gt(0)] = 600.0
    read_timeout_s: Annotated[float, Gt(0)] = 300.0
    notes_timeout_s: Annotated[float, Gt(0)] = NOTES_TIMEOUT_S
    allow_unisolated: bool = False
    grading_network: bool = False


class CommandOptions(RunOptions):
    """All options, including those that the configuration stores differently or not at all."""

    view: str = "structured"
    model: str = "builtin:oracle"
    models: Path | None = None
    predecessor: list[str] | None = None
    successor: list[str] | None = None
    agent_program: list[str] | None = None
    tasks: str = "bundled"
    task_ids: str | None = None
    points: str = "all"
    quota: list[str] | None = None
    sandbox: Literal["auto", "docker", "host", "process"] = "auto"
    records_of: Path | None = None
    stages: str = "all"
    workers: Annotated[int, Ge(1)] = 1
    executor: str = "local"
    address: str | None = None
    artifact_store: str | None = None
    node_dir: str | None = None
    journal: str | None = None
    out: Path | None = None
    resume: bool = False
    report: bool = True
    dry_run: bool = False
    list_tasks: bool = False
    check_tasks: bool | None = None
