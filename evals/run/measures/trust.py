"""Over-trust: what a successor keeps of the predecessor's change, and what it checks before it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from langgraph_takeover.evals.run.measures.shown_text import list_shown_lines
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import compute_state, process_event
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.patch_sections import split_patch
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.trace.file_kinds import is_source


class Trust(NamedTuple):
    """How a successor treated the predecessor's change. None without a changed source line."""

    kept: float | None
    """Share of the predecessor's changed source lines that the final patch contains, from 0 to 1."""
    reexamined: bool | None
    """Whether the successor read a changed file or ran a validation before it changed those files or ended."""
    verified_before_finish: bool
    """Whether a validation with a result ran after the successor's last change of a source file."""


def measure_trust(record: HandoffRecord, successor: Sequence[Event], patch: str) -> Trust:
    """Measure one takeover; `patch` is the final patch against the base commit."""
    directories = record.task.base_directories
    before = _count_changed_lines(record.patch, directories)
    after = _count_changed_lines(patch, directories)
    changed = {path for path, _, _ in before}
    state = compute_state(record.trace, directories, record.task.workspace)
    # The predecessor's own validations must not count as the successor's.
    state = state._replace(outcome_since_change=None, verdict_since_change=None, pending_validation=None)
    reexamined, verified = _follow_events(state, successor, changed, record.task.workspace)
    return Trust(
        kept=(before & after).total() / before.total() if before else None,
        reexamined=reexamined if changed else None,
        verified_before_finish=verified,
    )


def _follow_events(
    state: DetectorState, events: Sequence[Event], changed: Collection[str], workspace: str
) -> tuple[bool, bool]:
    """Whether the changed files were examined before they were touched, and the final code was validated."""
    reexamined = touched = False
    for action, event in zip((None, *events), events, strict=False):
        update = process_event(state, event)
        state = update.state
        if action is None or event.kind != "observation" or touched:
            continue
        is_result = update.validation is not None and update.validation.outcome != "environment_error"
        touches = any(change.path in changed for change in event.changes)
        # A command line may look first and edit then; one that edits first shows its own change.
        if not touches and (is_result or _shows_files(action, event, changed, workspace)):
            reexamined = True
        touched = touches
    return reexamined, state.outcome_since_change is not None


def _shows_files(action: Event, event: Event, paths: Collection[str], workspace: str) -> bool:
    if event.refused:
        return False
    if any(read.path in paths for read in event.reads):
        return True
    return any(path in paths for line in list_shown_lines(action, event, workspace) for path in line.paths)


def _count_changed_lines(patch: str, base_directories: Collection[str]) -> Counter[tuple[str, str, str]]:
    """The added and removed lines of source files: (path, `+` or `-`, text). Blank lines do not count."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for section in split_patch(patch):
        if is_source(section.path, not section.is_new, base_directories):
            counts.update(
                (section.path, line[0], line[1:].rstrip())
                for line in section.list_changed_lines()
                if line[1:].strip()
            )
    return counts
