"""What an agent is shown of the children that it delegated to."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Each child in at most so many characters: how it ended, what it says, and what became of its changes."""
    told = zip(assignments, results, merged, strict=True)
    return "\n\n".join(
        clip_text(_format_child(number, *each, problem, max_chars), max_chars)
        for number, each in enumerate(told, 1)
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
        parts.append("What it wrote was thrown away.")
    elif result.problem or problem:
        parts.append(f"Its changes could not be put into your repository: {result.problem or problem}")
    else:
        parts.append(_format_applied_files(merged))
        parts += [_format_conflict(each, max_chars // 4) for each in merged.conflicts[:_MAX_NAMES]]
        if len(merged.conflicts) > _MAX_NAMES:
            parts.append(f"… and {len(merged.conflicts) - _MAX_NAMES} more files that could not be merged.")
    return "\n".join(parts)


def _format_applied_files(merged: MergeResult) -> str:
    if not merged.changed_files:
        return "Nothing of it was put into your repository." if merged.conflicts else "It changed nothing."
    names = ", ".join(map(neutralize, merged.changed_files[:_MAX_NAMES]))
    more = (
        f" and {len(merged.changed_files) - _MAX_NAMES} more"
        if len(merged.changed_files) > _MAX_NAMES
        else ""
    )
    return f"Put into your repository: {names}{more}"


def _format_conflict(conflict: MergeConflict, max_chars: int) -> str:
    """Both sides of one file, which stays as it was."""
    path = neutralize(conflict.path)
    theirs = f"The child's change, which was not put in:{format_code_block(clip_text(neutralize(conflict.theirs), max_chars))}"
    if not conflict.ours:
        return f"Conflict: {path} is there already and git does not know it; it was left as it is. {theirs}"
    ours = f"What was put in before:{format_code_block(clip_text(neutralize(conflict.ours), max_chars))}"
    return f"Conflict: {path} was left as it is. {ours}\n{theirs}"
