"""Whether a validation concerns the changed code, as far as the record shows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.tried_commands import describe_missing_programs, shorten_command
from langgraph_takeover.handoff.points.detector_state import ValidationRun
from langgraph_takeover.handoff.text.fence import format_entry, format_inline_code
from langgraph_takeover.handoff.trace.file_kinds import is_script

_MAX_NAMED = 3
_MAX_SOURCES, _MAX_TEXT_CHARS = 50, 200_000
_MAX_NAME_CHARS = 200
_SOURCE_ROOTS = ("src", "lib", "python")


def describe_validation_scope(run: ValidationRun, evidence: Evidence) -> str:
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
        if named := _find_mentioned(sources, text[-_MAX_TEXT_CHARS:], evidence.record.task.workspace):
            return f"{place} names the changed {_join_paths(named)}."
    return "Whether it runs the changed code is not recorded: its command, script and output name no changed source file."


def describe_open_failures(evidence: Evidence) -> str:
    """Name other validations of the changed code that failed when they last ran; empty if none did."""
    latest, first = evidence.latest_run, evidence.first_change_index
    if latest is None or first is None:
        return ""
    last_runs = {" ".join(run.command.split()): run for run in evidence.runs if run.event_index >= first}
    failed = [
        format_inline_code(shorten_command(run.command))
        for command, run in last_runs.items()
        if run.outcome == "failed" and command != " ".join(latest.command.split())
    ]
    return f"Failed when last run: {', '.join(failed[-_MAX_NAMED:])}." if failed else ""


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
            yield f"Its script {_shorten(path)}", "\n".join(written[-2:])


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
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return ", ".join(map(_shorten, paths[:_MAX_NAMED])) + more


def _shorten(path: str) -> str:
    shown = format_entry(path)
    return shown if len(shown) <= _MAX_NAME_CHARS else f"{shown[:_MAX_NAME_CHARS]}…"
