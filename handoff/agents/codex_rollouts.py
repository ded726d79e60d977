"""What Codex's rollout files record of scripts, and threads in several files."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from langgraph_takeover.base.untrusted_input import (
    MAX_FILE_BYTES,
    check_values,
    parse_json,
    read_untrusted_file,
)
from langgraph_takeover.handoff.agents.codex_script_calls import find_calls
from langgraph_takeover.handoff.agents.codex_script_results import (
    COMMAND_TOOL,
    PATCH_TOOL,
    SCRIPT_TOOL,
    SERVER_PREFIX,
    WAIT_TOOL,
    NestedCall,
    ObservedCall,
    get_command,
    list_nested,
    merge_outputs,
    read_nested,
    read_output,
    read_wait,
)
from langgraph_takeover.handoff.recordings.recorded_run import extract_text, to_mapping
from langgraph_takeover.sandbox.untrusted_trees import list_matches

_SCRIPT_CALLS = {"custom_tool_call": SCRIPT_TOOL, "function_call": WAIT_TOOL}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_MAX_OPEN = 20
Payload = tuple[str, Mapping[str, Any]]
"""Type and payload of a row."""


class ScriptHistory:
    """Reads the scripts of a conversation, one after the other, and remembers what still runs."""

    def __init__(self) -> None:
        self._processes: set[str] = set()
        self._open_commands: set[str] = set()
        """Commands without an end so far."""

    def read(
        self,
        name: str,
        arguments: Mapping[str, Any],
        contents: Sequence[Any],
        observed: Sequence[ObservedCall],
        later_commands: Container[str] | None = None,
    ) -> tuple[NestedCall, ...]:
        """The calls of a script, or of a wait for one, from their outputs and records: see `read_nested`."""
        script = str(arguments.get("input") or "")
        own = {get_command(call.arguments) for call in list_nested(script)}
        late = {each for each in self._open_commands if each and each not in own}
        observed = [
            each._replace(is_late=each.process_id in self._processes or get_command(each.arguments) in late)
            for each in observed
        ]
        outputs = [read_output(each) for each in contents]
        if name == WAIT_TOOL:
            calls = read_wait(arguments, merge_outputs(outputs), observed)
        elif not outputs:
            calls = list_nested(script)
        else:
            calls = read_nested(script, outputs, observed, later_commands)
        self._open_commands -= {get_command(each.arguments) for each in observed}
        for call in calls:
            if call.tool == COMMAND_TOOL and call.exit_code is None and not call.refused:
                self._open_commands.add(get_command(call.arguments))
                self._processes.update(filter(None, [call.process_id]))
        return calls


class ScriptRecord(NamedTuple):
    """The rows that belong to one call of `exec` or `wait`."""

    outputs: tuple[Any, ...]
    observed: tuple[ObservedCall, ...]
    end: int
    """The row of its last output; that of the call itself without one."""


class _LaterCommands:
    """The commands that were recorded after a row."""

    def __init__(self, last_rows: Mapping[str, int], row: int) -> None:
        self._last_rows, self._row = last_rows, row

    def __contains__(self, command: object) -> bool:
        return self._last_rows.get(str(command), -1) > self._row


class ScriptRecords:
    """The records of all scripts of a session, by the rows of their calls."""

    def __init__(self, payloads: Sequence[Payload]) -> None:
        outputs = _find_outputs(payloads)
        self._outputs = {row for rows in outputs.values() for row in rows}
        ends = {call: found[-1] if found else call for call, found in outputs.items()}
        direct = {
            str(payload.get("call_id"))
            for number, (kind, payload) in enumerate(payloads)
            if kind == "response_item" and str(payload.get("type")) in _SCRIPT_CALLS and number not in outputs
        }
        observed: dict[int, list[ObservedCall]] = {call: [] for call in outputs}
        self._last_rows: dict[str, int] = {}
        running: list[int] = []
        for number, (kind, payload) in enumerate(payloads if outputs else ()):
            if number in outputs:
                running = [*(each for each in running[-_MAX_OPEN:] if ends[each] > number), number]
            for record in read_record(kind, payload, direct):
                if record.tool == COMMAND_TOOL:
                    self._last_rows[get_command(record.arguments)] = number
                own = [each for each in running if each < number < ends[each]]
                if own:
                    scripts = [str(payloads[each][1].get("input") or "") for each in own]
                    observed[own[_choose(scripts, record)]].append(record)
        self._records = {
            call: ScriptRecord(
                tuple(payloads[row][1].get("output") for row in outputs[call]), tuple(observed[call]), end
            )
            for call, end in ends.items()
        }

    def find(self, row: int) -> ScriptRecord | None:
        """The record of the call in a row; None for any other row."""
        return self._records.get(row)

    def is_output(self, row: int) -> bool:
        """Whether a row has an output of a script."""
        return row in self._outputs

    def find_later_commands(self, record: ScriptRecord) -> Container[str] | None:
        """The commands that were recorded after a script; None if this version of Codex records none."""
        return _LaterCommands(self._last_rows, record.end) if self._last_rows else None


def _find_outputs(payloads: Sequence[Payload]) -> dict[int, list[int]]:
    """The rows of the outputs of each script, by the row of its call. A script may have several: it can notify the model."""
    outputs: dict[int, list[int]] = {}
    calls: dict[str, int] = {}
    for number, (kind, payload) in enumerate(payloads):
        if kind != "response_item":
            continue
        form, call_id = str(payload.get("type")), str(payload.get("call_id"))
        if form in _SCRIPT_CALLS:
            calls.pop(call_id, None)
            if payload.get("name") == _SCRIPT_CALLS[form] and (
                form == "custom_tool_call" or "cell_id" in str(payload)
            ):
                calls[call_id] = number
                outputs[number] = []
        elif form in _OUTPUTS and call_id in calls:
            outputs[calls[call_id]].append(number)
    return outputs


def _choose(scripts: Sequence[str], record: ObservedCall) -> int:
    """The position of the last script with the command of a record; else that of the last one that computes a call."""
    command = get_command(record.arguments)
    calls = [find_calls(script) for script in scripts] if len(scripts) > 1 else []
    named = [
        n for n, found in enumerate(calls) if any(get_command(each.arguments) == command for each in found)
    ]
    computing = [n for n, found in enumerate(calls) if any(each.arguments is None for each in found)]
    return (named or computing or [len(scripts) - 1])[-1]


def assign_records(
    scripts: Sequence[str], payloads: Iterable[Payload], workspace: str
) -> list[list[ObservedCall]]:
    """The records of several scripts that ran at once: each belongs to the script with its command, else to the last one.

    They name no directory for commands in the workspace.
    """
    assigned: list[list[ObservedCall]] = [[] for _ in scripts]
    for kind, payload in payloads:
        for record in read_record(kind, payload, ()):
            if str(to_mapping(payload.get("item")).get("id")).startswith(f"{SCRIPT_TOOL}-"):
                arguments = {k: v for k, v in record.arguments.items() if k != "workdir" or v != workspace}
                assigned[_choose(scripts, record)].append(record._replace(arguments=arguments))
    return assigned


def read_record(kind: str, payload: Mapping[str, Any], direct: Container[str]) -> Iterator[ObservedCall]:
    """Yield the command or the patch that an event reports as ended; one of a direct call is read with the call itself."""
    if kind != "event_msg":
        return
    item = to_mapping(payload.get("item")) if payload.get("type") == "item_completed" else payload
    form = item.get("type")
    if str(item.get("id", item.get("call_id"))) in direct:
        return
    if form in ("CommandExecution", "exec_command_end"):
        code = item.get("exit_code")
        is_code = isinstance(code, int) and not isinstance(code, bool) and 0 <= code < 2**32
        command = item.get("command")
        arguments = {"cmd": command[-1] if isinstance(command, list) and _is_shell(command) else command}
        if directory := _read_directory(item.get("cwd")):
            arguments["workdir"] = directory
        output = item.get("aggregated_output") or "".join(
            extract_text(item.get(name)) for name in ("stdout", "stderr")
        )
        process = str(item.get("process_id") or "")
        yield ObservedCall(
            COMMAND_TOOL, arguments, str(output), code if is_code else None, process_id=process
        )
    elif form in ("McpToolCall", "mcp_tool_call_end"):
        call = to_mapping(item.get("invocation")) or item
        name = f"{SERVER_PREFIX}{call.get('server')}__{call.get('tool')}"
        result = json.dumps(item.get("result"), ensure_ascii=False)
        yield ObservedCall(name, to_mapping(call.get("arguments")), result)
    elif form in ("FileChange", "patch_apply_end"):
        is_applied = item.get("status", "completed") == "completed" and item.get("success") is not False
        output = "\n".join(filter(None, [extract_text(item.get("stdout")), extract_text(item.get("stderr"))]))
        patch = write_patch(to_mapping(item.get("changes")))
        code = 0 if is_applied else None
        yield ObservedCall(PATCH_TOOL, {"input": patch}, output, code, refused=not is_applied)


def _is_shell(command: Sequence[Any]) -> bool:
    return len(command) == 3 and str(command[1]) in ("-c", "-lc")


def _read_directory(value: Any) -> str:
    """A directory, which newer versions write as a URL."""
    text = value if isinstance(value, str) else ""
    return unquote(urlsplit(text).path) if text.startswith("file://") else text


def write_patch(changes: Mapping[str, Any]) -> str:
    """The patch that made the recorded changes of files."""
    lines = ["*** Begin Patch"]
    for path, change in changes.items():
        fields = to_mapping(change)
        kind = next(
            (each for each in ("add", "delete", "update") if each in fields or fields.get("type") == each), ""
        )
        fields = to_mapping(fields.get(kind)) or fields
        if kind == "add":
            content = extract_text(fields.get("content"))
            lines += [
                f"*** Add File: {path}",
                *(f"+{line}" for line in content.removesuffix("\n").split("\n")),
            ]
        elif kind == "delete":
            lines.append(f"*** Delete File: {path}")
        elif kind == "update":
            lines.append(f"*** Update File: {path}")
            if moved := fields.get("move_path"):
                lines.append(f"*** Move to: {moved}")
            diff = extract_text(fields.get("unified_diff")).removesuffix("\n").split("\n")
            hunks = [line for line in diff if not line.startswith(("--- ", "+++ ", "\\ No newline"))]
            lines += ["@@" if line.startswith("@@") else line for line in hunks]
    return "\n".join([*lines, "*** End Patch"])


Row = Mapping[str, Any]
WITHDRAWN = "is_withdrawn"
"""Field of a row that a rewind withdrew."""
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FILE_NAME = re.compile(rf"rollout-[\dT-]{{19}}-(?P<thread>{_UUID})(?:_(?P<segment>{_UUID}))?\.jsonl")
_STORED = {"sessions": "*/*/*/rollout-*.jsonl", "archived_sessions": "rollout-*.jsonl"}
"""Directories of a home, with the files in them."""
_MAX_FILES = 1_000


class RolloutName(NamedTuple):
    """The ids in the name of a rollout file."""

    thread: str
    segment: str
    """That of a thread's first file is the thread's id."""


class _Segment(NamedTuple):
    """A rollout file, divided where another one continues it."""

    thread: str
    head: Row
    kept: Sequence[Row]
    rest: Sequence[Row]
    is_complete: bool
    """The file reaches the place of the division."""


def parse_name(path: Path) -> RolloutName | None:
    """Parse the name of a rollout file; None for any other name."""
    found = _FILE_NAME.fullmatch(path.name)
    return found and RolloutName(found["thread"], found["segment"] or found["thread"])


def _sort_by_age(paths: Iterable[Path]) -> list[Path]:
    """The first file of a thread before its segments, whose ids begin with their time; names have local or other time."""

    def get_age(path: Path) -> tuple[bool, str]:
        name = parse_name(path)
        return (name.segment != name.thread, name.segment) if name else (False, path.name)

    return sorted(paths, key=get_age)


def drop_continued(paths: Iterable[Path]) -> list[Path]:
    """Return the paths without rollout files of a thread that has a later one."""
    latest: dict[str, Path] = {}
    for path in _sort_by_age(paths):
        name = parse_name(path)
        latest[name.thread if name else str(path)] = path
    return list(latest.values())


def join_segments(path: Path, rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows of a rollout file with those that it continues, and the number of unreadable lines among the latter.

    The other files are in the directory of the file, or in the sessions of its home, also the archived ones. Rows that the user
    withdrew before the file began have the field `WITHDRAWN`. `history_base` of the first row names the file that is not found
    or incomplete, if any.
    """
    head = next((row for row in rows if row.get("type") == "session_meta"), None)
    name = parse_name(path)
    if head is None or not (_find_base(head) or (name and name.segment != name.thread)):
        return list(rows), 0
    files = _ThreadFiles(path)
    parts: list[Sequence[Row]] = [rows]
    threads = {str(to_mapping(head.get("payload")).get("id"))}
    withdrawn: list[Row] = []
    current, base = head, _find_base(head)
    while base:
        end, end_byte = base.get("end_ordinal_exclusive"), base.get("end_byte_offset")
        segment = files.read(str(base.get("thread_id")), end, end_byte)
        if segment is None:
            break
        parts.append(segment.kept)
        threads.add(segment.thread)
        withdrawn += _list_before(current, segment.rest)
        if not segment.is_complete:
            break
        current, base = segment.head, _find_base(segment.head)
    # What is left of it is not found.
    head = {**head, "payload": {**to_mapping(head.get("payload")), "history_base": base}}
    for each in files.list_unread(threads):
        other = files.read(each, 0, 0)
        withdrawn += _list_before(head, other.rest) if other else ()
    joined: list[Row] = [{**row, WITHDRAWN: True} for row in withdrawn]
    joined += [row for part in reversed(parts) for row in part]
    return [head, *(row for row in joined if row.get("type") != "session_meta")], files.skipped


class _ThreadFiles:
    """The rollout files in reach of one of them, each read once."""

    def __init__(self, path: Path) -> None:
        self.skipped = 0
        """Number of unreadable lines."""
        path = path.resolve()
        found = set(list_matches(path.parent, "rollout-*.jsonl"))
        for directory in path.parents:
            if directory.name in _STORED:
                for stored, pattern in _STORED.items():
                    found.update(list_matches(directory.parent / stored, pattern))
                break
        self._files: dict[str, tuple[str, Path]] = {}
        for each in _sort_by_age(found):
            names = parse_name(each)
            if names and each != path and not each.is_symlink():
                self._files[names.segment] = (names.thread, each)
        self._unread = set(self._files)
        self._bytes = MAX_FILE_BYTES

    def list_unread(self, threads: set[str]) -> list[str]:
        """The ids of the files of threads that were not read, the oldest first."""
        return [
            each for each, (thread, _) in self._files.items() if each in self._unread and thread in threads
        ]

    def read(self, segment: str, end: Any, end_byte: Any) -> _Segment | None:
        """Read a file up to an ordinal; None if it is not found, was read before or cannot be read."""
        if segment not in self._unread or len(self._files) - len(self._unread) >= _MAX_FILES:
            return None
        self._unread.remove(segment)
        thread, path = self._files[segment]
        try:
            raw = read_untrusted_file(path, self._bytes)
            check_values(raw)
        except (OSError, ValueError):
            return None
        self._bytes -= len(raw)
        kept: list[Row] = []
        rest: list[Row] = []
        offset, has_ordinals, reached = 0, False, -1
        for line in raw.splitlines(keepends=True):
            row = self._parse_line(line)
            ordinal = row.get("ordinal")
            if isinstance(ordinal, int):
                has_ordinals, reached = True, max(reached, ordinal)
            is_kept = _is_less(ordinal, end) if isinstance(ordinal, int) else _is_less(offset, end_byte)
            if row:
                (kept if is_kept else rest).append(row)
            offset += len(line)
        is_complete = _is_less(end, reached + 2) if has_ordinals else _is_less(end_byte, offset + 1)
        heads = [row for row in (*kept, *rest) if row.get("type") == "session_meta"]
        return _Segment(thread, heads[0] if heads else {}, kept, rest, is_complete)

    def _parse_line(self, line: bytes) -> Row:
        """The row in a line; empty if the line is blank or unreadable."""
        try:
            row = parse_json(line) if line.strip() else {}
        except ValueError:
            row = None
        self.skipped += not isinstance(row, Mapping)
        return to_mapping(row)


def _is_less(first: Any, second: Any) -> bool:
    return isinstance(first, int) and isinstance(second, int) and first < second


def _find_base(head: Row) -> Row:
    """What a file continues, as its first row says; empty if nothing."""
    return to_mapping(to_mapping(head.get("payload")).get("history_base"))


def _list_before(head: Row, rows: Sequence[Row]) -> list[Row]:
    """The rows that were written before a file began."""
    return [row for row in rows if str(row.get("timestamp")) < str(head.get("timestamp"))]
