"""Continue a record with an external agent in a sandbox, through the bridge."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import cast

from langchain_core.language_models import BaseChatModel

from langgraph_takeover.graph.delivery.rollback import sandbox_spec_for
from langgraph_takeover.graph.home import open_home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.api import take_over
from langgraph_takeover.handoff.views.names import ViewName
from langgraph_takeover.nodes.context.external_agent import external_agent
from langgraph_takeover.nodes.context.progress import Progress
from langgraph_takeover.sandbox.interface import BackendName


def continue_in_sandbox(
    home: Path,
    record_id: str,
    *,
    agent: str,
    model: BaseChatModel,
    model_name: str,
    view: str = "structured",
    program: Path | None = None,
    backend: BackendName = "host",
    show: Callable[[str], None],
) -> Outcome:
    """Let an external agent continue a record in a sandbox of this host; `show` gets one line for each step.

    `model_name` is the name of the model in the agent's requests. Raises what `take_over` raises,
    UnknownAgentProgramError and AgentProgramError.
    """
    chosen = external_agent(agent, program=program, model_name=model_name)
    if chosen.program.warning:
        show(chosen.program.warning)
    with open_home(home) as opened:
        spec = sandbox_spec_for(opened.records.load(record_id), backend)
        return take_over(
            opened,
            f"{record_id}.{agent}-{secrets.token_hex(3)}",
            record_id=record_id,
            view=cast(ViewName, view),
            model=model,
            sandbox=spec,
            agent=chosen,
            protocol="native",
            on_progress=lambda progress: show(describe_progress(progress)),
        )


def describe_progress(progress: Progress) -> str:
    """Describe one progress event in a line."""
    parts = [
        f"step {progress['step']:<4}{progress['event']}",
        progress.get("tool", ""),
        progress.get("kind", ""),
    ]
    text = " ".join(progress.get("text", "").split())
    return "  ".join([*(each for each in parts if each), text[:160]]).rstrip()
