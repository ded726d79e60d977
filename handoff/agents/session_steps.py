"""The steps of a history as a native session needs them: calls with results, and an account of every event."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from langgraph_takeover.handoff.agents.adapter import ConvertedEvent
from langgraph_takeover.handoff.text.fence import quote_text
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.conversation import EMPTY_RESULT, RESULT_NOT_RECORDED, History, Step
from langgraph_takeover.handoff.trace.events import UNREADABLE

MAX_RESULT_CHARS = 60_000
"""Longer results are shortened in a native session."""
HISTORY_CALL_PREFIX = "call_e"
"""Start of the ids of calls in a written session; the rest is the number of the event."""
_CALL_START = re.compile(
    r'```|^\{"name"|<(?:editor|shell|bash|finish|handoff|recall|function|tool)', re.MULTILINE
)


class SessionStep(NamedTuple):
    """One step of a session: the agent's words, its call, and the result. Without a call, the result is a message."""

    thought: str
    action: Action | None
    call_id: str
    result: str


def list_session_steps(history: History) -> tuple[list[SessionStep], list[ConvertedEvent]]:
    """Return the steps of a history, and what becomes of each of its events."""
    steps: list[SessionStep] = []
    account: list[ConvertedEvent] = []
    for step in history.steps:
        steps.append(_convert_step(step))
        account += _account_for(step)
    return steps, account


def _convert_step(step: Step) -> SessionStep:
    event = step.action
    text = step.observation.text if step.observation else None
    result = RESULT_NOT_RECORDED if text is None else quote_text(_shorten(text)) or EMPTY_RESULT
    if event.tool == UNREADABLE:
        return SessionStep(quote_text(event.text) or "…", None, "", result)
    thought = quote_text(_CALL_START.split(event.text, 1)[0].strip())
    if event.tool == "finish":
        return SessionStep(thought or quote_text(event.arguments.get("message", "")) or "…", None, "", result)
    arguments = {name: quote_text(value) for name, value in event.arguments.items()}
    return SessionStep(thought, Action(event.tool, arguments), f"{HISTORY_CALL_PREFIX}{event.index}", result)


def _account_for(step: Step) -> Iterator[ConvertedEvent]:
    yield ConvertedEvent(event=step.action.index, outcome="converted")
    if step.observation is not None:
        is_long = len(step.observation.text) > MAX_RESULT_CHARS
        yield ConvertedEvent(
            event=step.observation.index,
            outcome="shortened" if is_long else "converted",
            reason=f"longer than {MAX_RESULT_CHARS:,} characters" if is_long else "",
        )


def _shorten(text: str) -> str:
    if len(text) <= MAX_RESULT_CHARS:
        return text
    half = MAX_RESULT_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
