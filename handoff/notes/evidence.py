"""The evidence of a record, computed in one pass over its trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from langgraph_takeover.handoff.notes.tried_commands import ShellStep, list_shell_steps
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import DetectorState, ValidationRun
from langgraph_takeover.handoff.points.edits import is_source_change
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.shell.missing_programs import find_running_spellings
from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.text.patch_sections import PatchSection, split_patch
from langgraph_takeover.handoff.trace.events import Differences, Event, compute_differences
from langgraph_takeover.handoff.trace.unknown_forms import describe_unknown_forms

_EXIT_CODE = re.compile(
    r"\bexit (?:code|status)[ :=]*(-?\d{1,9})\b|\breturncode\W{1,3}(-?\d{1,9})\b", re.IGNORECASE
)
_RESULT_COUNT = re.compile(
    r"(?<![\w.])(\d{1,9}) (?:\w+ ){0,2}?(?:tests?|failures?|errors?|failed|passed|skipped|xfailed|xpassed|subtests?|items?|"
    r"exceptions?|problems?)\b|\b(?:failures|errors|skipped|run|passed|failed)[ :=]{1,3}(\d{1,9})\b",
    re.IGNORECASE,
)
_WARNING_COUNT = re.compile(r"(?<![\w.])(\d{1,9}) warnings?\b", re.IGNORECASE)
_RESULT_LINE = re.compile(
    r"^\W{0,4}(?:(?P<bad>FAILED|FAIL|FAILURE|ERROR|not ok|✗|✘|❌)|(?P<good>PASSED|PASS|SUCCESS|OK|ok|✓|✔|✅))(?!\w)"
)
_DEBUGGING_LINE = re.compile(
    r"\+\s*(?:print\(|console\.(?:log|debug|trace)\(|log(?:ging|ger)?\.(?:debug|info)\(|sys\.std(?:out|err)\.write\(|"
    r"(?:traceback|pprint)\.\w+\(|breakpoint\(|import (?:logging|pdb|pprint|sys|traceback)\b|[#)]|//)"
)
_MAX_LINE_CHARS = 1_000


class SourceChange(NamedTuple):
    """An action that changed source files."""

    action: Event | None
    """None if the trace begins with its observation."""
    observation: Event
    paths: tuple[str, ...]
    restored: tuple[str, ...]
    """Those of `paths` that got back their content in the base commit."""


class Evidence:
    """A record and what follows from it without a model."""

    def __init__(self, record: HandoffRecord) -> None:
        self.record = record
        self.runs: tuple[ValidationRun, ...] = ()
        state = detectors.create_state(record.task.base_directories, record.task.workspace)
        for event in record.trace:
            noticed = detectors.process_event(state, event)
            state = noticed.state
            self.runs += () if noticed.validation is None else (noticed.validation,)
        self.state: DetectorState = state
        self.changed: Differences = compute_differences(record.trace)

    @property
    def unknown_calls(self) -> str:
        """Names the calls whose effects and results are unknown; empty if there are none."""
        session = self.record.external
        return describe_unknown_forms(session.unknown_forms) if session else ""

    @property
    def open_work(self) -> tuple[tuple[str, str], ...]:
        """What an external agent left open or running, each as its kind and text."""
        session = self.record.external
        if session is None:
            return ()
        running = (("running in the background", each) for each in session.running)
        return (*(("open", each) for each in session.pending), *running)

    @property
    def latest_run(self) -> ValidationRun | None:
        return self.runs[-1] if self.runs else None

    @property
    def outcome(self) -> ValidationOutcome | None:
        """The latest validation after the latest source change; None if there was none."""
        return self.state.outcome_since_change if self.state.edited_files else None

    @property
    def has_verdict(self) -> bool:
        """Whether the pass of the current code rests on a result or a verdict, not only on exit code 0."""
        return self.state.verdict_since_change != "exit_code_only"

    @property
    def has_current_validation(self) -> bool:
        """Whether a validation of the code as it is now has a result."""
        if self.state.edited_files:
            return self.outcome is not None
        return any(run.outcome != "environment_error" for run in self.runs)

    @property
    def first_change_index(self) -> int | None:
        """The observation of the first action that changed a source file; None without one."""
        return self.source_changes[0].observation.index if self.source_changes else None

    @property
    def latest_change(self) -> SourceChange | None:
        return self.source_changes[-1] if self.source_changes else None

    @cached_property
    def source_changes(self) -> tuple[SourceChange, ...]:
        """The actions that changed source files, restoring included, in order."""
        base: dict[str, str | None] = {}
        action, changes = None, []
        for event in self.record.trace:
            if event.kind == "action":
                action = event
                continue
            changed = [change for change in event.changes if change.after != change.before]
            for change in changed:
                base.setdefault(change.path, change.before)
            found = [
                change for change in changed if is_source_change(self.state, change.path, base[change.path])
            ]
            if found:
                restored = tuple(change.path for change in found if change.after == base[change.path])
                changes.append(SourceChange(action, event, tuple(change.path for change in found), restored))
        return tuple(changes)

    @cached_property
    def steps(self) -> tuple[ShellStep, ...]:
        """The shell commands that were run."""
        return list_shell_steps(self.record.trace)

    @cached_property
    def running_tools(self) -> dict[str, str]:
        """Programs that ran, each with a spelling by which it did."""
        return find_running_spellings(
            (step.command, step.observation.text, step.observation.exit_code) for step in self.steps
        )

    @cached_property
    def source_files(self) -> tuple[str, ...]:
        """The source files that differ from the base commit."""
        return tuple(
            sorted(
                path for path, (base, _) in self.changed.items() if is_source_change(self.state, path, base)
            )
        )

    @cached_property
    def other_files(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.changed) - set(self.source_files)))

    @cached_property
    def only_in_snapshot(self) -> tuple[str, ...]:
        """Source files that differ in the snapshot, although no event changed them."""
        return tuple(sorted(self._patched_sources - set(self.source_files)))

    @cached_property
    def only_in_trace(self) -> tuple[str, ...]:
        """Source files that events changed, but that do not differ in the snapshot.

        Unknown without a patch.
        """
        return tuple(sorted(set(self.source_files) - self._patched_sources)) if self.record.patch else ()

    @cached_property
    def current_sources(self) -> tuple[str, ...]:
        """The source files that differ in the snapshot; without a patch, those that events changed."""
        return tuple(sorted({*self.source_files, *self.only_in_snapshot} - set(self.only_in_trace)))

    @cached_property
    def patch_sections(self) -> dict[str, PatchSection]:
        """The sections of the patch, by the file's name after it."""
        return {section.path: section for section in reversed(split_patch(self.record.patch))}

    @cached_property
    def has_only_debugging(self) -> bool:
        """Whether the source changes only add output for debugging; False if neither a patch nor an editor shows them."""
        if self.record.patch:
            lines = [
                line
                for path, section in self.patch_sections.items()
                if path in self.current_sources
                for line in section.list_changed_lines()
            ]
        else:
            lines = [line for change in self.source_changes for line in _list_edited_lines(change.action)]
        lines = [line for line in lines if line[1:].strip()]
        return bool(lines) and all(map(_DEBUGGING_LINE.match, lines))

    @cached_property
    def _patched_sources(self) -> frozenset[str]:
        found = [
            (path, None if section.is_new or section.old_path is not None else path)
            for path, section in self.patch_sections.items()
        ]
        found += [
            (section.old_path, section.old_path)
            for section in self.patch_sections.values()
            if section.old_path
        ]
        return frozenset(path for path, base in found if is_source_change(self.state, path, base))

    @cached_property
    def changed_paths(self) -> frozenset[str]:
        """Every file that any event changed."""
        return frozenset(change.path for event in self.record.trace for change in event.changes)

    @cached_property
    def file_names(self) -> frozenset[str] | None:
        """The snapshot's files and their directories; None if unknown."""
        if self.record.files is None:
            return None
        found = set(self.record.files)
        for path in self.record.files:
            while "/" in path and (path := path.rpartition("/")[0]) not in found:
                found.add(path)
        return frozenset(found)

    @cached_property
    def basenames(self) -> frozenset[str]:
        return frozenset(path.rpartition("/")[2] for path in self.file_names or ())

    @cached_property
    def shown_text(self) -> str:
        """The commands and their output, without the agent's thoughts; with single spaces."""
        found = [
            part
            for event in self.record.trace
            for part in (*event.arguments.values(), event.text if event.kind == "observation" else "")
        ]
        return " ".join(" ".join(found).split())

    @cached_property
    def exit_codes(self) -> frozenset[int]:
        """The exit codes of the commands, and those that outputs name."""
        codes = {event.exit_code for event in self.record.trace if event.exit_code is not None}
        return frozenset(codes | {int(one or other) for one, other in _EXIT_CODE.findall(self.shown_text)})

    @cached_property
    def result_counts(self) -> frozenset[int]:
        """The numbers that outputs give for tests, failures and the like, their sums in a line, and those of marked lines."""
        found: set[int] = set()
        for event in self.record.trace:
            lines = [line[:_MAX_LINE_CHARS] for line in event.text.splitlines()]
            if event.kind != "observation":
                continue
            for line in lines:
                counts = [int(one or other) for one, other in _RESULT_COUNT.findall(line)]
                found |= {*counts, sum(counts), *map(int, _WARNING_COUNT.findall(line))}
            marks = [mark.lastgroup for line in lines if (mark := _RESULT_LINE.match(line))]
            found |= {marks.count("good"), marks.count("bad"), len(marks)}
        return frozenset(found)

    def collect_text(self, indices: Iterable[int]) -> str:
        """The text of these events, and of the events that they answer or that answer them, with single spaces."""
        trace, found = self.record.trace, []
        for index in sorted(_add_partners(indices, trace)):
            event = trace[index]
            paths = [*(change.path for change in event.changes), *(read.path for read in event.reads)]
            code = "" if event.exit_code is None else str(event.exit_code)
            found += [event.text, *event.arguments.values(), event.cwd or "", code, *paths]
        return " ".join(" ".join(found).split())


def _list_edited_lines(action: Event | None) -> Iterator[str]:
    """Yield the lines that an editor adds and removes, each with its `+` or `-`; unknown ones of other actions as `-?`."""
    if action is None or action.tool != "editor" or "new" not in action.arguments:
        yield "-?"
        return
    old, new = (action.arguments.get(name, "").splitlines() for name in ("old", "new"))
    known, kept = frozenset(old), frozenset(new)
    yield from (f"+{line}" for line in new if line not in known)
    yield from (f"-{line}" for line in old if line not in kept)


def _add_partners(indices: Iterable[int], trace: tuple[Event, ...]) -> set[int]:
    found = set()
    for index in indices:
        if 0 <= index < len(trace):
            other = index + 1 if trace[index].kind == "action" else index - 1
            found.add(index)
            if 0 <= other < len(trace) and trace[other].kind != trace[index].kind:
                found.add(other)
    return found
