"""What a successor submits: how far it trusts the predecessor's change, and what it adds besides its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from langgraph_takeover.evals.run.measures.replies import count_tokens
from langgraph_takeover.evals.run.measures.shown_text import list_shown_lines
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import compute_state, process_event
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.patch_sections import PatchSection, split_patch
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.trace.file_kinds import is_generated, is_scratch, is_source, is_test


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


def measure_remainder(
    events: Sequence[Event], point_index: int, stop_reason: str | None, uncounted_calls: int = 0
) -> dict[str, Any] | None:
    """The predecessor's effort after a point: events, prompt and completion tokens (None if not counted).

    `point_index` is the index of the point's last event. `uncounted_calls` are those of the whole run that the runtime
    counted: failed attempts have no event, so that their place is unknown, and with it the tokens after the point.
    None if the run was stopped before its end, because its remainder is unknown then.
    """
    if stop_reason != "finished":
        return None
    rest = events[point_index + 1 :]
    attempts = uncounted_calls - count_tokens(events).uncounted_calls
    tokens = count_tokens(rest, max(attempts, 0))
    return {"events": len(rest), "prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}


BUILD_FILES = frozenset({"pyproject.toml", "setup.cfg", "setup.py", "tox.ini"})
"""Files in the root that OpenHands' preparation of patches for SWE-bench removes, with the scripts there, and `setup.cfg`."""

_MAX_NAMES = 20


class FinalPatch(NamedTuple):
    """A patch against the base commit, by file."""

    patch_files: int
    patch_lines: int
    """Number of added and removed lines."""
    scratch_files: tuple[str, ...]
    """New files in the root, in a new top-level directory, or in a cache or build directory; at most 20."""
    test_files: tuple[str, ...]
    """New or changed tests, without scratch files; at most 20."""


def measure_patch(patch: str, base_directories: Collection[str]) -> FinalPatch:
    """Measure a patch. Text without a readable heading does not count."""
    sections = split_patch(patch)
    scratch = tuple(section.path for section in sections if _is_scratch(section, base_directories))
    return FinalPatch(
        patch_files=len(sections),
        patch_lines=sum(1 for section in sections for _ in section.list_changed_lines()),
        scratch_files=scratch[:_MAX_NAMES],
        test_files=tuple(
            section.path for section in sections if is_test(section.path) and section.path not in scratch
        )[:_MAX_NAMES],
    )


def clean_patch(patch: str, base_directories: Collection[str]) -> str:
    """The patch without scratch files and build files; unchanged if it has none of them."""
    sections = split_patch(patch)
    kept = [
        section
        for section in sections
        if section.path not in BUILD_FILES and not _is_scratch(section, base_directories)
    ]
    return "".join(section.text for section in kept) if len(kept) < len(sections) else patch


def _is_scratch(section: PatchSection, base_directories: Collection[str]) -> bool:
    return section.is_new and (
        is_generated(section.path)
        or is_scratch(section.path, is_in_base=False, base_directories=base_directories)
    )
