"""Rows of sessions as external agents write them, and short answers about the trace that is read from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.readers import parse_trace, read_traces
from langgraph_takeover.handoff.trace.events import Event, Trace

SESSIONS = Path(__file__).parent / "sessions"
LATER = "\n\nThe user said later:\n\n"
BASH = "```bash\n{}\n```"
Row = dict[str, Any]


def read_one(path: Path, **options: str) -> Trace:
    """The only trace of a file."""
    (trace,) = read_traces(path, **options)
    assert isinstance(trace, Trace)
    return trace


def load(name: str) -> Trace:
    return read_one(SESSIONS / name)


def load_rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (SESSIONS / name).read_text().splitlines()]


def list_actions(trace: Trace) -> list[Event]:
    return [event for event in trace.events if event.kind == "action"]


def list_observations(trace: Trace, tool: str = "") -> list[Event]:
    return [event for event in trace.events if event.kind == "observation" and tool in ("", event.tool)]


def list_texts(trace: Trace) -> list[str]:
    """The text of each observation."""
    return [event.text for event in list_observations(trace)]


def list_commands(trace: Trace) -> list[str]:
    """The command of each action, or the name of its tool."""
    return [event.arguments.get("command", event.tool) for event in list_actions(trace)]


def list_edits(trace: Trace) -> list[list[str]]:
    """The changed files of each event that changes any."""
    return [[change.path for change in event.changes] for event in trace.events if event.changes]


def list_points(trace: Trace) -> dict[str, int | None]:
    """The kinds of the points, in their order, with the actions at which they are."""
    return {point.kind: step.action_index for step in annotate_steps(trace) for point in step.points}


def text_part(text: str) -> Row:
    return {"type": "text", "text": text}


def claude_row(kind: str, content: Any, number: int, /, **fields: Any) -> Row:
    message = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"m{number}", "model": "m"}
    row = {"type": kind, "uuid": f"u{number}", "sessionId": "s", "cwd": "/repo", "version": "2.1.332"}
    return {**row, "message": message, **fields}


def claude_rows(*contents: Any, **fields: Any) -> list[Row]:
    """The rows of a session: a mapping is a part of a reply, a list has results, a text is a request."""
    rows = []
    for number, content in enumerate(contents):
        parent = f"u{number - 1}" if number else None
        kind, parts = ("assistant", [content]) if isinstance(content, dict) else ("user", content)
        rows.append(claude_row(kind, parts, number, **{"parentUuid": parent, **fields}))
    return rows


def claude_call(call_id: str, name: str = "Bash", **arguments: Any) -> Row:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def claude_result(call_id: str, content: Any, **fields: Any) -> list[Row]:
    return [{"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}]


def claude_steps(calls: Iterable[tuple[str, dict[str, Any], str]]) -> list[Any]:
    """Calls with their results: name, arguments and text, which states a failure by its exit code."""
    steps: list[Any] = []
    for number, (name, arguments, text) in enumerate(calls):
        steps.append(claude_call(f"t{number}", name, **arguments))
        steps.append(claude_result(f"t{number}", text, is_error=text.startswith("Exit code")))
    return steps


def codex_row(kind: str, **payload: Any) -> Row:
    return {"timestamp": "2026-11-28T03:00:00.000Z", "type": kind, "payload": payload}


def codex_item(kind: str, **fields: Any) -> Row:
    return codex_row("response_item", type=kind, **fields)


def codex_meta(cwd: str = "/repo", **fields: Any) -> Row:
    return codex_row("session_meta", **{"id": "s", "cwd": cwd, "cli_version": "0.171.0", **fields})


def codex_request(*texts: str | Row) -> Row:
    content = [{"type": "input_text", "text": each} if isinstance(each, str) else each for each in texts]
    return codex_item("message", role="user", content=content)


def codex_call(call_id: str, name: str = "exec_command", **arguments: Any) -> Row:
    return codex_item("function_call", name=name, call_id=call_id, arguments=json.dumps(arguments))


def codex_result(call_id: str, output: Any) -> Row:
    return codex_item("function_call_output", call_id=call_id, output=output)


def opencode_session(*parts: Row, directory: str = "/w") -> Row:
    """A session with a request and one reply of these parts."""
    messages = [
        {"info": {"id": "m1", "role": "user"}, "parts": [text_part("Fix it.")]},
        {"info": {"id": "m2", "role": "assistant"}, "parts": list(parts)},
    ]
    return {"info": {"id": "ses_1", "directory": directory}, "messages": messages}


def opencode_call(tool: str, call_id: str = "c1", **state: Any) -> Row:
    return {"type": "tool", "tool": tool, "callID": call_id, "state": state}


def mini_result(code: int, output: str) -> Row:
    return {"role": "user", "content": f"<returncode>{code}</returncode>\n<output>\n{output}\n</output>"}


def mini_run(*steps: tuple[str, int | None, str], task: str = "fix", **fields: Any) -> Row:
    """A run of commands with exit code and output; exit code None is a timeout."""
    messages: list[Row] = [{"role": "user", "content": task}]
    for command, code, output in steps:
        messages.append({"role": "assistant", "content": BASH.format(command)})
        killed = f"The last command <command>{command}</command> timed out and has been killed."
        messages.append({"role": "user", "content": killed} if code is None else mini_result(code, output))
    return {"trajectory_format": "mini-swe-agent-1", "messages": messages, **fields}


def atif_document(*steps: Row) -> Row:
    return {"schema_version": "ATIF-v1.6", "agent": {"name": "a"}, "steps": list(steps)}


def atif_call(name: str, call_id: str = "c", **arguments: Any) -> Row:
    return {"tool_call_id": call_id, "function_name": name, "arguments": arguments}


def atif_results(*results: tuple[str, str]) -> Row:
    """Results, each with the id of its call."""
    return {"results": [{"source_call_id": call_id, "content": content} for call_id, content in results]}


def atif_step(calls: list[Row], results: Row, source: str = "agent") -> Row:
    return {"source": source, "message": "", "tool_calls": calls, "observation": results}


def parse_rows(*rows: Row, **options: str) -> Trace:
    return parse_trace(list(rows), **options)
