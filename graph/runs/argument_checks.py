"""Checks of what a caller passes to a thread, before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from langchain_core.tools import BaseTool
from langgraph.types import StateSnapshot
from pydantic import ValidationError

from langgraph_takeover.graph.checkpoints.inspection import CheckpointInfo
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import waits_for_tool_answer
from langgraph_takeover.graph.usage_errors import NotWaitingError
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.records.record import Review
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.model.tool_schemas import find_state_problem
from langgraph_takeover.nodes.session.state_store import SnapshotNotFoundError
from langgraph_takeover.nodes.state import AgentState, InputError, ProcessChoice, parse_process_question
from langgraph_takeover.sandbox.interface import SandboxSpec

_INTERRUPT_ID = re.compile("[0-9a-f]{32}")
_MAX_ANSWER_CHARS = 1_000_000
_EXAMPLE_ANSWER = '{"decision": "approve", "view": "structured"} or {"decision": "refuse"}'


def validate_answer(
    answer: Any, thread: str, state: StateSnapshot, has_answer: bool, keys: Sequence[str]
) -> Any:
    """Return a review, or the answer to a tool, as JSON without secrets; `keys` are those of the models.

    Raises NotWaitingError and InputError.
    """
    is_question = bool(state.interrupts) and waits_for_tool_answer(cast(AgentState, state.values))
    # A second answer to a tool's question is allowed: the tool may have refused the first.
    if has_answer and not is_question:
        raise NotWaitingError(
            f"thread {thread!r} already has an answer "
            "(resume without one, or from an earlier checkpoint to be asked again)"
        )
    if not state.interrupts:
        raise NotWaitingError(f"thread {thread!r} does not wait for an answer (resume without one)")
    if parse_process_question(state.interrupts[0].value) is not None:
        try:
            return ProcessChoice.model_validate(answer).model_dump(mode="json")
        except ValidationError as error:
            raise invalid_answer_error(error, '{"start": [0]} or {"start": []}') from error
    if is_question:
        return redact(_validate_tool_answer(answer), keys)
    try:
        return redact(Review.model_validate(answer).model_dump(mode="json"), keys)
    except ValidationError as error:
        raise invalid_answer_error(error, _EXAMPLE_ANSWER) from error


def _validate_tool_answer(answer: Any) -> Any:
    try:
        text = json.dumps(answer, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"answer: not JSON: {answer!r:.60} (pass text, numbers, lists and dicts)") from None
    if len(text) > _MAX_ANSWER_CHARS:
        raise InputError(
            f"answer: {len(text):,} characters of JSON; the limit is {_MAX_ANSWER_CHARS:,} (shorten it)"
        )
    return json.loads(text)


def resembles_answers_by_id(answer: Any) -> bool:
    """Whether LangGraph would take an answer for a mapping from ids of questions to answers."""
    return isinstance(answer, dict) and all(_INTERRUPT_ID.fullmatch(str(key)) for key in answer)


def invalid_answer_error(error: ValidationError, example: str) -> InputError:
    """Describe the first invalid field of an answer."""
    first = error.errors()[0]
    location = "".join(f"{part}: " for part in first["loc"])
    return InputError(f"answer: {location}{first['msg']} (for example {example})")


def check_task(task_id: object, prompt: object) -> None:
    """Raises InputError."""
    if not isinstance(task_id, str) or not isinstance(prompt, str) or not prompt.strip():
        raise InputError(
            f"task: task_id and prompt must be text, the prompt not empty; got {task_id!r:.60} and {prompt!r:.60}"
        )


def check_sandbox(sandbox: object) -> None:
    """Raises SettingsError."""
    if not isinstance(sandbox, SandboxSpec):
        raise SettingsError(
            f"sandbox: not a SandboxSpec: {sandbox!r:.60} "
            "(pass for instance SandboxSpec(backend='host', directory=Path('repository')))"
        )


def check_tools(tools: Iterable[BaseTool], where: str = "") -> None:
    """Check that the state has the fields that tools need. Raises SettingsError."""
    for tool in tools:
        if problem := find_state_problem(tool, AgentState.__annotations__):
            raise SettingsError(f"{where}tools: {problem}")


def check_takeover(home: Home, record_id: str, view: str | None) -> None:
    """Raises RecordError and UnknownViewError."""
    home.records.load(record_id)
    if view is not None and view != CONTINUATION:
        views.find_view(view)


def snapshot_not_found_error(
    thread: str, checkpoint: str | None, restorable: CheckpointInfo | None
) -> SnapshotNotFoundError:
    """Describe a missing snapshot, and name the nearest checkpoint that has one."""
    which = f"checkpoint {checkpoint}" if checkpoint else "its newest checkpoint"
    cure = (
        f"resume(checkpoint={restorable.checkpoint!r}) or go_back=True resumes from step {restorable.step}, which has one"
        if restorable
        else "no earlier checkpoint has one either"
    )
    return SnapshotNotFoundError(f"thread {thread!r}: no snapshot of {which} ({cure})")
