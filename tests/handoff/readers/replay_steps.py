"""Recorded runs as steps for a scripted endpoint: each action as the tool call that an external agent would make."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from langgraph_takeover.handoff.readers.mini_swe_agent import extract_output
from langgraph_takeover.handoff.readers.openhands import strip_runtime_suffix
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace

Step = dict[str, Any]
"""One reply: `text`, `calls`, the scratch `files` to write before it, and the `output` of its command."""
_HEREDOC = re.compile(r"cat <<\s*['\"]?(\w+)['\"]? > ([\w./-]+)\n(.*\n)\1\s*", re.S)
_PLAIN_SED = re.compile(
    r"sed -i (['\"])\d*s/([^/\\^$*\[\]&'\"`]{4,})/([^/\\^$*\[\]&'\"`]*)/g?\1 ([\w./-]+\.py)"
)
_SHOWN_LINE = re.compile(r"^ {0,6}(\d+)\t(.*)$", re.M)
_HIDDEN_LINES = 9000
"""Lines before the scratch text of an edit, so that reading its end shows nothing of the file."""


class Replay(NamedTuple):
    """The steps of a run, and the action index of each recorded action."""

    steps: list[Step]
    indices: dict[int, int]


def build_replay(trace: Trace, agent: str) -> Replay:
    """Convert a run; every reply has one call."""
    steps: list[Step] = []
    indices: dict[int, int] = {}
    events = {event.index: event for event in trace.events}
    actions = [e for e in trace.events if e.kind == "action" and e.tool != UNREADABLE]
    for number, action in enumerate(actions):
        answer = events.get(action.index + 1)
        if action.tool == "finish" or answer is None or answer.kind != "observation":
            continue
        thought = (
            action.text.partition("```")[0].partition("\n\n$ ")[0].removeprefix("THOUGHT:").strip()[:1500]
        )
        converted = list(_convert(action, answer, trace.workspace, agent))
        converted[0]["text"] = thought
        steps += converted
        indices[number] = len(steps) - 1
    return Replay([*steps, {"text": "The work is done."}], indices)


def _convert(action: Event, answer: Event, workspace: str, agent: str) -> Iterator[Step]:
    arguments = dict(action.arguments)
    if action.tool == "editor":
        yield from _convert_editor(arguments, answer, workspace, agent)
        return
    command = arguments.get("command", "")
    changed = [change.path for change in answer.changes]
    created, replaced = _HEREDOC.fullmatch(command), _PLAIN_SED.fullmatch(command)
    if created and len(changed) == 1 and answer.exit_code == 0:
        yield _write(created[2], created[3], agent)
    elif replaced and len(changed) == 1 and answer.exit_code == 0:
        yield from _replace(replaced[4], replaced[2], replaced[3], agent, exists=True)
    else:
        yield _run(command, _find_output(answer), answer.exit_code or 0, agent)


def _find_output(answer: Event) -> str:
    text = answer.text
    if "<returncode>" in text[:200]:
        whole = extract_output(text)
        if whole is not None:
            return whole + "\n" if whole else ""
        body = text.partition("</returncode>")[2].strip("\n")
        return re.sub(r"</?output(?:_head|_tail)?>\n?", "", body)
    return strip_runtime_suffix(text)


def _run(command: str, output: str, code: int, agent: str) -> Step:
    if agent == "codex":
        call = {
            "name": "exec_command",
            "arguments": {"cmd": command, "workdir": "/testbed", "yield_time_ms": 10000},
        }
    else:
        call = {"name": "Bash", "arguments": {"command": command, "description": "Run a command"}}
    return {"calls": [call], "output": {"text": output, "code": code}}


def _convert_editor(arguments: dict[str, str], answer: Event, workspace: str, agent: str) -> Iterator[Step]:
    command = arguments.get("command", "")
    path = _relocate(arguments.get("path", ""), workspace)
    if command == "create":
        yield _write(path, arguments.get("content", ""), agent)
    elif command == "str_replace" and arguments.get("old"):
        yield from _replace(
            path, arguments["old"], arguments.get("new", ""), agent, exists=not answer.refused
        )
    elif command == "view" and (shown := dict(_SHOWN_LINE.findall(answer.text))) and agent != "codex":
        first, last = int(min(shown, key=int)), int(max(shown, key=int))
        lines = "\n".join(shown.get(str(number), "") for number in range(1, last + 1))
        read = {"file_path": posixpath.join("/testbed", path), "offset": first, "limit": last - first + 1}
        yield {"calls": [{"name": "Read", "arguments": read}], "files": {path: lines + "\n"}}
    elif command == "insert":
        anchor = f"anchor of line {arguments.get('line', '')}"
        yield from _replace(
            path, anchor, f"{anchor}\n{arguments.get('new', '')}", agent, exists=not answer.refused
        )
    else:
        shows = (
            f"cat -n {path or '.'}" if _SHOWN_LINE.search(answer.text) else f"find {path or '.'} -maxdepth 2"
        )
        text = "\n".join(f"{n:>6}\t{line}" for n, line in _SHOWN_LINE.findall(answer.text)) or answer.text
        yield _run(shows, text + "\n", 0, agent)


def _relocate(path: str, workspace: str) -> str:
    return (
        posixpath.relpath(path, workspace) if path.startswith(workspace or "/testbed") else path.lstrip("/")
    )


def _write(path: str, content: str, agent: str) -> Step:
    path = path.removeprefix("/testbed/").removeprefix("./")
    if agent == "codex" and not path.startswith("/"):
        lines = "".join(f"+{line}\n" for line in content.removesuffix("\n").split("\n"))
        return {"calls": [_patch(f"*** Add File: {path}\n{lines}")]}
    absolute = posixpath.join("/testbed", path)
    return {"calls": [{"name": "Write", "arguments": {"file_path": absolute, "content": content}}]}


def _replace(path: str, old: str, new: str, agent: str, *, exists: bool) -> Iterator[Step]:
    """An edit of a scratch file that has the old text, unless the agent's edit was refused."""
    path = path.removeprefix("/testbed/").removeprefix("./")
    hidden = "\n" * _HIDDEN_LINES
    files = {path: f"{hidden}{old if exists else ''}\n"}
    if agent == "codex":
        removed = "".join(f"-{line}\n" for line in old.split("\n"))
        added = "".join(f"+{line}\n" for line in new.split("\n"))
        yield {"calls": [_patch(f"*** Update File: {path}\n@@\n{removed}{added}")], "files": files}
        return
    absolute = posixpath.join("/testbed", path)
    end = _HIDDEN_LINES + (old.count("\n") if exists else 0) + 1
    read = {"file_path": absolute, "offset": end + 1, "limit": 1}
    yield {"calls": [{"name": "Read", "arguments": read}], "files": files}
    edit = {"file_path": absolute, "old_string": old, "new_string": new}
    yield {"calls": [{"name": "Edit", "arguments": edit}]}


def _patch(body: str) -> dict[str, Any]:
    return {"name": "apply_patch", "arguments": f"*** Begin Patch\n{body}*** End Patch\n"}
