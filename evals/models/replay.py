"""A model that plays the recorded actions of a real run, of whatever agent, one after another."""

from __future__ import annotations

import posixpath
import re
import shlex
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.evals.models.scripted import ScriptedModel, Turn
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.readers.tool_names import is_submission
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace
from langgraph_takeover.sandbox.interface import TakeoverError

_CHANGES_SHELL_STATE = re.compile(
    r"(^|[;&|({\n])\s*(cd|pushd|popd|export|unset|set|source|\.|alias|exit|exec|shopt|trap|umask|ulimit)(\s|$)"
    r"|(^|[;&\n])\s*\w+=\S*\s*($|[;&\n])"
)
_SEARCHES = re.compile(r"\s*(search_dir|search_file|find_file)\s+(.*)", re.S)
_PROGRAM_INPUTS = {"", "C-c", "C-d", "C-z"}
_MARKUP = re.compile(r"`{3,}|<(?=/?(?:editor|shell|bash|handoff|finish|tool_call|function)\b)", re.I)
_HEREDOC_MARK = "TAKEOVER_REPLAY_END"


class TrajectoryError(TakeoverError, ValueError):
    """A trajectory that cannot be replayed; the text names the file and why."""


class ReplayModel(ScriptedModel):
    """Gives the recorded action that follows its own replies in the conversation, not those that a view shows it.

    It is no LLM: it reads nothing of what it is told. After the last action it finishes.
    """

    turns: tuple[Turn, ...]
    start: int = 0

    def respond(self, messages: list[BaseMessage]) -> Turn:
        # What a view lets an earlier agent say has no usage.
        own = (message for message in messages if isinstance(message, AIMessage) and message.usage_metadata)
        position = self.start + sum(1 for _ in own)
        if position < len(self.turns):
            return self.turns[position]
        return Turn("The recorded actions end here.", Action("finish", {}))


def read_trajectory(path: Path, number: int = 0, workspace: str = "") -> tuple[Turn, ...]:
    """The actions of the file's run of that number that had an effect. Raises TrajectoryError.

    Refused calls, inputs to a program that still ran, and tools that touch no file are left out. Where the
    repository lies elsewhere than in the recorded machine, absolute paths are moved to `workspace`.
    """
    try:
        traces = list(read_traces(path))
    except TraceError as error:
        raise TrajectoryError(str(error)) from error
    if number >= len(traces):
        raise TrajectoryError(f"{path}: holds {len(traces)} run(s); there is no #{number}")
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
        raise TrajectoryError(f"{path}: no action in it can be carried out, so there is nothing to replay")
    return tuple(turns)


def _relocate_paths(action: Action, old: str, new: str) -> Action:
    """The action with the repository's path exchanged, wherever it stands as a path of its own."""
    if not old or not new or old == new:
        return action
    path = re.compile(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])")
    names = ("command",) if action.tool == "shell" else ("path",)
    texts = {k: path.sub(lambda _: new, v) if k in names else v for k, v in action.arguments.items()}
    return Action(action.tool, texts)


def _convert_action(event: Event, trace: Trace, path: Path) -> Action | None:
    """The action in this runtime's tools; None if it had no effect on the machine."""
    arguments = dict(event.arguments)
    command = arguments.get("command", "")
    if event.tool == "finish" or (is_submission(command) and command.lstrip().startswith("echo ")):
        return Action("finish", {"message": "Submitted."})
    if event.tool == "shell":
        if command in _PROGRAM_INPUTS or arguments.get("is_input") == "true":
            return None
        if command.startswith("apply_patch"):
            raise TrajectoryError(
                f"{path}: event {event.index}: apply_patch is no program of the sandbox; it cannot be replayed"
            )
        return Action("shell", {"command": _convert_command(command, trace)})
    if event.tool != "editor":
        return None
    return _convert_edit(arguments, event, path)


def _convert_command(command: str, trace: Trace) -> str:
    search = _SEARCHES.match(command) if trace.format.startswith("swe-agent") else None
    if search:
        return _convert_search(search[1], search[2])
    if not trace.keeps_shell and _CHANGES_SHELL_STATE.search(command):
        # The recorded agent had a new shell for every command; ours would keep what this one leaves behind.
        return f"(\n{command}\n)"
    return command


def _convert_search(verb: str, rest: str) -> str:
    """SWE-agent's own search commands in terms of grep and find."""
    try:
        words = shlex.split(rest)
    except ValueError:
        words = rest.split()
    what, where = words[0] if words else "", words[1] if len(words) > 1 else "."
    if verb == "find_file":
        return f"find {shlex.quote(where)} -type f -name {shlex.quote(what)}"
    flags = "-rnI" if verb == "search_dir" else "-nI"
    return f"grep {flags} -- {shlex.quote(what)} {shlex.quote(where)}"


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
            f"{path}: event {event.index}: its editor's {command or 'call'} does not say what it wrote; it cannot be replayed"
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
    """What was said beside the action, so that nothing in it reads as a second action."""
    said = event.text
    for value in sorted(event.arguments.values(), key=len, reverse=True):
        if len(value) > 2:
            said = said.replace(value, "")
    said = re.sub(r"```\w*\s*```", "", said)
    return _MARKUP.sub("", said).strip()
