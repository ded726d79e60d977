"""Recorded runs as steps for a scripted endpoint: each action as the tool call that an external agent would make."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from langgraph_takeover.handoff.agents.mini_swe_agent import extract_output
from langgraph_takeover.handoff.readers.openhands import strip_runtime_suffix
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace

Step = dict[str, Any]
"""One reply: `text`, `calls`, the scratch `files` to write before it, and the `output` of its command."""
MINI_WORKSPACE = "/testbed"
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
        command = action.arguments.get("command", "")
        thought = action.text.partition("```")[0].removesuffix(command).removeprefix("THOUGHT:").strip()
        converted = list(_Converter(trace.workspace or MINI_WORKSPACE, agent).convert(action, answer))
        converted[0]["text"] = thought[:1500]
        steps += converted
        indices[number] = len(steps) - 1
    return Replay([*steps, {"text": "The work is done."}], indices)


class _Converter:
    """Converts the actions of one run to calls of one agent."""

    def __init__(self, workspace: str, agent: str) -> None:
        self.workspace = workspace
        self.is_codex = agent == "codex"

    def convert(self, action: Event, answer: Event) -> Iterator[Step]:
        arguments = dict(action.arguments)
        if action.tool == "editor":
            yield from self._convert_editor(arguments, answer)
            return
        command = arguments.get("command", "")
        is_edit = len(answer.changes) == 1 and answer.exit_code == 0
        created, replaced = _HEREDOC.fullmatch(command), _PLAIN_SED.fullmatch(command)
        if created and is_edit:
            yield self._write(created[2], created[3])
        elif replaced and is_edit:
            yield from self._replace(replaced[4], replaced[2], replaced[3], exists=True)
        else:
            yield self._run(command, _find_output(answer), answer.exit_code or 0)

    def _convert_editor(self, arguments: dict[str, str], answer: Event) -> Iterator[Step]:
        command, path = arguments.get("command", ""), self._make_absolute(arguments.get("path", ""))
        shown = dict(_SHOWN_LINE.findall(answer.text))
        if command == "create":
            yield self._write(path, arguments.get("content", ""))
        elif command == "str_replace" and arguments.get("old"):
            yield from self._replace(
                path, arguments["old"], arguments.get("new", ""), exists=not answer.refused
            )
        elif command == "insert":
            anchor = f"anchor of line {arguments.get('line', '')}"
            new = f"{anchor}\n{arguments.get('new', '')}"
            yield from self._replace(path, anchor, new, exists=not answer.refused)
        elif command == "view" and shown and not self.is_codex:
            first, last = int(min(shown, key=int)), int(max(shown, key=int))
            lines = "\n".join(shown.get(str(number), "") for number in range(1, last + 1))
            read = {"file_path": path, "offset": first, "limit": last - first + 1}
            yield {"calls": [{"name": "Read", "arguments": read}], "files": {path: lines + "\n"}}
        else:
            shows = f"cat -n {path}" if shown else f"find {path} -maxdepth 2"
            text = "\n".join(f"{n:>6}\t{line}" for n, line in shown.items()) or answer.text
            yield self._run(shows, text + "\n", 0)

    def _make_absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workspace, path))

    def _run(self, command: str, output: str, code: int) -> Step:
        if self.is_codex:
            arguments = {"cmd": command, "workdir": self.workspace, "yield_time_ms": 10000}
            call = {"name": "exec_command", "arguments": arguments}
        else:
            call = {"name": "Bash", "arguments": {"command": command, "description": "Run a command"}}
        return {"calls": [call], "output": {"text": output, "code": code}}

    def _write(self, path: str, content: str) -> Step:
        path = self._make_absolute(path)
        if self.is_codex:
            lines = "".join(f"+{line}\n" for line in content.removesuffix("\n").split("\n"))
            return {"calls": [_patch(f"*** Add File: {self._shorten(path)}\n{lines}")]}
        return {"calls": [{"name": "Write", "arguments": {"file_path": path, "content": content}}]}

    def _replace(self, path: str, old: str, new: str, *, exists: bool) -> Iterator[Step]:
        """Edit a scratch file that has the old text, unless the recorded edit was refused."""
        path = self._make_absolute(path)
        hidden = "\n" * _HIDDEN_LINES
        files = {path: f"{hidden}{old if exists else ''}\n"}
        if self.is_codex:
            removed = "".join(f"-{line}\n" for line in old.split("\n"))
            added = "".join(f"+{line}\n" for line in new.split("\n"))
            body = f"*** Update File: {self._shorten(path)}\n@@\n{removed}{added}"
            yield {"calls": [_patch(body)], "files": files}
            return
        # Claude Code edits only files that it has read.
        end = _HIDDEN_LINES + (old.count("\n") if exists else 0) + 1
        read = {"file_path": path, "offset": end + 1, "limit": 1}
        yield {"calls": [{"name": "Read", "arguments": read}], "files": files}
        edit = {"file_path": path, "old_string": old, "new_string": new}
        yield {"calls": [{"name": "Edit", "arguments": edit}]}

    def _shorten(self, path: str) -> str:
        return path.removeprefix(self.workspace.rstrip("/") + "/")


def _find_output(answer: Event) -> str:
    text = answer.text
    if "<returncode>" not in text[:200]:
        return strip_runtime_suffix(text)
    whole = extract_output(text)
    if whole is not None:
        return whole + "\n" if whole else ""
    body = text.partition("</returncode>")[2].strip("\n")
    return re.sub(r"</?output(?:_head|_tail)?>\n?", "", body)


def _patch(body: str) -> dict[str, Any]:
    return {"name": "apply_patch", "arguments": f"*** Begin Patch\n{body}*** End Patch\n"}
