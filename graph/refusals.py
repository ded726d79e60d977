"""What a thread refuses: a run where there is one, an answer that nobody waits for, a machine that was not kept."""

from __future__ import annotations

from typing import Any

from langgraph.types import StateSnapshot
from pydantic import ValidationError

from graph.home import Moment
from handoff.record import Review
from handoff.redaction import redacted
from nodes.session import MachineNotKept


class RunFailed(RuntimeError):
    """What made a served run fail, in one line; the server passes the text of few other errors on."""


class ThreadTaken(ValueError):
    """The thread holds a run already, of this task or of another."""


class Waiting(ValueError):
    """What was asked for would make a thread forget that it waits for a person."""


class NotWaiting(ValueError):
    """An answer was given to a thread that waits for none, or one that is no answer."""


def checked(answer: Review | dict[str, Any], thread: str, state: StateSnapshot) -> dict[str, Any]:
    if not state.interrupts:
        raise NotWaiting(f"thread {thread!r} waits for no answer; resume it without one")
    try:
        return redacted(Review.model_validate(answer).model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors()[0]
        raise NotWaiting(f"answer: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def not_kept(thread: str, checkpoint: str | None, kept: Moment | None) -> MachineNotKept:
    which = f"checkpoint {checkpoint}" if checkpoint else "newest checkpoint"
    cure = (
        f"resume(checkpoint={kept.checkpoint!r}) or go_back=True goes on from step {kept.step}, whose machine was kept"
        if kept
        else "no earlier one was kept either"
    )
    return MachineNotKept(f"thread {thread!r}: the machine of its {which} was not kept; {cure}")
