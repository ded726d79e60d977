"""Results of an agent's tool calls, read from its next request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.handoff.readers.external.background import BackgroundCommands, CommandResult
from langgraph_takeover.handoff.readers.external.codex_items import (
    CELL_TOOL,
    SCRIPT_TOOL,
    ScriptItem,
    find_first_call,
    find_process,
)
from langgraph_takeover.handoff.readers.open_calls import OpenCalls
from langgraph_takeover.handoff.readers.tool_names import normalize_call
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.nodes.session.external_turn import CallResult

_SCRIPT_ERROR = "Script error:\n"
_PATCH_COMMAND = "apply_patch <<"


class CallReader:
    """Reads the results of calls, and remembers commands that still run in the background."""

    def __init__(self, adapter: AgentAdapter, read_exit_codes: Callable[[], Mapping[str, int]]) -> None:
        self._adapter = adapter
        self._read_exit_codes = read_exit_codes
        """Returns the exit codes that the agent prints but does not show to its model."""
        self._background = BackgroundCommands()

    @property
    def running(self) -> tuple[str, ...]:
        """Commands that still run."""
        return tuple(self._background)

    def read(
        self,
        reply: AIMessage,
        messages: Sequence[BaseMessage],
        read_items: Callable[[], Sequence[ScriptItem]] = tuple,
    ) -> tuple[CallResult, ...]:
        """Return a result for each call of a reply, from the conversation that follows it.

        `read_items` returns the calls that the reply's scripts made.
        """
        calls = (*reply.tool_calls, *reply.invalid_tool_calls)
        shown = _match_results([str(call["id"]) for call in calls], messages)
        results: Sequence[CallResult] = [
            self._read_call(call, shown.get(number)) for number, call in enumerate(calls)
        ]
        if any(each.is_script for each in results):
            items = read_items()
            for each in items:
                self._background.add_result({"process": each.process_id}, CommandResult(""))
            results = _expand_scripts(results, items)
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
        is_script = self._adapter.api == "responses" and call["name"] in (SCRIPT_TOOL, CELL_TOOL)
        shown = text.partition(_SCRIPT_ERROR)[2] or text if is_script else text
        read = self._adapter.read_result(str(call["name"]), arguments, shown, is_error=is_error)
        if is_script:
            read = read._replace(process_id=find_process(text))
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
            is_script=is_script,
        )


def runs_script(calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the calls may run a script, or wait for one."""
    return any(each["name"] in (SCRIPT_TOOL, CELL_TOOL) for each in calls)


def parse_call(call: Mapping[str, Any]) -> Action:
    """Return a native call in this project's terms; that of a script is its first one, if the script spells it out."""
    arguments = _read_arguments(call)
    nested = find_first_call(str(arguments.get("input") or "")) if call["name"] == SCRIPT_TOOL else None
    return nested or Action(*normalize_call(str(call["name"]), arguments))


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


def _expand_scripts(results: Sequence[CallResult], items: Sequence[ScriptItem]) -> tuple[CallResult, ...]:
    """Return the results of a reply with the recorded calls of its scripts.

    A script's own result has the script's first call where the script spells it out; otherwise it stays before its calls.
    All other calls come after the first script whose own call is not recorded, or else after the last one.
    """
    left = list(items)
    own: dict[int, ScriptItem | None] = {}
    for number, result in enumerate(results):
        if result.is_script:
            own[number] = next((each for each in left if _is_same(each.action, result)), None)
            left = [each for each in left if each is not own[number]]
    host = next((number for number, item in own.items() if item is None), max(own))
    expanded: list[CallResult] = []
    for number, result in enumerate(results):
        item, others = own.get(number), left if number == host else []
        if item is None:
            expanded.append(result)
        else:
            is_shown = bool(item.output.strip()) and item.output.strip() in result.text
            text = item.output if is_shown or others else result.text
            expanded.append(result.model_copy(update={"text": text, "exit_code": item.exit_code}))
        expanded += [
            CallResult(
                call_id="",
                tool=each.action.tool,
                arguments=each.action.arguments,
                text=each.output,
                exit_code=each.exit_code,
            )
            for each in others
        ]
    return tuple(expanded)


def _is_same(action: Action, result: CallResult) -> bool:
    if action.tool != result.tool:
        return False
    commands = (action.arguments.get("command", ""), result.arguments.get("command", ""))
    return action.arguments == result.arguments or all(each.startswith(_PATCH_COMMAND) for each in commands)
