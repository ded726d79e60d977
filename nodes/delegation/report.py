"""The report on its children that an agent sees."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_takeover.handoff.records.left_out import format_left_out
from langgraph_takeover.handoff.text.fence import format_code_block, neutralize
from langgraph_takeover.nodes.context.children import Assignment, ChildResult
from langgraph_takeover.nodes.events import clip_text
from langgraph_takeover.sandbox.repository.merge import MergeConflict, MergeResult

_MAX_NAMES = 50


def format_report(
    assignments: Sequence[Assignment],
    results: Sequence[ChildResult],
    merged: Sequence[MergeResult],
    problem: str,
    max_chars: int,
) -> str:
    """Return the report: for each child, in at most `max_chars` characters, its end, its message and its changes."""
    children = zip(assignments, results, merged, strict=True)
    return "\n\n".join(
        clip_text(_format_child(number, *each, problem, max_chars), max_chars)
        for number, each in enumerate(children, 1)
    )


def _format_child(
    number: int,
    assignment: Assignment,
    result: ChildResult,
    merged: MergeResult,
    problem: str,
    max_chars: int,
) -> str:
    ended = "finished" if result.stop_reason == "finished" else f"was stopped ({result.stop_reason})"
    parts = [
        f"Child {number} ({assignment.mode}, thread {result.thread}) {ended} after {result.steps} steps."
    ]
    if result.message.strip():
        parts.append(f"Its report:{format_code_block(clip_text(neutralize(result.message), max_chars // 2))}")
    if assignment.mode == "look":
        parts.append("Its changes were discarded.")
    elif result.problem or problem:
        parts.append(f"Its changes could not be merged into your repository: {result.problem or problem}")
    else:
        parts.append(_format_applied_files(merged, has_more=bool(result.left_out_count)))
        parts += format_left_out(result.left_out, result.left_out_count, "Not merged")
        parts += [_format_conflict(each, max_chars // 4) for each in merged.conflicts[:_MAX_NAMES]]
        if len(merged.conflicts) > _MAX_NAMES:
            parts.append(f"… and {len(merged.conflicts) - _MAX_NAMES} more files with conflicts.")
    return "\n".join(parts)


def _format_applied_files(merged: MergeResult, *, has_more: bool) -> str:
    if not merged.changed_files:
        return (
            "None of its changes were merged into your repository."
            if merged.conflicts or has_more
            else "It changed nothing."
        )
    names = ", ".join(map(neutralize, merged.changed_files[:_MAX_NAMES]))
    more = (
        f" and {len(merged.changed_files) - _MAX_NAMES} more"
        if len(merged.changed_files) > _MAX_NAMES
        else ""
    )
    return f"Merged into your repository: {names}{more}"


def _format_conflict(conflict: MergeConflict, max_chars: int) -> str:
    """Return both sides of a conflict; the file is left unchanged."""
    path = neutralize(conflict.path)
    theirs = f"The child's change, which was not merged:{format_code_block(clip_text(neutralize(conflict.theirs), max_chars))}"
    if not conflict.ours:
        return f"Conflict: {path} already exists and is not tracked by git; it was left unchanged. {theirs}"
    ours = (
        f"The version in your repository:{format_code_block(clip_text(neutralize(conflict.ours), max_chars))}"
    )
    return f"Conflict: {path} was left unchanged. {ours}\n{theirs}"
