"""A model that replays the recorded actions of a real run, of any agent."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.evals.models.scripted import ScriptedModel, Turn
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.readers.inference.patches import parse_patch
from langgraph_takeover.handoff.readers.tool_names import is_submission
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace
from langgraph_takeover.sandbox.interface import TakeoverError

_CHANGES_SHELL_STATE = re.compile(
    r"(^|[;&|({\n])[^\S\n]*(cd|pushd|popd|export|unset|set|source|\.|alias|exit|exec|shopt|trap|umask|ulimit)(\s|$)"
    r"|(^|[;&\n])[^\S\n]*\w+=\S*\s*($|[;&\n])"
)
_SEARCHES = re.compile(r"\s*(search_dir|search_file|find_file)\s+(.*)", re.S)
_PROGRAM_INPUTS = {"", "C-c", "C-d", "C-z"}
_MARKUP = re.compile(r"`{3,}|<(?=/?(?:editor|shell|bash|handoff|finish|tool_call|function)\b)", re.I)
_PATCH_PROGRAM = """import json, pathlib
def apply(changes):
    for change in changes:
        path = pathlib.Path(change["path"])
        text = "" if change["is_new"] else path.read_text()
        for old, new in change["hunks"]:
            if old not in text:
                raise SystemExit(f"{path}: lines not found: {old}")
            text = text.replace(old, new, 1) if old else text + new
        if change["target"] != change["path"]:
            path.unlink()
        if change["target"]:
            target = pathlib.Path(change["target"])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
"""
_HEREDOC_MARK = "TAKEOVER_REPLAY_END"


class TrajectoryError(TakeoverError, ValueError):
    """A trajectory that cannot be replayed."""


class ReplayModel(ScriptedModel):
    """Replays the recorded actions in order, then finishes; ignores the content of the conversation.

    The number of its own replies selects the next action. Replies that a view attributes to the predecessor do not count.
    """

    turns: tuple[Turn, ...]
    start: int = 0

    def respond(self, messages: list[BaseMessage]) -> Turn:
        # Messages that a view attributes to an earlier agent have no usage.
        own = (message for message in messages if isinstance(message, AIMessage) and message.usage_metadata)
        position = self.start + sum(1 for _ in own)
        if position < len(self.turns):
            return self.turns[position]
        return Turn("The recorded actions end here.", Action("finish", {}))


def read_trajectory(path: Path, number: int = 0, workspace: str = "") -> tuple[Turn, ...]:
    """The actions of run `number` of the file that had an effect.

    Omits refused calls, input to a running program, and tools that touch no file. If `workspace` differs from the
    recorded repository path, absolute paths are rewritten. Raises TrajectoryError.
    """
    try:
        traces = list(read_traces(path))
    except TraceError as error:
        raise TrajectoryError(str(error)) from error
    if number >= len(traces):
        raise TrajectoryError(f"{path}: run #{number} not found (the file has {len(traces)} run(s), from #0)")
    trace = traces[number]
    if isinstance(trace, TraceError):
        raise TrajectoryError(str(trace)) from trace
    answers = {event.index - 1: event for event in trace.events if event.kind == "observation"}
    turns = []
    for event in trace.events:
        if event.kind != "action" or event.tool == UNREADABLE:
            continue
        answer = answers.get(event.index)
        if answer is not None and answer.refused:
            continue
        action = _convert_action(event, trace, path)
        if action is not None:
            turns.append(Turn(_extract_thought(event), _relocate_paths(action, trace.workspace, workspace)))
    if not turns:
        raise TrajectoryError(f"{path}: nothing to replay (the run has no shell or editor action)")
    return tuple(turns)


def _relocate_paths(action: Action, old: str, new: str) -> Action:
    """The action with the repository's path replaced wherever it occurs as a complete path."""
    if not old or not new or old == new:
        return action
    path = re.compile(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])")
    names = ("command",) if action.tool == "shell" else ("path",)
    texts = {k: path.sub(lambda _: new, v) if k in names else v for k, v in action.arguments.items()}
    return Action(action.tool, texts)


def _convert_action(event: Event, trace: Trace, path: Path) -> Action | None:
    """The action in terms of this runtime's tools; None if it had no effect on the sandbox."""
    arguments = dict(event.arguments)
    command = arguments.get("command", "")
    if event.tool == "finish" or (is_submission(command) and command.lstrip().startswith("echo ")):
        return Action("finish", {"message": "Submitted."})
    if event.tool == "shell":
        if command in _PROGRAM_INPUTS or arguments.get("is_input") == "true":
            return None
        if command.startswith("apply_patch"):
            return Action("shell", {"command": _convert_patch(command, f"{path}: event {event.index}")})
        return Action("shell", {"command": _convert_command(command, trace)})
    if event.tool != "editor":
        return None
    return _convert_edit(arguments, event, path)


def _convert_command(command: str, trace: Trace) -> str:
    search = _SEARCHES.match(command) if trace.format.startswith("swe-agent") else None
    if search:
        return _convert_search(search[1], search[2])
    if not trace.keeps_shell and _CHANGES_SHELL_STATE.search(command):
        # The recorded agent had a new shell per command; the sandbox's shell would preserve this command's state.
        return f"(\n{command}\n)"
    return command


def _convert_patch(command: str, location: str) -> str:
    """A Python program that applies the patch, because the sandbox has no `apply_patch`."""
    changes = [
        {
            "path": change.path,
            "target": "" if change.is_deleted else change.new_path or change.path,
            "is_new": change.is_new,
            "hunks": [
                ["".join(f"{line}\n" for line in lines) for lines in (h.old, h.new)] for h in change.hunks
            ],
        }
        for change in parse_patch(command)
    ]
    if not changes:
        raise TrajectoryError(f"{location}: cannot replay apply_patch without a readable patch")
    return _format_heredoc("python3 -", _PATCH_PROGRAM + f"apply(json.loads({json.dumps(changes)!r}))")


def _convert_search(verb: str, rest: str) -> str:
    """SWE-agent's search commands in terms of grep and find."""
    try:
        words = shlex.split(rest)
    except ValueError:
        words = rest.split()
    pattern, where = words[0] if words else "", words[1] if len(words) > 1 else "."
    if verb == "find_file":
        return f"find {shlex.quote(where)} -type f -name {shlex.quote(pattern)}"
    flags = "-rnI" if verb == "search_dir" else "-nI"
    return f"grep {flags} -- {shlex.quote(pattern)} {shlex.quote(where)}"


def _convert_edit(arguments: dict[str, str], event: Event, path: Path) -> Action:
    command, target = arguments.get("command", ""), arguments.get("path", "")
    quoted = shlex.quote(target)
    if command == "write" or (command == "insert" and len(arguments.get("line", "")) > 6):
        content = arguments.get("content", arguments.get("new", "")).removesuffix("\n")
        operator = ">" if command == "write" else ">>"
        parent = shlex.quote(posixpath.dirname(target) or ".")
        return Action(
            "shell", {"command": f"mkdir -p {parent}\n{_format_heredoc(f'cat {operator} {quoted}', content)}"}
        )
    if command == "lines":
        first, last = int(arguments["start"]), int(arguments["end"])
        body = arguments.get("new", "")
        new = _format_heredoc("  cat", body) if body else ""
        return Action(
            "shell",
            {
                "command": f"{{ head -n {max(first - 1, 0)} {quoted}\n{new}\n  tail -n +{last + 1} {quoted}\n}} > {quoted}.new\n"
                f"cat {quoted}.new > {quoted} && rm {quoted}.new"
            },
        )
    if command not in ("view", "create", "str_replace", "insert", "undo"):
        raise TrajectoryError(
            f"{path}: event {event.index}: cannot replay the editor's {command or 'call'}, which does not record the new text"
        )
    return Action("editor", {k: v for k, v in arguments.items() if k in _FIELDS[command]})


_FIELDS = {
    "view": ("command", "path", "start", "end"),
    "create": ("command", "path", "content"),
    "str_replace": ("command", "path", "old", "new"),
    "insert": ("command", "path", "line", "new"),
    "undo": ("command", "path"),
}


def _format_heredoc(program: str, text: str) -> str:
    mark = _HEREDOC_MARK
    while mark in text:
        mark += "_"
    return f"{program} <<'{mark}'\n{text}\n{mark}"


def _extract_thought(event: Event) -> str:
    """The text beside the action, without anything that could be parsed as a second action."""
    thought = event.text
    for value in sorted(event.arguments.values(), key=len, reverse=True):
        if len(value) > 2:
            thought = thought.replace(value, "")
    thought = re.sub(r"```\w*\s*```", "", thought)
    return _MARKUP.sub("", thought).strip()
