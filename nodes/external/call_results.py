"""The results of a reply's calls, as an agent reports them to its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_takeover.handoff.readers.external.sessions import ToolResult
from langgraph_takeover.handoff.readers.tool_names import normalize_call
from langgraph_takeover.nodes.session.external_turn import CallResult

if TYPE_CHECKING:
    from langgraph_takeover.handoff.agents.adapter import AgentAdapter

_MAX_COMMAND_CHARS = 500


class CallResults:
    """Reads results, and remembers the commands that still run."""

    def __init__(self, adapter: AgentAdapter) -> None:
        self._adapter = adapter
        self._running: dict[str, str] = {}
        """Commands in the background, by the agent's names for them."""

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running.values())

    def read(self, reply: AIMessage, messages: Sequence[BaseMessage]) -> tuple[CallResult, ...]:
        """Return the results of a reply's calls in a conversation; a missing one has no text."""
        shown = {each.tool_call_id: each for each in messages if isinstance(each, ToolMessage)}
        results: list[CallResult] = []
        for call in (*reply.tool_calls, *reply.invalid_tool_calls):
            arguments = call["args"] if isinstance(call["args"], dict) else {"arguments": str(call["args"])}
            tool, normalized = normalize_call(str(call["name"]), arguments)
            message = shown.get(str(call["id"]))
            text = message.text if message else ""
            is_error = message is not None and message.status == "error"
            read = self._adapter.read_result(str(call["name"]), arguments, text, is_error=is_error)
            self._note_running(arguments, normalized.get("command", ""), read)
            results.append(
                CallResult(
                    call_id=str(call["id"]),
                    tool=tool,
                    arguments=normalized,
                    text=text,
                    exit_code=read.exit_code,
                    refused=read.refused,
                    timed_out=read.timed_out,
                )
            )
        return tuple(results)

    def _note_running(self, arguments: Mapping[str, Any], command: str, result: ToolResult) -> None:
        """Remember a command that still runs, and forget it once the agent has seen its end."""
        polled = [str(value) for value in arguments.values() if str(value) in self._running]
        if result.process_id is None:
            for each in polled:
                del self._running[each]
        elif not polled:
            self._running[result.process_id] = command[:_MAX_COMMAND_CHARS]
