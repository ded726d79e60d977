"""The facts of a record that need no model, computed in one pass over its trace."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import DetectorState, ValidationRun
from langgraph_takeover.handoff.points.edits import is_source_change
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.shell.program_table import find_running_spellings
from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.text.patch_sections import PatchSection, split_patch
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import (
    UNREADABLE,
    Differences,
    Event,
    compute_differences,
    describe_unknown_forms,
)


class ShellStep(NamedTuple):
    """One command that was run, with its observation."""

    command: str
    observation: Event


def list_shell_steps(trace: tuple[Event, ...]) -> tuple[ShellStep, ...]:
    """List the commands that the shell of a run accepted, in order."""
    return tuple(
        ShellStep(command, seen)
        for action, seen in list_steps(trace)
        if seen is not None and action.tool == "shell" and not seen.refused and seen.tool != UNREADABLE
        if (command := action.arguments.get("command", ""))
    )


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
    def current_result(self) -> ValidationOutcome | None:
        """The latest result of a validation of the code as it is now; None if there was none.

        It is `unknown` where the record does not tell: exit code 0 alone, an output without a result, or a change that no
        recorded action made.
        """
        results = [run for run in self.runs if run.outcome != "environment_error"]
        outcome, verdict = self.outcome, self.state.verdict_since_change
        if not self.state.edited_files and results:
            outcome, verdict = results[-1].outcome, results[-1].verdict
        if outcome is None:
            return "unknown" if self.unknown_calls or self.only_in_snapshot else None
        is_clear = results[-1].outcome != "unknown" and verdict != "exit_code_only"
        return outcome if is_clear and not self.only_in_snapshot else "unknown"

    @cached_property
    def open_failures(self) -> tuple[ValidationRun, ...]:
        """Other validations of the changed code that failed when they last ran, oldest first."""
        latest = self.latest_run
        if latest is None or not self.source_changes:
            return ()
        first = self.source_changes[0].observation.index
        last_runs = {" ".join(run.command.split()): run for run in self.runs if run.event_index >= first}
        return tuple(
            run
            for command, run in last_runs.items()
            if run.outcome == "failed" and command != " ".join(latest.command.split())
        )

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
    def differing_files(self) -> frozenset[str]:
        """The files that differ from the base commit by the events, by the patch, or by what the patch lacks."""
        sections = self.patch_sections.values()
        patched = {path for each in sections for path in (each.path, each.old_path) if path}
        return frozenset({*self.changed, *patched, *(each.path for each in self.record.left_out)})

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
