"""Results of an agent's tool calls, read from its next request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.handoff.agents.codex_rollouts import Payload, ScriptHistory, assign_records
from langgraph_takeover.handoff.agents.codex_script_results import (
    SCRIPT_TOOL,
    WAIT_TOOL,
    ObservedCall,
    list_nested,
)
from langgraph_takeover.handoff.recordings.branches import BackgroundCommands, CommandResult
from langgraph_takeover.handoff.recordings.tool_calls import OpenCalls, normalize_call
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.nodes.session.observation import CallResult


class CallReader:
    """Reads the results of calls, and remembers commands that still run in the background."""

    def __init__(
        self, adapter: AgentAdapter, read_exit_codes: Callable[[], Mapping[str, int]], workspace: str = ""
    ) -> None:
        self._adapter = adapter
        self._workspace = workspace
        self._read_exit_codes = read_exit_codes
        """Returns the exit codes that the agent prints but does not show to its model."""
        self._background = BackgroundCommands()
        self._scripts = ScriptHistory()

    @property
    def running(self) -> tuple[str, ...]:
        """Commands that still run."""
        return tuple(self._background)

    def read(
        self,
        reply: AIMessage,
        messages: Sequence[BaseMessage],
        read_rows: Callable[[], Sequence[Payload]] = tuple,
    ) -> tuple[CallResult, ...]:
        """Return a result for each call of a reply, from the conversation that follows it.

        `read_rows` returns the rows that the agent has added to its session since the reply, with the calls of its scripts.
        """
        calls = (*reply.tool_calls, *reply.invalid_tool_calls)
        shown = _match_results([str(call["id"]) for call in calls], messages)
        scripts = [number for number, call in enumerate(calls) if self._is_script(call)]
        texts = [str(_read_arguments(calls[number]).get("input") or "") for number in scripts]
        records = (
            dict(zip(scripts, assign_records(texts, read_rows(), self._workspace), strict=True))
            if scripts
            else {}
        )
        results = [
            result
            for number, call in enumerate(calls)
            for result in (
                self._read_script(call, shown.get(number), records[number])
                if number in records
                else (self._read_call(call, shown.get(number)),)
            )
        ]
        hidden = {each.call_id for each in results if each.tool == "shell" and each.exit_code is None}
        codes = self._read_exit_codes() if hidden & {each.tool_call_id for each in shown.values()} else {}
        return tuple(
            each.model_copy(update={"exit_code": codes[each.call_id]})
            if each.call_id in hidden and each.call_id in codes and not each.timed_out
            else each
            for each in results
        )

    def _read_call(self, call: Mapping[str, Any], message: ToolMessage | None) -> CallResult:
        arguments = _read_arguments(call)
        tool, normalized = parse_call(call)
        text = message.text if message else ""
        is_error = message is not None and message.status == "error"
        read = self._adapter.read_result(str(call["name"]), arguments, text, is_error=is_error)
        command = normalized.get("command", "") if tool == "shell" and "is_input" not in normalized else ""
        self._background.add_result(arguments, CommandResult(command, read.process_id, read.refused))
        return CallResult(
            call_id=str(call["id"]),
            tool=tool,
            arguments=normalized,
            text=text,
            exit_code=read.exit_code if message else None,
            refused=read.refused,
            timed_out=read.timed_out,
        )

    def _is_script(self, call: Mapping[str, Any]) -> bool:
        return self._adapter.api == "responses" and runs_script([call])

    def _read_script(
        self, call: Mapping[str, Any], message: ToolMessage | None, observed: Sequence[ObservedCall]
    ) -> Iterator[CallResult]:
        """Yield the results of a script's calls. The first is that of the action which `parse_call` returns."""
        contents = () if message is None else (message.text,)
        later = () if observed else None
        nested = self._scripts.read(str(call["name"]), _read_arguments(call), contents, observed, later)
        action, call_id = parse_call(call), str(call["id"])
        first = parse_call({"name": nested[0].tool, "args": dict(nested[0].arguments)})
        if action != first and not (action.tool == SCRIPT_TOOL and first.tool.startswith(f"{SCRIPT_TOOL}:")):
            yield CallResult(call_id=call_id, tool=action.tool, arguments=action.arguments, text="")
            call_id = ""
        for each in nested:
            tool, normalized = normalize_call(each.tool, each.arguments)
            command = (
                normalized.get("command", "") if tool == "shell" and "is_input" not in normalized else ""
            )
            self._background.add_result(each.arguments, CommandResult(command, each.process_id, each.refused))
            yield CallResult(
                call_id=call_id,
                tool=tool,
                arguments=normalized,
                text=each.text,
                exit_code=each.exit_code,
                refused=each.refused,
            )
            call_id = ""


def runs_script(calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the calls may run a script, or wait for one."""
    return any(each["name"] in (SCRIPT_TOOL, WAIT_TOOL) for each in calls)


def parse_call(call: Mapping[str, Any]) -> Action:
    """Return a native call in this project's terms; that of a script is its first one, if the script spells it out."""
    name, arguments = str(call["name"]), _read_arguments(call)
    if name == SCRIPT_TOOL:
        first = list_nested(str(arguments.get("input") or ""))[0]
        if not first.tool.startswith(f"{SCRIPT_TOOL}:"):
            name, arguments = first.tool, first.arguments
    return Action(*normalize_call(name, arguments))


def _read_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    return call["args"] if isinstance(call["args"], dict) else {"arguments": str(call["args"])}


def _match_results(ids: Sequence[str], messages: Sequence[BaseMessage]) -> dict[int, ToolMessage]:
    """The result of each call by its position, from the messages after the reply: earlier replies may have the same ids."""
    open_calls = OpenCalls()
    for number, call_id in enumerate(ids):
        open_calls.add(call_id, number)
    shown: dict[int, ToolMessage] = {}
    for message in messages[_find_start(ids, messages) :]:
        position = open_calls.close(message.tool_call_id) if isinstance(message, ToolMessage) else None
        if isinstance(message, ToolMessage) and position is not None:
            shown[position] = message
    return shown


def _find_start(ids: Sequence[str], messages: Sequence[BaseMessage]) -> int:
    """The position of the last reply with the calls; agents may write parallel calls as several replies in a row."""
    start, missing = 0, set(ids)
    for number in reversed(range(len(messages))):
        message = messages[number]
        if not isinstance(message, AIMessage):
            continue
        own = {str(call["id"]) for call in (*message.tool_calls, *message.invalid_tool_calls)}
        if not own.isdisjoint(missing):
            start, missing = number, missing - own
        elif own and len(missing) < len(set(ids)):
            break
        if not missing:
            break
    return start
