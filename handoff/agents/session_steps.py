"""The steps of a history as a native session needs them: calls with results, and an account of every event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from langgraph_takeover.handoff.agents.adapter import ConvertedEvent
from langgraph_takeover.handoff.agents.shell_calls import has_shell_command
from langgraph_takeover.handoff.text.fence import quote_text
from langgraph_takeover.handoff.text.tool_wrappers import strip_json_result, strip_wrapper
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.conversation import EMPTY_RESULT, RESULT_NOT_RECORDED, History, Step
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event

HISTORY_CALL_PREFIX = "call_e"
"""Start of the ids of calls in a written session; the rest is the number of the event."""
MAX_TEXT_CHARS = 60_000
"""Longer results, arguments and thoughts are shortened in a native session."""
_WITHOUT_CALL = ("finish", UNREADABLE)
_CALL_START = re.compile(
    r'```|^\{"name"|<(?:editor|shell|bash|finish|handoff|recall|function|tool)', re.MULTILINE
)


class SessionStep(NamedTuple):
    """One step of a session: the agent's words, its call, and the result. Without a call, the result is a message, or empty."""

    thought: str
    action: Action | None
    call_id: str
    result: str
    """With an exit code, the output of the command, without what the recorded agent added to it."""
    exit_code: int | None = None
    refused: bool = False

    @property
    def hides_exit_code(self) -> bool:
        """Whether the result is that of a command, or of a call that becomes a comment, whose exit code is unknown."""
        action = self.action
        if action is None or self.exit_code is not None or self.refused:
            return False
        return action.tool == "shell" or not has_shell_command(action)


def list_session_steps(history: History) -> tuple[list[SessionStep], list[ConvertedEvent]]:
    """Return the steps of a history, and what becomes of each of its events."""
    steps: list[SessionStep] = []
    account: list[ConvertedEvent] = []
    for step in history.steps:
        converted = _convert_step(step)
        has_thought = history.has_thoughts or converted.action is None
        steps.append(converted if has_thought else converted._replace(thought=""))
        account += _account_for(step)
    account += [
        ConvertedEvent(event=index, outcome="dropped", reason="left out by the view")
        for index in history.dropped
    ]
    return steps, account


def _convert_step(step: Step) -> SessionStep:
    event, observation = step.action, step.observation
    text = observation.text if observation else None
    exit_code = observation.exit_code if observation and event.tool == "shell" else None
    if text is not None and exit_code is not None:
        text = strip_json_result(strip_wrapper(text))
    result = RESULT_NOT_RECORDED if text is None else quote_text(_shorten(text)) or EMPTY_RESULT
    if observation is None and event.tool in _WITHOUT_CALL:
        result = ""
    if event.tool == UNREADABLE:
        return SessionStep(quote_text(_shorten(event.text)) or "…", None, "", result)
    thought = quote_text(_shorten(_read_thought(event)))
    if event.tool == "finish":
        message = quote_text(_shorten(event.arguments.get("message", "")))
        return SessionStep(thought or message or "…", None, "", result)
    arguments = {name: quote_text(_shorten(value)) for name, value in event.arguments.items()}
    return SessionStep(
        thought,
        Action(event.tool, arguments),
        f"{HISTORY_CALL_PREFIX}{event.index}",
        result,
        exit_code,
        refused=observation is not None and observation.refused,
    )


def _read_thought(event: Event) -> str:
    return _CALL_START.split(event.text, maxsplit=1)[0].strip()


def _account_for(step: Step) -> Iterator[ConvertedEvent]:
    event = step.action
    texts = (event.text if event.tool == UNREADABLE else _read_thought(event), *event.arguments.values())
    action = Action(event.tool, dict(event.arguments))
    if event.tool not in _WITHOUT_CALL and not has_shell_command(action):
        reason = f"the tool {event.tool:.60} is a comment in a shell command"
        yield ConvertedEvent(event=event.index, outcome="shortened", reason=reason)
    else:
        yield _account_for_texts(event, texts)
    if step.observation is not None:
        yield _account_for_texts(step.observation, (step.observation.text,))


def _account_for_texts(event: Event, texts: Iterable[str]) -> ConvertedEvent:
    if all(len(text) <= MAX_TEXT_CHARS for text in texts):
        return ConvertedEvent(event=event.index, outcome="converted")
    reason = f"a text is longer than {MAX_TEXT_CHARS:,} characters"
    return ConvertedEvent(event=event.index, outcome="shortened", reason=reason)


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
