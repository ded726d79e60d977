"""What a run has come to."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from langgraph_takeover.handoff.records.record import TaskBrief
from langgraph_takeover.nodes.session.session import Session, SnapshotNotFoundError
from langgraph_takeover.nodes.state import NO_SPENDING, AgentState, StopReason
from langgraph_takeover.sandbox.interface import Frozen
from langgraph_takeover.sandbox.repository.patches import RepositoryError, patch_since


class Outcome(Frozen):
    """What a run has come to: its end, a wait for a person, or a stop from outside."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    thread: str
    stop_reason: StopReason | None = None
    """None while the run can simply go on: it waits, or was stopped from outside."""
    question: dict[str, Any] | None = None
    """What a person is asked under the policy `review`; `resume` takes the answer."""
    records: tuple[str, ...] = ()
    steps: int = 0
    events: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    patch: str = ""
    """What differs from the task's base commit."""
    problem: str = ""
    """Why there is no patch."""
    predecessor: Outcome | None = None
    """Under the policy `takeover`: the run that was handed over to this one."""
    state: AgentState = Field(repr=False)


def build_outcome(session: Session, state: AgentState, interrupts: Any = ()) -> Outcome:
    """What a thread has come to in that state, with its machine kept and compared with its base."""
    session.save_current_state()
    patch, trouble = _compute_patch(session, state)
    return Outcome(
        thread=session.thread,
        stop_reason=state.get("stop_reason"),
        question=interrupts[0].value if interrupts else None,
        records=tuple(state.get("records", ())),
        steps=state.get("steps", 0),
        events=len(state.get("events", ())),
        **state.get("spent", NO_SPENDING),
        patch=patch,
        problem=trouble,
        state=state,
    )


def _compute_patch(session: Session, state: AgentState) -> tuple[str, str]:
    if "machine" not in state:
        return "", "no patch: the run has not begun"
    try:
        base = TaskBrief.model_validate(state["task"]).base_commit
        return patch_since(session.enter_state(state["machine"]), base), ""
    except (RepositoryError, SnapshotNotFoundError) as error:
        return "", f"no patch: {error}"
