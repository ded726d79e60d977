"""Reader of OpenHands: histories until 2025 (V0), and events of the software agent SDK (V1)."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph_takeover.handoff.recordings import tool_calls
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    drop_copies,
    extract_text,
    join_text,
    parse_usage,
    to_directory,
    to_id,
    to_mapping,
)
from langgraph_takeover.handoff.recordings.tool_calls import CallStep, match_results
from langgraph_takeover.handoff.text.tool_wrappers import STILL_RUNNING_NOTICE
from langgraph_takeover.handoff.trace.events import count_forms
from langgraph_takeover.sandbox.interface import FileChange

NOT_RUN_NOTICE = re.compile(
    r"Cannot execute multiple commands at once|is NOT executed\. The previous command is still running"
    r"|No previous running command to interact with|ERROR: (?:Cannot|No )|previous command is still running"
)
_RUNTIME_SUFFIX = re.compile(
    r"\n?\[(?:The command completed|Current working directory|Python interpreter|Command finished)"
    r"(?:[^\n\[\]]|\[[^\n\[\]]*\])*\]",
    re.I,
)

_SUFFIX_STARTS = ("[the command", "[current", "[python", "[command")


def strip_runtime_suffix(text: str) -> str:
    """Remove the notices that the runtime adds to the output of a program."""
    lowered = text.lower()
    if any(start in lowered for start in _SUFFIX_STARTS):
        text = _RUNTIME_SUFFIX.sub("", text)
    return text.replace("\r\n", "\n")


_NON_CALL_KINDS = {
    "message",
    "system",
    "recall",
    "think",
    "condensation",
    "condensation_request",
    "change_agent_state",
    "null",
}
_REFUSAL = re.compile(
    r"^ERROR|No replacement was performed|No exact match found|have NOT been applied|has NOT been applied"
    r"|Missing required parameter|did not appear verbatim|Multiple occurrences|Invalid `\w+` parameter"
    r"|File already exists|The path .{0,1000} does not exist",
    re.MULTILINE,
)
_IPYTHON_EDITS = {
    "edit_file_by_replace", "insert_content_at_line", "append_file", "create_file", "edit_file",
    "edit_file_by_line",
}  # fmt: skip


def is_history(data: Any) -> bool:
    if isinstance(data, Mapping):
        data = data.get("history")
    if not isinstance(data, list) or not data:
        return False
    events = _flatten_events(data)
    return any("action" in e and ("args" in e or "thought" in e) for e in events) and any(
        "observation" in e for e in events
    )


def read_history(data: Any, name: str) -> RecordedRun:
    """Read one line of an `output.jsonl`, or a bare list of events."""
    document: Mapping[str, Any] = data if isinstance(data, Mapping) else {"history": data}
    events = drop_copies(_flatten_events(document["history"]))
    observations = _match_observations(events)
    calls = []
    cwd: str | None = None
    for number, event in enumerate(events):
        kind = event.get("action")
        if kind is None or str(kind) in _NON_CALL_KINDS or event.get("source") in ("user", "environment"):
            continue
        found = observations.get(number)
        observation = None if found is None else events[found]
        if observation is None and event.get("id") is None:
            following = events[number + 1] if number + 1 < len(events) else None
            observation = following if following is not None and "observation" in following else None
        call, cwd = _read_call(str(kind), event, observation, cwd)
        calls.append(call)
    instruction = str(document.get("instruction") or "")
    task = instruction or next((str(e.get("message") or "") for e in events if e.get("source") == "user"), "")
    instance = document.get("instance_id") or to_mapping(document.get("issue")).get("number")
    model = to_mapping(to_mapping(document.get("metadata")).get("llm_config")).get("model")
    return RecordedRun(
        id=str(instance if instance is not None else name),
        format="openhands-v0",
        calls=calls,
        task=task,
        model=str(model or ""),
        unknown_items=count_forms(_list_unknown(events)),
    )


def _list_unknown(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a name for each event that is neither action nor observation and may carry a call or its result."""
    for event in events:
        if not {"action", "observation"} & event.keys() and tool_calls.may_carry_call(event):
            yield str(event.get("kind") or event.get("type") or "event")


def _match_observations(events: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Map actions to the observations that name them as their cause."""
    steps: list[CallStep] = []
    for number, event in enumerate(events):
        if "observation" in event:
            if event.get("cause") is not None:  # else it reports a state
                steps.append(CallStep(to_id(event["cause"]), result=number))
        elif event.get("action") is not None:
            steps += [CallStep(None), CallStep(to_id(event.get("id")), call=number)]
    return match_results(steps)


def _read_call(
    kind: str, event: Mapping[str, Any], observation: Mapping[str, Any] | None, cwd: str | None
) -> tuple[RecordedCall, str | None]:
    """The call of an action event, and the directory of the shell after it."""
    args = event["args"] if isinstance(event.get("args"), Mapping) else event
    model = to_mapping(to_mapping(event.get("tool_call_metadata")).get("model_response"))
    usage = parse_usage(model.get("usage"))
    thought = extract_text(args.get("thought"))
    if kind == "run":
        tool, arguments = tool_calls.normalize_call(
            "bash", {"command": args.get("command"), "is_input": args.get("is_input")}
        )
    elif kind in ("read", "edit", "write"):
        tool, arguments = _read_file_action(kind, args)
    elif kind == "run_ipython":
        tool, arguments = _read_ipython_action(str(args.get("code") or ""))
    elif kind in ("finish", "reject"):
        tool, arguments = (
            "finish",
            {"message": extract_text(args.get("final_thought") or args.get("outputs") or "")},
        )
    else:
        tool, arguments = (
            kind,
            {k: str(v) for k, v in args.items() if isinstance(v, str | int) and k != "thought"},
        )
    result = None
    if observation is not None and tool != "finish":
        result = _read_result(tool, arguments, observation, cwd)
        metadata = to_mapping(to_mapping(observation.get("extras")).get("metadata"))
        cwd = to_directory(metadata.get("working_dir")) or cwd
    text = join_text(thought, arguments.get("command") or arguments.get("code") or "")
    return RecordedCall(text, tool, arguments, result, usage), cwd


def _read_result(
    tool: str, arguments: Mapping[str, str], observation: Mapping[str, Any], cwd: str | None
) -> RecordedResult:
    text = extract_text(observation.get("content"))
    extras = to_mapping(observation.get("extras"))
    metadata = to_mapping(extras.get("metadata"))
    codes = (metadata.get("exit_code"), extras.get("exit_code"), observation.get("exit_code"))
    code = next((candidate for candidate in codes if isinstance(candidate, int)), None)
    suffix = str(metadata.get("suffix") or "")
    if tool == "shell":
        refused = code in (None, -1) and NOT_RUN_NOTICE.search(text + suffix) is not None
    else:
        is_edit = tool == "editor" and arguments.get("command") != "view"
        refused = observation.get("observation") == "error" or (is_edit and _REFUSAL.search(text) is not None)
    is_running = STILL_RUNNING_NOTICE.search(suffix or text[-400:]) is not None
    return RecordedResult(
        text + (f"\n{suffix.strip()}" if suffix.strip() and suffix.strip() not in text else ""),
        exit_code=None if code == -1 or is_running else code,
        refused=refused,
        cwd=cwd,
        output=strip_runtime_suffix(text),
    )


def _read_file_action(kind: str, args: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    if kind == "read":
        return tool_calls.normalize_call("str_replace_editor", {**args, "command": "view"})
    if kind == "write":
        return tool_calls.normalize_call("write_file", args)
    command = str(args.get("command") or "")
    if command:
        return tool_calls.normalize_call("str_replace_editor", args)
    start, end = args.get("start"), args.get("end")
    content = str(args.get("content") or "")
    path = str(args.get("path") or "")
    if isinstance(start, int) and isinstance(end, int) and content:
        # The LLM-based editor receives a draft of these lines; the recording does not show its result.
        return "editor", {"command": "edit", "path": path, "content": content}
    return tool_calls.normalize_call("write_file", {"path": path, "content": content})


def _read_ipython_action(code: str) -> tuple[str, dict[str, str]]:
    """Convert an editor call of the agent skills; other Python code becomes a program on standard input."""
    try:
        tree = ast.parse(code)
        calls = [
            statement.value
            for statement in tree.body
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        calls = []
    for call in calls:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        values = [argument.value if isinstance(argument, ast.Constant) else None for argument in call.args]
        keywords = {
            keyword.arg: keyword.value.value
            for keyword in call.keywords
            if isinstance(keyword.value, ast.Constant)
        }
        path = str(keywords.get("file_name") or keywords.get("path") or (values[0] if values else ""))
        if name in ("open_file", "goto_line", "scroll_down", "scroll_up"):
            return "editor", {"command": "view", "path": path}
        if name == "create_file":
            return "editor", {"command": "create", "path": path, "content": ""}
        if name == "edit_file_by_replace":
            old = keywords.get("to_replace", values[1] if len(values) > 1 else "")
            new = keywords.get("new_content", values[2] if len(values) > 2 else "")
            return "editor", {"command": "str_replace", "path": path, "old": str(old), "new": str(new)}
        if name == "insert_content_at_line":
            line = keywords.get("line_number", values[1] if len(values) > 1 else 1)
            content = keywords.get("content", values[2] if len(values) > 2 else "")
            before = int(line) - 1 if isinstance(line, int) else 0
            return "editor", {
                "command": "insert",
                "path": path,
                "line": str(max(before, 0)),
                "new": str(content),
            }
        if name in _IPYTHON_EDITS:
            return "editor", {"command": "edit", "path": path, "new": code}
    return "shell", {"command": f"python3 - <<'PYTHON'\n{code}\nPYTHON"}


def _flatten_events(history: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Flatten the events; the oldest form contains pairs of action and observation."""
    events: list[Mapping[str, Any]] = []
    for item in history:
        if isinstance(item, Mapping):
            events.append(item)
        elif isinstance(item, list):
            events += [part for part in item if isinstance(part, Mapping)]
    return events


_RESULT_KINDS = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
_OTHER_KINDS = (
    "Message", "SystemPrompt", "Condensation", "Pause", "Conversation", "Token", "LLMCompletion", "Hook", "Streaming",
    "Interrupt", "ACP",
)  # fmt: skip
"""The first words of events that are neither calls nor results."""


def is_events(data: Any) -> bool:
    return isinstance(data, list) and any(
        isinstance(e, Mapping) and e.get("kind") in ("ActionEvent", "ObservationEvent", "MessageEvent")
        for e in data
    )


def read_events(events: Sequence[Any], name: str) -> RecordedRun:
    """Read the events of one conversation, in order."""
    rows = drop_copies(event for event in events if isinstance(event, Mapping))
    observations = _match_event_observations(rows)
    usages = _read_usages(rows)
    calls = []
    cwd: str | None = None
    counted_responses: set[Any] = set()
    for number, event in enumerate(rows):
        if event.get("kind") != "ActionEvent":
            continue
        tool_name = str(event.get("tool_name") or "")
        if tool_calls.is_thought(tool_name):
            continue
        found = observations.get(number)
        call, cwd = _read_event_call(tool_name, event, None if found is None else rows[found], cwd)
        response = to_id(event.get("llm_response_id"))
        if response not in counted_responses:
            counted_responses.add(response)
            call = call._replace(usage=usages.get(response))
        calls.append(call)
    task = next(
        (
            extract_text((e.get("llm_message") or {}).get("content"))
            for e in rows
            if e.get("kind") == "MessageEvent" and e.get("source") == "user"
        ),
        "",
    )
    return RecordedRun(
        id=name,
        format="openhands-v1",
        calls=calls,
        task=task,
        workspace=_find_first_directory(rows),
        unknown_items=count_forms(str(row.get("kind")) for row in rows if _is_unknown(row)),
    )


def _is_unknown(row: Mapping[str, Any]) -> bool:
    """Whether an event is not known and may carry a call or its result."""
    kind = str(row.get("kind"))
    is_known = kind in _RESULT_KINDS or kind.startswith(_OTHER_KINDS)
    return not _is_action(row) and not is_known and tool_calls.may_carry_call(row)


def _match_event_observations(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Map actions to their observations: by the id of the action's event, else by the call id. Both may be used again."""
    by_event: list[CallStep] = []
    for number, row in enumerate(rows):
        if _is_action(row):
            by_event += [CallStep(None), CallStep(f"e{row.get('id')}", call=number)]
        elif row.get("action_id") is not None:
            by_event.append(CallStep(f"e{row['action_id']}", result=number))
    actions = {result: action for action, result in match_results(by_event).items()}
    steps: list[CallStep] = []
    reply: str | None = None
    for number, row in enumerate(rows):
        call_id = to_id(row.get("tool_call_id"))
        if _is_action(row):
            response = to_id(row.get("llm_response_id"))
            if response is None or response != reply:
                steps.append(CallStep(None))
            reply = response
            steps.append(CallStep(call_id, call=number))
        elif call_id is not None or number in actions:
            reply = None
            steps.append(CallStep(call_id, call=actions.get(number), result=number))
    return match_results(steps)


def _is_action(row: Mapping[str, Any]) -> bool:
    return row.get("kind") == "ActionEvent"


def _read_event_call(
    tool_name: str, event: Mapping[str, Any], result_event: Mapping[str, Any] | None, cwd: str | None
) -> tuple[RecordedCall, str | None]:
    """The call of an action event, and the directory of the shell after it."""
    action = to_mapping(event.get("action"))
    arguments = {k: v for k, v in action.items() if k != "kind" and v is not None}
    tool, normalized = tool_calls.normalize_call(tool_name, arguments)
    reply = join_text(
        extract_text(event.get("thought")),
        normalized["command"] if tool == "shell" else json.dumps(normalized),
    )
    result = None
    if result_event is not None and tool != "finish":
        result = _read_event_result(tool, result_event, cwd)
        metadata = to_mapping(to_mapping(result_event.get("observation")).get("metadata"))
        cwd = to_directory(metadata.get("working_dir")) or cwd
    return RecordedCall(reply, tool, normalized, result), cwd


def _read_event_result(tool: str, event: Mapping[str, Any], cwd: str | None) -> RecordedResult:
    observation = to_mapping(event.get("observation"))
    text = extract_text(
        observation.get("content")
        or observation.get("output")
        or event.get("error")
        or event.get("rejection_reason")
    )
    metadata = to_mapping(observation.get("metadata"))
    codes = (metadata.get("exit_code"), observation.get("exit_code"))
    code = next((code for code in codes if isinstance(code, int) and code != -1), None)
    suffix = extract_text(metadata.get("suffix")).strip()
    is_error = observation.get("is_error") is True or bool(observation.get("error"))
    refused = event.get("kind") in ("AgentErrorEvent", "UserRejectObservation")
    if tool != "shell":
        refused = refused or is_error
    elif code is None:
        refused = refused or is_error or NOT_RUN_NOTICE.search(text + suffix) is not None
    return RecordedResult(
        f"{text}\n{suffix}".strip("\n") if suffix else text,
        exit_code=code,
        refused=refused,
        timed_out=observation.get("timeout") is True and not STILL_RUNNING_NOTICE.search(suffix),
        cwd=cwd,
        changes=_read_changes(observation) if tool == "editor" and not refused else None,
        output=strip_runtime_suffix(text),
    )


def _read_changes(observation: Mapping[str, Any]) -> tuple[FileChange, ...] | None:
    """The change in an editor observation that contains the old and the new content."""
    path, old, new = observation.get("path"), observation.get("old_content"), observation.get("new_content")
    if observation.get("command") == "view":
        return ()
    if not isinstance(path, str) or not isinstance(new, str):
        return None
    before = _sha256(old) if isinstance(old, str) and observation.get("prev_exist") is not False else None
    after = _sha256(new)
    return () if before == after else (FileChange(path=path, before=before, after=after),)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read_usages(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    """Token counts by response, as far as the recorded statistics list them."""
    usages: dict[Any, Any] = {}
    for event in rows:
        value = event.get("value")
        metrics = value.get("usage_to_metrics") if isinstance(value, Mapping) else None
        for of_model in metrics.values() if isinstance(metrics, Mapping) else ():
            for usage in (of_model.get("token_usages") or []) if isinstance(of_model, Mapping) else ():
                if isinstance(usage, Mapping) and usage.get("response_id"):
                    usages[str(usage["response_id"])] = parse_usage(usage)
    return usages


def _find_first_directory(rows: Sequence[Mapping[str, Any]]) -> str | None:
    for event in rows:
        observation = event.get("observation")
        metadata = observation.get("metadata") if isinstance(observation, Mapping) else None
        if (directory := to_directory(to_mapping(metadata).get("working_dir"))) is not None:
            return directory
    return None
