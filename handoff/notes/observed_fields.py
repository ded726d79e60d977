"""The fields of a note that need no model: file changes and results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from langgraph_takeover.handoff.notes.evidence import Evidence, ShellStep, SourceChange
from langgraph_takeover.handoff.points.detector_state import ValidationRun, describe_outcome
from langgraph_takeover.handoff.points.detectors import classify_continuation, find_evidence
from langgraph_takeover.handoff.records.process_facts import list_process_lines
from langgraph_takeover.handoff.records.record_facts import find_agent_number
from langgraph_takeover.handoff.shell.command_effects import may_edit
from langgraph_takeover.handoff.shell.program_table import find_program, list_missing_programs
from langgraph_takeover.handoff.shell.syntax import PLACEHOLDER, SimpleCommand, extract_heredocs
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.text.fence import (
    cut_middle,
    format_code_block,
    format_entry,
    format_inline_code,
    neutralize,
    quote_text,
)
from langgraph_takeover.handoff.text.note_fields import UNKNOWN, NoteField
from langgraph_takeover.handoff.trace.file_kinds import is_scratch, is_script, is_test

_MAX_NAME_CHARS = 300
_MAX_LINE_CHARS = 400
_MAX_LINES = 30
_MAX_VALIDATION_CHARS = 6000
_MAX_CHANGED = 5
_MAX_MENTIONED = 3
_MAX_SOURCES, _MAX_OUTPUT_CHARS = 50, 200_000
_SOURCE_ROOTS = ("src", "lib", "python")
FindRunning = Callable[[], Mapping[str, str]]
"""Finds the programs that ran, each with a spelling by which it did; called only if one is missing."""
_MAX_COMMAND_CHARS = 200
_MAX_LOOK_CHARS = 4_000
"""A longer command line does more than look."""
_LOOKS = frozenset({
    "cd", "pushd", "popd", "pwd", "ls", "tree", "dir", "stat", "file", "wc", "which", "type", "date", "clear", "true",
})  # fmt: skip
_PRINTS = frozenset(("echo", "printf", ":"))
"""They separate the outputs of other commands; alone they may matter."""
_PLACEHOLDER = re.compile(rf"< {PLACEHOLDER}[0-9]+")
_HARMLESS_TARGETS = ("/dev/null", "/dev/stderr", "/dev/stdout")


def build_observed_fields(evidence: Evidence, *, pointers: bool = False) -> tuple[NoteField, ...]:
    """Build the deterministic fields, in order; each entry names its agent if there are several, and with `pointers` its events."""

    def format_pointer(*indices: int) -> str:
        numbers = {find_agent_number(evidence.record, index) for index in indices} - {0}
        agents = f" (agent {', '.join(map(str, sorted(numbers)))})" if numbers else ""
        return agents + (
            " [" + ", ".join(f"e{index}" for index in indices) + "]" if pointers and indices else ""
        )

    latest, change = evidence.latest_run, evidence.latest_change
    fields: tuple[NoteField, ...] = (
        NoteField("Repository change state", (_describe_changes(evidence),)),
        NoteField(
            "Changed source files",
            tuple(
                _format_path(_append_counts(path, evidence)) + format_pointer(*_find_changes(path, evidence))
                for path in evidence.source_files
            ),
            is_list=True,
            min_entries=5,
        ),
        NoteField(
            "Latest source change",
            (_render_change(change) + format_pointer(change.observation.index),) if change else (),
        ),
        NoteField(
            "Non-source artifacts",
            tuple(
                f"{_format_path(path)} ({describe_file(path, evidence)})"
                + format_pointer(*_find_changes(path, evidence))
                for path in evidence.other_files
            ),
            is_list=True,
            min_entries=3,
        ),
        NoteField(
            "Validation outcome after the latest source change",
            (_describe_outcome(evidence),) if evidence.outcome else (),
        ),
        NoteField(
            "Latest validation command",
            _render_latest_validation(evidence, format_pointer(latest.event_index) if latest else ""),
        ),
        NoteField("Latest validation evidence", _render_decisive_lines(latest, evidence)),
        NoteField("Continuation state", _describe_continuation(evidence)),
        NoteField(
            "Commands already tried",
            tuple(text + format_pointer(i) for text, i in _list_tried_commands(evidence)),
            is_list=True,
            remark=_describe_omitted_looks(evidence),
            min_entries=5,
        ),
        NoteField(
            "Files already read",
            tuple(text + format_pointer(i) for text, i in _list_reads(evidence)),
            is_list=True,
            min_entries=5,
        ),
    )
    snapshot = evidence.record.snapshot
    if snapshot is not None and (processes := list_process_lines(snapshot.processes)):
        remark = "they ran when the snapshot was taken; check which of them run now"
        fields = (
            *fields,
            NoteField("Background processes", processes, is_list=True, remark=remark, min_entries=3),
        )
    if open_work := evidence.open_work:
        entries = tuple(f"{kind}: {_format_path(text)}" for kind, text in open_work)
        fields = (*fields, NoteField("Open at the capture", entries, is_list=True))
    if not evidence.unknown_calls:
        return fields
    unknown = NoteField("Calls not understood", (_format_path(evidence.unknown_calls),))
    return (*(field._replace(empty=UNKNOWN) for field in fields), unknown)


def _describe_outcome(evidence: Evidence) -> str:
    """The outcome after the latest source change; exit code 0 without a verdict is no pass."""
    return describe_outcome(evidence.outcome, evidence.state.verdict_since_change) if evidence.outcome else ""


def _describe_continuation(evidence: Evidence) -> tuple[str, ...]:
    """The state, unless a call of unknown form may have edited or validated."""
    is_unknown = bool(evidence.unknown_calls) and evidence.outcome is None
    return () if is_unknown else (classify_continuation(evidence.state),)


def _describe_changes(evidence: Evidence) -> str:
    sources, others = len(evidence.source_files), len(evidence.other_files)
    state = UNKNOWN if evidence.unknown_calls else "nothing differs from the base commit"
    if sources or others:
        state = f"{sources} source and {others} other files differ from the base commit"
    for paths, what in (
        (
            evidence.only_in_trace,
            "in the snapshot, {} equal the base commit, although recorded calls changed them (committed or undone)",
        ),
        (evidence.only_in_snapshot, "no recorded action made the snapshot's difference in {}"),
    ):
        if paths:
            shown = ", ".join(map(_format_path, paths[:5])) + (", …" if len(paths) > 5 else "")
            state += "; " + what.format(shown)
    return state


def _append_counts(path: str, evidence: Evidence) -> str:
    section = evidence.patch_sections.get(path)
    if section is None:
        return path
    signs = Counter(line[0] for line in section.list_changed_lines())
    renamed = f"renamed from {section.old_path}, " if section.old_path else ""
    return f"{path} ({renamed}+{signs['+']} -{signs['-']})"


def _find_changes(path: str, evidence: Evidence) -> list[int]:
    found = [e.index for e in evidence.record.trace if any(change.path == path for change in e.changes)]
    return found[-2:]


def _render_change(change: SourceChange) -> str:
    """Name the action of a source change, and its files."""
    action = change.action
    if action is None:
        made = "an action"
    elif action.tool == "shell":
        made = format_inline_code(shorten_command(action.arguments.get("command", "")))
    else:
        made = format_inline_code(
            shorten_command(f"{action.tool} {action.arguments.get('command', '')}".strip())
        )
    edited = [path for path in change.paths if path not in change.restored]
    parts = [
        f"{what} {', '.join(map(_format_path, paths[:_MAX_CHANGED]))}{', …' if len(paths) > _MAX_CHANGED else ''}"
        for what, paths in (("changed", edited), ("restored the base content of", change.restored))
        if paths
    ]
    return f"{made} {' and '.join(parts)}"


def describe_file(path: str, evidence: Evidence) -> str:
    """Describe a changed file: source, test, scratch or other; new, changed or deleted."""
    base, now = evidence.changed[path]
    if path in evidence.source_files:
        kind = "source file"
    elif is_scratch(path, base is not None, evidence.record.task.base_directories):
        kind = "scratch file"
    else:
        kind = "test file" if is_test(path) else "other file"
    return f"{kind}, {'new' if base is None else 'deleted' if now is None else 'changed'}"


def _render_latest_validation(evidence: Evidence, pointer: str) -> tuple[str, ...]:
    run = evidence.latest_run
    if run is None:
        return ()
    text = cut_middle(run.command, _MAX_VALIDATION_CHARS)
    where = f"\nin {_format_path(run.cwd)}" if run.cwd else ""
    older = evidence.outcome is None and _is_before_latest_change(run, evidence)
    when = ", before the latest source change" if older else ""
    scope = "" if older else _describe_validation_scope(run, evidence)
    scope = "".join(f"\n{line}" for line in (scope, _describe_open_failures(evidence)) if line)
    return (
        f"{run.kind.replace('_', ' ')}, {run.result}{when}{pointer}{format_code_block(quote_text(text))}{where}{scope}",
    )


def _describe_validation_scope(run: ValidationRun, evidence: Evidence) -> str:
    """Say which changed source file a validation mentions: its command, its script, or its output; else that none does.

    Empty if no source file differs. For a validation that could not start, name the program instead.
    """
    output = next((event.text for event in evidence.record.trace if event.index == run.event_index), "")
    if run.outcome == "environment_error":
        missing = describe_missing_programs(run.command, output, lambda: evidence.running_tools)
        return f"{missing}." if missing else ""
    sources = evidence.current_sources[:_MAX_SOURCES]
    if not sources:
        return ""
    places = (("Its command", run.command), *_list_scripts(run, evidence), ("Its output", output))
    for place, text in places:
        if named := _find_mentioned(sources, text[-_MAX_OUTPUT_CHARS:], evidence.record.task.workspace):
            return f"{place} names the changed {_join_paths(named)}."
    return "Whether it runs the changed code is not recorded: its command, script and output name no changed source file."


def _describe_open_failures(evidence: Evidence) -> str:
    """Name other validations of the changed code that failed when they last ran; empty if none did."""
    failed = [format_inline_code(shorten_command(run.command)) for run in evidence.open_failures]
    return f"Failed when last run: {', '.join(failed[-_MAX_MENTIONED:])}." if failed else ""


def _list_scripts(run: ValidationRun, evidence: Evidence) -> Iterable[tuple[str, str]]:
    """Yield the scripts of the run that the command names, with the text that wrote them."""
    for path in sorted(evidence.changed_paths - set(evidence.current_sources)):
        name = re.escape(path.rpartition("/")[2])
        if is_script(path) and re.search(rf"(?<![\w.-]){name}(?![\w-])", run.command):
            written = [
                " ".join(action.arguments.values())
                for action, seen in zip(evidence.record.trace, evidence.record.trace[1:], strict=False)
                if seen.index <= run.event_index and any(change.path == path for change in seen.changes)
            ]
            yield f"Its script {_format_path(path)}", "\n".join(written[-2:])


def _find_mentioned(paths: Iterable[str], text: str, workspace: str) -> list[str]:
    return [path for path in paths if _build_mention_pattern(path, workspace).search(text)]


def _build_mention_pattern(path: str, workspace: str) -> re.Pattern[str]:
    """Match a file by its path, also from inside a subdirectory or absolute, or as a dotted module."""
    root = rf"(?:{re.escape(workspace.rstrip('/'))}/)?" if workspace else ""
    found = [rf"(?<![\w./-])(?:(?:\.\.?/)*|{root}){re.escape(path)}(?![\w/-])"]
    stem, _, extension = path.rpartition(".")
    if extension in ("py", "pyx"):
        parts = stem.removesuffix("/__init__").split("/")
        parts = parts[1:] if parts[0] in _SOURCE_ROOTS else parts
        if len(parts) > 1:
            module = re.escape(".".join(parts))
            package, name = map(re.escape, (".".join(parts[:-1]), parts[-1]))
            found.append(rf"(?<![\w.]){module}(?!\w)")
            found.append(rf"\bfrom {package} import (?:[\w, ]{{0,200}}\b)?{name}\b")
    return re.compile("|".join(found))


def _join_paths(paths: list[str]) -> str:
    more = f" and {len(paths) - _MAX_MENTIONED} more" if len(paths) > _MAX_MENTIONED else ""
    return ", ".join(map(_format_path, paths[:_MAX_MENTIONED])) + more


def _is_before_latest_change(run: ValidationRun, evidence: Evidence) -> bool:
    """Whether a validation without a counted outcome ran before the latest change; False if that is unclear."""
    change = evidence.latest_change
    if change is None or run.event_index > change.observation.index:
        return False
    return run.event_index < change.observation.index or run.outcome != "environment_error"


def _render_decisive_lines(run: ValidationRun | None, evidence: Evidence) -> tuple[str, ...]:
    lines = find_evidence(run, evidence.record.trace) if run else ()
    shown = [line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…" for line in lines]
    return (format_code_block(quote_text("\n".join(shown[-_MAX_LINES:]))),) if shown else ()


def _describe_omitted_looks(evidence: Evidence) -> str:
    number = sum(is_look(step.command) for step in evidence.steps)
    if number == 1:
        return "1 command that only lists or reads files is omitted"
    return f"{number} commands that only list or read files are omitted" if number else ""


def _list_tried_commands(evidence: Evidence) -> Iterator[tuple[str, int]]:
    """Yield each command that did more than look, with its result, and the event that shows it."""
    failed = {run.event_index for run in evidence.runs if run.outcome == "failed"}
    for step in evidence.steps:
        if not is_look(step.command):
            seen = step.observation
            result = describe_result(step, lambda: evidence.running_tools)
            if seen.index in failed and not seen.exit_code:
                result += ", its output shows a failure"
            yield f"{format_inline_code(shorten_command(step.command))} → {result}", seen.index


def is_look(command: str) -> bool:
    """Whether a command line only lists, prints files unchanged, or changes the directory; searches do more."""
    commands = parse_command(command) if len(command) <= _MAX_LOOK_CHARS else ()
    names = {simple.name for simple in commands}
    return bool(names - _PRINTS) and all(map(_is_look, commands))


def _is_look(command: SimpleCommand) -> bool:
    if any(
        ">" in redirect.operator
        and redirect.target not in _HARMLESS_TARGETS
        and not redirect.target.isdigit()
        for redirect in command.redirects
    ):
        return False
    if command.name in _LOOKS or command.name in _PRINTS:
        return True
    program = find_program(command.name)
    return (program.valued_options is not None or program.is_filter) and not may_edit(command)


def describe_result(step: ShellStep, find_running: FindRunning) -> str:
    """Describe how a command ended, and which of its programs could not be started by that name."""
    seen = step.observation
    ended = UNKNOWN if seen.exit_code is None else f"exit code {seen.exit_code}"
    missing = describe_missing_programs(step.command, seen.text, find_running)
    return f"{'timed out' if seen.timed_out else ended}{f' ({missing})' if missing else ''}"


def describe_missing_programs(command: str, output: str, find_running: FindRunning) -> str:
    """Name the programs that could not be started, and how they ran otherwise; empty if all were started."""
    parts = []
    for launch in list_missing_programs(command, output):
        spelled = format_inline_code(shorten_command(launch.spelling))
        other = find_running().get(launch.program)
        ran = f", but {format_inline_code(shorten_command(other))} ran" if other else ""
        ran = ", but it ran in another command" if other == launch.spelling else ran
        parts.append(f"{spelled} was not found under this name{ran}")
    return "; ".join(parts)


def shorten_command(command: str) -> str:
    """Put a command on one line, without the here-documents that it writes."""
    bare, _ = extract_heredocs(neutralize(command))
    bare = _PLACEHOLDER.sub("<<…", bare)
    line = " ⏎ ".join(" ".join(each.split()) for each in bare.splitlines() if each.strip())
    return line if len(line) <= _MAX_COMMAND_CHARS else f"{line[:_MAX_COMMAND_CHARS]}…"


def _list_reads(evidence: Evidence) -> Iterator[tuple[str, int]]:
    found: dict[str, int] = {}
    for event in evidence.record.trace:
        for read in event.reads:
            found.pop(read.path, None)
            found[read.path] = event.index
    yield from ((_format_path(path), index) for path, index in found.items())


def _format_path(path: str) -> str:
    return _truncate(format_entry(path), _MAX_NAME_CHARS)


def _truncate(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[:limit]}…"
