"""What a thread refuses: a run where there is one, an answer that nobody waits for, a machine that was not kept."""

from __future__ import annotations

from typing import Any

from langgraph.types import StateSnapshot
from pydantic import ValidationError

from graph.home import Home, Moment
from handoff import views
from handoff.record import Review
from handoff.redaction import redacted
from nodes.session import MachineNotKept
from nodes.state import BadInput

_ANSWER = '{"decision": "approve", "view": "structured"} or {"decision": "refuse"}'


class RunFailed(RuntimeError):
    """What made a served run fail, in one line; the server passes the text of few other errors on."""


class ThreadTaken(ValueError):
    """The thread holds a run already, of this task or of another."""


class Waiting(ValueError):
    """What was asked for would make a thread forget that it waits for a person."""


class NotWaiting(ValueError):
    """An answer was given to a thread that waits for none."""


def checked(
    answer: Review | dict[str, Any], thread: str, state: StateSnapshot, answered: bool
) -> dict[str, Any]:
    """Raises NotWaiting or BadInput."""
    if answered:
        raise NotWaiting(
            f"thread {thread!r} has an answer there already; resume it without one, or go back to a "
            "checkpoint before, from which it asks anew"
        )
    if not state.interrupts:
        raise NotWaiting(f"thread {thread!r} waits for no answer; resume it without one")
    try:
        return redacted(Review.model_validate(answer).model_dump(mode="json"))
    except ValidationError as error:
        raise no_answer(error, _ANSWER) from error


def no_answer(error: ValidationError, example: str) -> BadInput:
    first = error.errors()[0]
    where = "".join(f"{each}: " for each in first["loc"])
    return BadInput(f"answer: {where}{first['msg']}; give one such as {example}")


def check_task(task_id: str, prompt: str) -> None:
    """Raises BadInput."""
    if not isinstance(task_id, str) or not isinstance(prompt, str) or not prompt.strip():
        raise BadInput(
            f"a task is an id and a prompt, both text; they were {task_id!r:.60} and {prompt!r:.60}"
        )


def check_takeover(home: Home, record_id: str, view: str) -> None:
    """Raises RecordRefused or NoSuchView."""
    home.records.load(record_id)
    if view:
        views.named(view)


def not_kept(thread: str, checkpoint: str | None, kept: Moment | None) -> MachineNotKept:
    which = f"checkpoint {checkpoint}" if checkpoint else "newest checkpoint"
    cure = (
        f"resume(checkpoint={kept.checkpoint!r}) or go_back=True goes on from step {kept.step}, whose machine was kept"
        if kept
        else "no earlier one was kept either"
    )
    return MachineNotKept(f"thread {thread!r}: the machine of its {which} was not kept; {cure}")
