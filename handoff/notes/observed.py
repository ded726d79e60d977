"""The fields of a note that need no model: what file changes and results say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from handoff.detector_state import ValidationRun
from handoff.detectors import continuation, evidence_of
from handoff.event import UNREADABLE
from handoff.fence import code, cut_middle, entry, neutral, quoted, ticked
from handoff.heredocs import PLACEHOLDER, extract
from handoff.notes.evidence import Evidence
from handoff.notes.fields import UNKNOWN, Field

_LONGEST_COMMAND = 200
_LONGEST_NAME = 300
_LONGEST_LINE = 400
_MOST_LINES = 30
_LONGEST_VALIDATION = 6000


def observed(evidence: Evidence, *, pointers: bool = False) -> tuple[Field, ...]:
    """The deterministic fields, in order; with `pointers`, each entry names the events that it comes from."""

    def at(*indices: int) -> str:
        return " [" + ", ".join(f"e{index}" for index in indices) + "]" if pointers and indices else ""

    latest = evidence.latest
    return (
        Field("Repository change state", (_change_state(evidence),)),
        Field(
            "Changed source files",
            tuple(
                _line(_with_counts(path, evidence.record.patch)) + at(*_changes_of(path, evidence))
                for path in evidence.sources
            ),
            listed=True,
            least=5,
        ),
        Field(
            "Non-source artifacts",
            tuple(_line(path) + at(*_changes_of(path, evidence)) for path in evidence.others),
            listed=True,
            least=3,
        ),
        Field(
            "Validation outcome after the latest source change",
            (evidence.outcome,) if evidence.outcome else (),
        ),
        Field("Latest validation command", _command(evidence, at(latest.event_index) if latest else "")),
        Field("Latest validation evidence", _decisive(latest, evidence)),
        Field("Continuation state", (continuation(evidence.state),)),
        Field(
            "Commands already tried",
            tuple(text + at(i) for text, i in _tried(evidence)),
            listed=True,
            least=5,
        ),
        Field("Files already read", tuple(text + at(i) for text, i in _read(evidence)), listed=True, least=5),
    )


def _change_state(evidence: Evidence) -> str:
    sources, others = len(evidence.sources), len(evidence.others)
    state = "nothing differs from the base commit"
    if sources or others:
        state = f"{sources} source and {others} other files differ from the base commit"
    for paths, what in (
        (evidence.only_told, "the recorded changes to {} are not in the frozen files"),
        (evidence.only_frozen, "no recorded action made the frozen files' difference in {}"),
    ):
        if paths:
            shown = ", ".join(map(_line, paths[:5])) + (", …" if len(paths) > 5 else "")
            state += "; " + what.format(shown)
    return state


def _with_counts(path: str, patch: str) -> str:
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


def _changes_of(path: str, evidence: Evidence) -> list[int]:
    found = [e.index for e in evidence.record.trace if any(change.path == path for change in e.changes)]
    return found[-2:]


def _command(evidence: Evidence, pointer: str) -> tuple[str, ...]:
    run = evidence.latest
    if run is None:
        return ()
    text = cut_middle(run.command, _LONGEST_VALIDATION)
    where = f"\nin {_line(run.cwd)}" if run.cwd else ""
    older = evidence.state.edited and evidence.outcome is None
    when = ", before the latest source change" if older else ""
    return (f"{run.kind.replace('_', ' ')}, {run.outcome}{when}{pointer}{code(quoted(text))}{where}",)


def _decisive(run: ValidationRun | None, evidence: Evidence) -> tuple[str, ...]:
    lines = evidence_of(run, evidence.record.trace) if run else ()
    shown = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in lines]
    return (code(quoted("\n".join(shown[-_MOST_LINES:]))),) if shown else ()


def _tried(evidence: Evidence) -> Iterator[tuple[str, int]]:
    command = ""
    for event in evidence.record.trace:
        if event.kind == "action":
            command = event.arguments.get("command", "") if event.tool == "shell" else ""
        elif command and not event.refused and event.tool != UNREADABLE:
            ended = UNKNOWN if event.exit_code is None else f"exit code {event.exit_code}"
            yield f"{ticked(_short(command))} → {'timed out' if event.timed_out else ended}", event.index


def _short(command: str) -> str:
    """A command in one line, without the here-documents that it writes."""
    bare, bodies = extract(neutral(command))
    for number in range(len(bodies)):
        bare = bare.replace(f"< {PLACEHOLDER}{number}", "<<…")
    line = " ⏎ ".join(" ".join(each.split()) for each in bare.splitlines() if each.strip())
    return _bounded(line, _LONGEST_COMMAND)


def _read(evidence: Evidence) -> Iterator[tuple[str, int]]:
    found: dict[str, int] = {}
    for event in evidence.record.trace:
        for read in event.reads:
            found.pop(read.path, None)
            found[read.path] = event.index
    yield from ((_line(path), index) for path, index in found.items())


def _line(path: str) -> str:
    return _bounded(entry(path), _LONGEST_NAME)


def _bounded(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[:limit]}…"
