"""Reader of ATIF, the Agent Trajectory Interchange Format, for runs of any agent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from langgraph_takeover.handoff.readers import mini_swe_agent, tool_names
from langgraph_takeover.handoff.readers.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    TraceError,
    extract_text,
    join_text,
    parse_usage,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.trace.atif import EVENTS_KEY, TRACE_KEY
from langgraph_takeover.handoff.trace.events import UNREADABLE, Trace

_EXIT_CODE = re.compile(
    r"<returncode>(-?\d{1,9})</returncode>|\[(?:exit code|The command completed with exit code):? (-?\d{1,9})\.?\]"
    r"|^Exit code:? (-?\d{1,9})$|Process exited with code (-?\d{1,9})",
    re.M,
)
_REFUSAL = re.compile(
    r"^ERROR|^Error: |No replacement was performed|<tool_use_error>|String to replace not found|has NOT been applied"
    r"|has not been read yet|did not appear verbatim|^Failed to (?:edit|apply)|Cannot execute multiple commands",
    re.M,
)


def is_atif(data: Any) -> bool:
    return (
        isinstance(data, Mapping)
        and isinstance(data.get("steps"), list)
        and str(data.get("schema_version", "")).startswith("ATIF-")
    )


def read_own_trace(data: Mapping[str, Any], name: str) -> Trace | None:
    """Restore a trace that this project exported as ATIF; None if another program wrote the document."""
    metadata = to_mapping(data.get("extra")).get(TRACE_KEY)
    if not isinstance(metadata, Mapping):
        return None
    events: list[dict[str, Any]] = []
    task = ""
    for step in data["steps"]:
        if isinstance(step, Mapping) and step.get("source") == "user":
            task = task or extract_text(step.get("message"))
        events += _read_own_events(step) if isinstance(step, Mapping) else []
    try:
        return Trace.model_validate({**metadata, "events": events, "task": task})
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: {TRACE_KEY}.{location}: {first['msg']}") from error


def _read_own_events(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    call = next(iter(to_mappings(step.get("tool_calls"))), {})
    result = next(iter(to_mappings(to_mapping(step.get("observation")).get("results"))), {})
    events = []
    for fields in to_mappings(to_mapping(step.get("extra")).get(EVENTS_KEY)):
        if fields.get("kind") == "action":
            native_fields = {
                "text": step.get("message"),
                "arguments": call.get("arguments", {}),
                "usage": step.get("metrics"),
            }
        else:
            native_fields = {"text": result.get("content")}
        events.append({**fields, **native_fields})
    return events


def read(data: Mapping[str, Any], name: str) -> RecordedRun:
    """Read an ATIF document of any version 1; the observation of a step contains the results of its tool calls."""
    agent = to_mapping(data.get("agent"))
    agent_name = str(agent.get("name") or "")
    calls = []
    task = ""
    for step in data["steps"]:
        if not isinstance(step, Mapping):
            continue
        message = extract_text(step.get("message"))
        if step.get("source") == "user" and not task:
            task = message
        if step.get("source") != "agent":
            continue
        calls += _read_calls(step, message, agent_name)
    model = str(agent.get("model_name") or "")
    original = str(to_mapping(agent.get("extra")).get("original_format") or "")
    return RecordedRun(
        id=str(data.get("session_id") or data.get("trajectory_id") or name),
        format="atif",
        calls=calls,
        task=task,
        model=model,
        keeps_directory=not (
            agent_name.startswith("mini-swe-agent") or original.startswith("mini-swe-agent")
        ),
    )


def _read_calls(step: Mapping[str, Any], message: str, agent_name: str) -> list[RecordedCall]:
    raw_calls = to_mappings(step.get("tool_calls"))
    results = to_mappings(to_mapping(step.get("observation")).get("results"))
    usage = parse_usage(step.get("metrics"))
    if not raw_calls:
        blocks = mini_swe_agent.BASH_BLOCK.findall(message) if agent_name.startswith("mini-swe-agent") else []
        if blocks and len(blocks) != 1:
            output = extract_text(results[0].get("content")) if results else ""
            return [RecordedCall(message, UNREADABLE, {}, RecordedResult(output, refused=True), usage)]
        return []
    by_id = {str(r["source_call_id"]): r for r in results if r.get("source_call_id") is not None}
    unnamed = [r for r in results if r.get("source_call_id") is None]
    calls = []
    for position, call in enumerate(raw_calls):
        arguments = call.get("arguments")
        name = str(call.get("function_name") or "")
        if tool_names.is_thought(name):
            continue
        tool, normalized = tool_names.normalize_call(
            name, arguments if isinstance(arguments, Mapping) else {}
        )
        answer = by_id.get(str(call.get("tool_call_id")))
        if answer is None and not by_id and position < len(unnamed):
            answer = unnamed[position]
        result = (
            None if answer is None else _read_result(tool, normalized, extract_text(answer.get("content")))
        )
        if (
            tool == "shell"
            and tool_names.is_submission(normalized["command"])
            and (result is None or result.exit_code is None)
        ):
            tool = "finish"
        text = join_text(
            message if position == 0 else "", normalized.get("command", "") if tool == "shell" else ""
        )
        calls.append(RecordedCall(text, tool, normalized, result, usage if position == 0 else None))
    return calls


def _read_result(tool: str, arguments: Mapping[str, str], output: str) -> RecordedResult:
    code = _EXIT_CODE.search(output)
    is_edit = tool == "editor" and arguments.get("command") != "view"
    exit_code = next((int(group) for group in code.groups() if group is not None), None) if code else None
    timed_out = exit_code is None and mini_swe_agent.TIMEOUT_NOTICE.search(output) is not None
    return RecordedResult(
        output,
        exit_code=exit_code,
        refused=is_edit and _REFUSAL.search(output) is not None,
        timed_out=timed_out,
        output=mini_swe_agent.extract_output(output) if "<returncode>" in output else output,
    )
