"""What was open at the end of a session: calls without a result, an unanswered question or request."""

from __future__ import annotations

import json
from collections.abc import Sequence

from langgraph_takeover.handoff.readers.recorded_run import RecordedCall

_MAX_CHARS = 500
_MAX_CALLS = 20
_QUESTION_TOOLS = {
    "askuserquestion", "ask_user_question", "request_user_input", "question", "exitplanmode", "exit_plan_mode", "ask_user",
}  # fmt: skip


class PendingWork:
    """Follows the turns of a session: a turn begins with a request and ends with the agent's last message."""

    def __init__(self) -> None:
        self._request = ""
        """The request that no reply follows yet."""
        self._is_open = False
        """The turn has not ended."""
        self._start = 0
        """Position of the first call of the last reply: calls of earlier replies do not wait any more."""

    def add_request(self, text: str, number_of_calls: int) -> None:
        self._request, self._is_open, self._start = text, True, number_of_calls

    def start_reply(self, number_of_calls: int) -> None:
        self._start = number_of_calls

    def add_call(self) -> None:
        self._request, self._is_open = "", True

    def end(self, number_of_calls: int) -> None:
        self._request, self._is_open, self._start = "", False, number_of_calls

    def describe(self, calls: Sequence[RecordedCall]) -> tuple[str, ...]:
        """Describe what is open, each on one line; empty if the last turn has ended."""
        if not self._is_open:
            return ()
        if self._request:
            return (f"request without a reply: {_shorten(self._request)}",)
        waiting = describe_open_calls(calls[self._start :])
        if not waiting and calls[-1:] and calls[-1].tool == "finish":
            return ()
        return waiting or ("turn without an end: the agent had not replied to the last result",)


def describe_open_calls(calls: Sequence[RecordedCall]) -> tuple[str, ...]:
    """Describe the calls without a result, each on one line."""
    waiting = [call for call in calls if call.result is None and call.tool != "finish"]
    return tuple(map(_describe_call, waiting[:_MAX_CALLS]))


def _describe_call(call: RecordedCall) -> str:
    if call.tool == "shell":
        command = call.arguments.get("command", "")
        return f"command that runs or waits for permission: {_shorten(command)}"
    arguments = _shorten(json.dumps(dict(call.arguments), ensure_ascii=False))
    if call.tool.lower() in _QUESTION_TOOLS:
        return f"question without an answer: {arguments}"
    return f"call without a result: {call.tool} {arguments}"


def _shorten(text: str) -> str:
    line = " ".join(text[: 4 * _MAX_CHARS].split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"
