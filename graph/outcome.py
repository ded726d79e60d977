"""The result of a run: its end, a wait for a person, or a stop from outside."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic import ConfigDict, Field

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.records.record import RecordError, TaskBrief
from langgraph_takeover.handoff.records.record_facts import add_left_out, add_observed_changes
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.records import enter_checked_state
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import SnapshotNotFoundError
from langgraph_takeover.nodes.state import (
    NO_SPENDING,
    AgentState,
    ProcessQuestion,
    ReviewRequest,
    StopReason,
    ToolQuestion,
    parse_process_question,
)
from langgraph_takeover.nodes.state_events import find_call_id, load_event, load_events
from langgraph_takeover.sandbox.changes.file_access import list_unsaved_files
from langgraph_takeover.sandbox.repository import LeftOut, Patch, RepositoryError, patch_since


class RunStatus(StrEnum):
    """The status of a run.

    `finished` and `failed` are final. A `waiting` run resumes with an answer, a `stopped` one with changed limits or
    as it is. The work of a `handed_over` run continues on another thread.

    Example:
        >>> from langgraph_takeover import RunStatus
        >>> RunStatus("handed_over") is RunStatus.HANDED_OVER
        True
    """

    FINISHED = "finished"
    WAITING = "waiting"
    STOPPED = "stopped"
    HANDED_OVER = "handed_over"
    FAILED = "failed"


_STATUS_OF_REASON: dict[StopReason, RunStatus] = {
    "finished": RunStatus.FINISHED,
    "handoff": RunStatus.HANDED_OVER,
    "refused": RunStatus.FAILED,
    "unconfirmed": RunStatus.FAILED,
}


def get_run_status(stop_reason: StopReason | None) -> RunStatus:
    """Return the status of a run that does not wait."""
    return RunStatus.STOPPED if stop_reason is None else _STATUS_OF_REASON.get(stop_reason, RunStatus.STOPPED)


class Outcome(Frozen):
    """The result of one call that ran a thread.

    Example:
        >>> from langgraph_takeover import Outcome, RunStatus
        >>> outcome = Outcome(thread="fix-1", stop_reason="max_steps", state={})
        >>> outcome.status is RunStatus.STOPPED
        True
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    thread: str
    stop_reason: StopReason | None = None
    """None if the run can continue as it is: it waits for a person, or something outside stopped it."""
    waiting: ReviewRequest | None = None
    """The question to a person under the policy `review`; `resume` takes the answer."""
    question: ToolQuestion | None = None
    """The question of a custom tool that called `interrupt`; `resume` takes the answer."""
    processes: ProcessQuestion | None = None
    """The question which background processes to start again; `resume` takes a `ProcessChoice`."""
    records: tuple[str, ...] = ()
    """Ids of the handoff records, oldest first."""
    periodic_records: tuple[str, ...] = ()
    """Ids of the records under `record_every_steps`, oldest first."""
    steps: int = 0
    """Number of model replies."""
    prompt_tokens: int = 0
    """Estimated for calls without a count, as `completion_tokens` and `cost` are."""
    completion_tokens: int = 0
    uncounted_calls: int = 0
    """Calls, failed attempts included, whose tokens the endpoint did not report."""
    cost: float | None = None
    """In the currency of `prices`; None without prices, and before the first call."""
    seconds: float = 0.0
    """Time spent in model calls and actions."""
    answer: str | None = None
    """The message with which the agent finished; None if it has not finished."""
    patch: str = ""
    """What this run changed, as a patch for git: the difference from its start, such as a record's sandbox."""
    diff_from_base: str = ""
    """Difference from the task's base commit, with the work of all predecessors."""
    patch_error: str | None = None
    """The reason for missing patches."""
    left_out: tuple[LeftOut, ...] = ()
    """Changes that the patches lack, and files that no snapshot has, each with its path and the reason: at most 500."""
    left_out_count: int = 0
    """Number of all changes that the patches lack."""
    predecessor: Outcome | None = None
    """Under the policy `takeover`: the outcome of the run that handed over to this one."""
    state: AgentState = Field(repr=False)
    """The graph's state."""

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        if self.waiting is not None or self.question is not None or self.processes is not None:
            return RunStatus.WAITING
        return get_run_status(self.stop_reason)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The actions and observations of the run, oldest first."""
        return load_events(self.state)


def build_outcome(session: Session, state: AgentState, interrupts: Any = ()) -> Outcome:
    """Save the sandbox and return the outcome of a thread in that state."""
    session.save_current_state()
    own, whole, patch_error = _compute_patches(session, state)
    processes = parse_process_question(interrupts[0].value) if interrupts else None
    if processes is not None:
        interrupts = ()
    is_question = bool(interrupts) and waits_for_tool_answer(state)
    return Outcome(
        thread=session.thread,
        stop_reason=state.get("stop_reason"),
        waiting=ReviewRequest.model_validate(interrupts[0].value) if interrupts and not is_question else None,
        question=_build_question(state, interrupts[0].value) if is_question else None,
        processes=processes,
        records=tuple(state.get("records", ())),
        periodic_records=tuple(state.get("periodic_records", ())),
        steps=state.get("steps", 0),
        **state.get("spent", NO_SPENDING),
        answer=_find_answer(state),
        patch=own,
        diff_from_base=whole.text,
        patch_error=patch_error,
        left_out=whole.left_out,
        left_out_count=whole.left_out_count,
        state=state,
    )


def waits_for_tool_answer(state: AgentState) -> bool:
    """Whether a run that is interrupted waits for a tool's answer: a review comes after an observation."""
    events = state.get("events", [])
    return bool(events) and events[-1]["kind"] == "action"


def _build_question(state: AgentState, value: Any) -> ToolQuestion:
    tool = state["events"][-1]["tool"]
    return ToolQuestion(tool=tool, call=find_call_id(state), value=value)


def _find_answer(state: AgentState) -> str | None:
    if state.get("stop_reason") != "finished" or not state.get("events"):
        return None
    last = load_event(state["events"][-1], state["messages"])
    return last.arguments.get("message", last.text)


def _find_start_patch(session: Session, state: AgentState) -> str | None:
    """Return the repository's patch at the run's start; for a takeover, its record's. Raises RecordError."""
    start = state.get("start")
    if not start and "record" in state:
        return session.records.load(state["record"]).patch
    return start.get("patch", "") if start else ""


def _compute_patches(session: Session, state: AgentState) -> tuple[str, Patch, str | None]:
    """Return the difference from the run's start, that from the base commit, and the reason if it cannot be computed."""
    if "sandbox_state" not in state:
        return "", Patch(), "no patch: the run has not started"
    try:
        base = TaskBrief.model_validate(state["task"]).base_commit
        sandbox = enter_checked_state(session, state)
        whole = patch_since(sandbox, base, open_base=session.open_base)
    except (RepositoryError, SnapshotNotFoundError) as error:
        return "", Patch(), f"no patch: {error}"
    own, patch_error = Patch(), None
    try:
        before = _find_start_patch(session, state)
        if before is None:
            patch_error = "no patch: at its start, the repository differed too much from its commit"
        elif whole.text != before:
            own = patch_since(sandbox, base, before, session.open_base) if before else whole
    except (RecordError, RepositoryError) as error:
        patch_error = f"no patch: {error}"
    whole = add_observed_changes(whole, load_events(state), own)
    return own.text, add_left_out(whole, list_unsaved_files(sandbox)), patch_error
