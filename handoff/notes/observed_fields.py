"""The fields of a note that need no model: file changes and results."""

from __future__ import annotations

import re
from collections.abc import Iterator

from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.points.detector_state import ValidationRun
from langgraph_takeover.handoff.points.detectors import classify_continuation, find_evidence
from langgraph_takeover.handoff.shell.heredocs import PLACEHOLDER, extract_heredocs
from langgraph_takeover.handoff.text.fence import (
    cut_middle,
    format_code_block,
    format_entry,
    format_inline_code,
    neutralize,
    quote_text,
)
from langgraph_takeover.handoff.text.note_fields import UNKNOWN, NoteField
from langgraph_takeover.handoff.trace.events import UNREADABLE

_NO_VERDICT = "exited 0; its output states no verdict"
_MAX_COMMAND_CHARS = 200
_MAX_NAME_CHARS = 300
_MAX_LINE_CHARS = 400
_MAX_LINES = 30
_MAX_VALIDATION_CHARS = 6000


def build_observed_fields(evidence: Evidence, *, pointers: bool = False) -> tuple[NoteField, ...]:
    """Build the deterministic fields, in order; with `pointers`, each entry names its events."""

    def format_pointer(*indices: int) -> str:
        return " [" + ", ".join(f"e{index}" for index in indices) + "]" if pointers and indices else ""

    latest = evidence.latest_run
    return (
        NoteField("Repository change state", (_describe_changes(evidence),)),
        NoteField(
            "Changed source files",
            tuple(
                _format_path(_append_counts(path, evidence.record.patch))
                + format_pointer(*_find_changes(path, evidence))
                for path in evidence.source_files
            ),
            is_list=True,
            min_entries=5,
        ),
        NoteField(
            "Non-source artifacts",
            tuple(
                _format_path(path) + format_pointer(*_find_changes(path, evidence))
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
        NoteField("Continuation state", (classify_continuation(evidence.state),)),
        NoteField(
            "Commands already tried",
            tuple(text + format_pointer(i) for text, i in _list_commands(evidence)),
            is_list=True,
            min_entries=5,
        ),
        NoteField(
            "Files already read",
            tuple(text + format_pointer(i) for text, i in _list_reads(evidence)),
            is_list=True,
            min_entries=5,
        ),
    )


def _describe_outcome(evidence: Evidence) -> str:
    """The outcome after the latest source change; exit code 0 without a verdict is no pass."""
    return _NO_VERDICT if evidence.state.verdict_since_change == "exit_code_only" else evidence.outcome or ""


def _describe_changes(evidence: Evidence) -> str:
    sources, others = len(evidence.source_files), len(evidence.other_files)
    state = "nothing differs from the base commit"
    if sources or others:
        state = f"{sources} source and {others} other files differ from the base commit"
    for paths, what in (
        (evidence.only_in_trace, "the recorded changes to {} are not in the snapshot"),
        (evidence.only_in_snapshot, "no recorded action made the snapshot's difference in {}"),
    ):
        if paths:
            shown = ", ".join(map(_format_path, paths[:5])) + (", …" if len(paths) > 5 else "")
            state += "; " + what.format(shown)
    return state


def _append_counts(path: str, patch: str) -> str:
    section = re.search(
        rf"^diff --git a/{re.escape(path)} b/[^\n]*\n(.*?)(?=^diff --git |\Z)",
        patch,
        re.MULTILINE | re.DOTALL,
    )
    if section is None:
        return path
    body = section[1].split("\n@@", 1)[-1]
    added = len(re.findall(r"^\+", body, re.MULTILINE))
    removed = len(re.findall(r"^-", body, re.MULTILINE))
    return f"{path} (+{added} -{removed})"


def _find_changes(path: str, evidence: Evidence) -> list[int]:
    found = [e.index for e in evidence.record.trace if any(change.path == path for change in e.changes)]
    return found[-2:]


def _render_latest_validation(evidence: Evidence, pointer: str) -> tuple[str, ...]:
    run = evidence.latest_run
    if run is None:
        return ()
    text = cut_middle(run.command, _MAX_VALIDATION_CHARS)
    where = f"\nin {_format_path(run.cwd)}" if run.cwd else ""
    older = evidence.state.edited_files and evidence.outcome is None
    when = ", before the latest source change" if older else ""
    result = _NO_VERDICT if run.verdict == "exit_code_only" else run.outcome
    return (
        f"{run.kind.replace('_', ' ')}, {result}{when}{pointer}{format_code_block(quote_text(text))}{where}",
    )


def _render_decisive_lines(run: ValidationRun | None, evidence: Evidence) -> tuple[str, ...]:
    lines = find_evidence(run, evidence.record.trace) if run else ()
    shown = [line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…" for line in lines]
    return (format_code_block(quote_text("\n".join(shown[-_MAX_LINES:]))),) if shown else ()


def _list_commands(evidence: Evidence) -> Iterator[tuple[str, int]]:
    command = ""
    for event in evidence.record.trace:
        if event.kind == "action":
            command = event.arguments.get("command", "") if event.tool == "shell" else ""
        elif command and not event.refused and event.tool != UNREADABLE:
            ended = UNKNOWN if event.exit_code is None else f"exit code {event.exit_code}"
            yield (
                f"{format_inline_code(_shorten_command(command))} → {'timed out' if event.timed_out else ended}",
                event.index,
            )


def _shorten_command(command: str) -> str:
    """Put a command on one line, without the here-documents that it writes."""
    bare, bodies = extract_heredocs(neutralize(command))
    for number in range(len(bodies)):
        bare = bare.replace(f"< {PLACEHOLDER}{number}", "<<…")
    line = " ⏎ ".join(" ".join(each.split()) for each in bare.splitlines() if each.strip())
    return _truncate(line, _MAX_COMMAND_CHARS)


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
