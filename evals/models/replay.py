"""A model that replays the recorded actions of a real run, of any agent; and the task of each recording."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.evals.models.model_names import ModelName, ModelNameError, parse_model_name
from langgraph_takeover.evals.models.scripted import ScriptedModel, Turn
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.readers import TraceError, describe_warnings, read_traces
from langgraph_takeover.handoff.recordings.file_programs import parse_patch
from langgraph_takeover.handoff.recordings.tool_calls import is_submission
from langgraph_takeover.handoff.recordings.workspace import is_below
from langgraph_takeover.handoff.shell.syntax import list_spellings
from langgraph_takeover.handoff.trace.events import UNREADABLE, Action, Event, Trace, action_indices

if TYPE_CHECKING:
    from langgraph_takeover.evals.tasks import Task

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
        text = "" if change["is_new"] else path.read_bytes().decode()
        for old, new in change["hunks"]:
            if old not in text:
                old, new = (part.replace("\\n", "\\r\\n") for part in (old, new))
            if old not in text:
                raise SystemExit(f"{path}: lines not found: {old}")
            text = text.replace(old, new, 1) if old else text + new
        if change["target"] != change["path"]:
            path.unlink()
        if change["target"]:
            target = pathlib.Path(change["target"])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
"""
_HEREDOC_MARK = "TAKEOVER_REPLAY_END"
_SUFFIXES = (".json", ".jsonl", ".traj")
_MAX_ID_CHARS = 255
_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*__[A-Za-z0-9_.-]+-\d+")
"""The form of an id of SWE-bench, which a recording that names another task cannot have by accident."""


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


class RecordedStep(NamedTuple):
    """One action that a replay repeats."""

    turn: Turn
    number: int
    """The index of the action in the recording, as takeover-detect counts."""
    observation: Event | None
    comparison: Literal["output", "success", "nothing"]
    """What is comparable: the output of the recorded command itself; of another tool's call, whether it succeeds."""


class Recording(NamedTuple):
    """A recorded run and the steps of its replay."""

    trace: Trace
    steps: tuple[RecordedStep, ...]


def read_trajectory(path: Path, number: int = 0, workspace: str = "") -> tuple[Turn, ...]:
    """The actions that `read_recording` reads. Raises TrajectoryError."""
    return tuple(step.turn for step in read_recording(path, number, workspace).steps)


def read_recording(path: Path, number: int = 0, workspace: str = "") -> Recording:
    """Run `number` of the file, with its actions that had an effect.

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
    numbers = action_indices(trace.events)
    steps = []
    for event in trace.events:
        if event.kind != "action" or event.tool == UNREADABLE:
            continue
        answer = answers.get(event.index)
        if answer is not None and answer.refused:
            continue
        action = _convert_action(event, trace, path)
        if action is not None:
            directory = answer.cwd if answer is not None and answer.cwd is not None else ""
            turn = Turn(_extract_thought(event), _relocate_paths(action, trace, directory, workspace))
            steps.append(RecordedStep(turn, numbers[event.index], answer, _choose_comparison(event, action)))
    if not steps:
        raise TrajectoryError(f"{path}: nothing to replay (the run has no shell or editor action)")
    return Recording(trace, tuple(steps))


def _choose_comparison(event: Event, action: Action) -> Literal["output", "success", "nothing"]:
    command = event.arguments.get("command", "")
    if event.tool != "shell" or command.startswith("apply_patch"):
        return "nothing" if action.tool == "finish" else "success"
    return "output" if command in action.arguments.get("command", "") else "nothing"


def _relocate_paths(action: Action, trace: Trace, directory: str, new: str) -> Action:
    """The action with the repository's path replaced wherever it occurs as a complete path.

    `directory` is that of the shell: above the repository, its relative path is replaced too.
    """
    old = trace.workspace
    if not old or not new or old == new:
        return action
    if old == "/":
        tops = sorted(
            {change.path.split("/")[0] for event in trace.events for change in event.changes} - {""}
        )
        names = "|".join(map(re.escape, tops))
        forms = [rf"(?<![\w./-])/(?=(?:{names})(?![\w.-]))" if names else "", r"(?<=\bcd )/(?=\s|$|[;&])"]
        path, target = re.compile("|".join(filter(None, forms))), new.rstrip("/") + "/"
    else:
        names = "|".join(map(re.escape, list_spellings(old)))
        forms = [rf"(?<![\w.-])(?:{names})(?![\w.-])"]
        if directory.startswith("/") and is_below(old, directory):
            inner = re.escape(posixpath.relpath(old, directory))
            forms += [rf"(?<![\w./-])(?:\./)?{inner}(?=/)", rf"(?<=\bcd )(?:\./)?{inner}(?![\w./-])"]
        path, target = re.compile("|".join(forms)), new
    fields = ("command",) if action.tool == "shell" else ("path",)
    texts = {k: path.sub(lambda _: target, v) if k in fields else v for k, v in action.arguments.items()}
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


def list_recorded_points(name: str) -> list[str]:
    """The kinds of points of a replay's recording, as takeover-detect finds them. Raises TrajectoryError."""
    model = parse_model_name(name)
    trace = read_recording(model.file, model.number).trace
    return [point.kind for point in list_points(trace.events, trace.base_directories, trace.workspace)]


def describe_recording(name: str) -> tuple[str, ...]:
    """Describe the losses of a replay's recording, one line each. Raises TrajectoryError."""
    model = parse_model_name(name)
    trace = read_recording(model.file, model.number).trace
    warnings = describe_warnings(trace, "absolute paths are replayed as recorded")
    return tuple(f"{name}: {warning}" for warning in warnings)


class _RecordedRun(NamedTuple):
    path: Path
    number: int
    id: str

    def names(self, task_id: str) -> bool:
        """Whether the id of the recording, or of its file, contains the id of the task."""
        return re.search(rf"(?<![A-Za-z0-9]){re.escape(task_id)}(?![A-Za-z0-9])", self.id) is not None

    @property
    def names_a_task(self) -> bool:
        return _INSTANCE_ID.search(self.id[:_MAX_ID_CHARS]) is not None


def assign_recordings(name: str, tasks: Sequence[Task], *, is_part: bool = False) -> dict[str, str]:
    """The recording of each task, as a model name; tasks without one are left out.

    `name` is that of a replay: a file, one run of a file, or a directory of files, below which every readable recording
    counts. `is_part`: the tasks are a shard, so that a recording may belong to another one. Raises ModelNameError.
    """
    model = parse_model_name(name)
    found = _list_runs(model.file)
    if model.has_number:
        found = tuple(each for each in found if each.number == model.number)
    assigned: dict[str, str] = {}
    named_by = {each: [task.id for task in tasks if each.names(task.id)] for each in found}
    for task in tasks:
        # The id of one task may begin with that of another.
        own = [
            each
            for each, ids in named_by.items()
            if task.id in ids and not any(task.id in longer for longer in ids if longer != task.id)
        ]
        if len(own) > 1:
            raise ModelNameError(
                f"{name}: two recordings of task {task.id}: {_locate(own[0])} and {_locate(own[1])} (name one of them)"
            )
        if own:
            assigned[task.id] = _name_recording(model, own[0])
    if assigned or (is_part and any(each.names_a_task for each in found)):
        return assigned
    # A file that names no task belongs to the only one; its further runs are selected by `#K`.
    first = next((each for each in found if not each.names_a_task), None)
    if first is not None and len(tasks) == 1 and not _holds_files(model.file):
        return {tasks[0].id: _name_recording(model, first)}
    selected = tasks[0].id if len(tasks) == 1 else f"any of the {len(tasks)} selected tasks"
    named = next((each.id for each in found if each.names_a_task), "")
    if named and len(found) == 1:
        raise ModelNameError(f"{name}: a recording of {named}, not of {selected} (select it by --task-ids)")
    if not found or named:
        raise ModelNameError(f"{name}: no recording of {selected} (pass another file or directory)")
    raise ModelNameError(
        f"{name}: the recording names no task, but {len(tasks)} are selected (select one by --task-ids)"
        if len(tasks) > 1
        else f"{name}: no recording names {selected} (pass the file of its recording)"
    )


def _name_recording(model: ModelName, recording: _RecordedRun) -> str:
    agent = f"{model.agent}:" if model.agent else ""
    start = "" if model.start is None else f"@{model.start}"
    return f"{agent}replay:{recording.path.resolve()}#{recording.number}{start}"


def _locate(recording: _RecordedRun) -> str:
    return f"{recording.path}#{recording.number}"


def _holds_files(path: Path) -> bool:
    """Whether the path is a directory of recordings; one recording may be a directory of numbered events."""
    return path.is_dir() and not any(path.glob("event-*.json"))


@lru_cache(maxsize=32)
def _list_runs(path: Path) -> tuple[_RecordedRun, ...]:
    """The readable recordings of a file or below a directory, in the order of their names. Raises ModelNameError."""
    if not path.exists():
        raise ModelNameError(
            f"replay:{path}: no such file or directory (pass a recording or a directory of recordings)"
        )
    if not _holds_files(path):
        try:
            return tuple(_read_runs(path))
        except TraceError as error:
            raise ModelNameError(f"replay:{path}: {error}") from error
    found: list[_RecordedRun] = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or not file.is_file() or file.suffix.lower() not in _SUFFIXES:
            continue
        try:
            found += _read_runs(file)
        except TraceError:
            continue  # for instance a file of results beside the recordings
    return tuple(found)


def _read_runs(path: Path) -> Iterator[_RecordedRun]:
    for number, trace in enumerate(read_traces(path)):
        if not isinstance(trace, TraceError):
            yield _RecordedRun(path, number, trace.id)
