"""What a thread refuses: a run where there is one, an answer that nobody waits for, a machine that was not kept."""

from __future__ import annotations

from typing import Any

from langgraph.types import StateSnapshot
from pydantic import ValidationError

from langgraph_takeover.graph.home import CheckpointInfo, Home
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.records.record import Review
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.session.session import SnapshotNotFoundError
from langgraph_takeover.nodes.state import InputError
from langgraph_takeover.sandbox.interface import TakeoverError

_EXAMPLE_ANSWER = '{"decision": "approve", "view": "structured"} or {"decision": "refuse"}'


class ServedRunError(TakeoverError, RuntimeError):
    """What made a served run fail, in one line; the server passes the text of few other errors on."""


class ThreadExistsError(TakeoverError, ValueError):
    """The thread holds a run already, of this task or of another."""


class WaitingError(TakeoverError, ValueError):
    """What was asked for would make a thread forget that it waits for a person."""


class NotWaitingError(TakeoverError, ValueError):
    """An answer was given to a thread that waits for none."""


def validate_answer(
    answer: Review | dict[str, Any], thread: str, state: StateSnapshot, has_answer: bool
) -> dict[str, Any]:
    """Raises NotWaitingError or InputError."""
    if has_answer:
        raise NotWaitingError(
            f"thread {thread!r} has an answer there already; resume it without one, or go back to a "
            "checkpoint before, from which it asks anew"
        )
    if not state.interrupts:
        raise NotWaitingError(f"thread {thread!r} waits for no answer; resume it without one")
    try:
        return redact(Review.model_validate(answer).model_dump(mode="json"))
    except ValidationError as error:
        raise invalid_answer_error(error, _EXAMPLE_ANSWER) from error


def invalid_answer_error(error: ValidationError, example: str) -> InputError:
    first = error.errors()[0]
    where = "".join(f"{each}: " for each in first["loc"])
    return InputError(f"answer: {where}{first['msg']}; give one such as {example}")


def check_task(task_id: str, prompt: str) -> None:
    """Raises InputError."""
    if not isinstance(task_id, str) or not isinstance(prompt, str) or not prompt.strip():
        raise InputError(
            f"a task is an id and a prompt, both text; they were {task_id!r:.60} and {prompt!r:.60}"
        )


def check_takeover(home: Home, record_id: str, view: str) -> None:
    """Raises RecordError or UnknownViewError."""
    home.records.load(record_id)
    if view:
        views.find_view(view)


def snapshot_not_found_error(
    thread: str, checkpoint: str | None, restorable: CheckpointInfo | None
) -> SnapshotNotFoundError:
    which = f"checkpoint {checkpoint}" if checkpoint else "newest checkpoint"
    cure = (
        f"resume(checkpoint={restorable.checkpoint!r}) or go_back=True goes on from step {restorable.step}, whose machine was kept"
        if restorable
        else "no earlier one was kept either"
    )
    return SnapshotNotFoundError(f"thread {thread!r}: the machine of its {which} was not kept; {cure}")
