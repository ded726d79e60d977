"""What an agent is shown of the children that it delegated to."""

from __future__ import annotations

from collections.abc import Sequence

from handoff.fence import code, neutral
from nodes.children import Assignment, Returned
from nodes.events import clipped
from sandbox.merging import Conflict, Merged

_MOST_NAMES = 50


def report(
    assignments: Sequence[Assignment],
    returned: Sequence[Returned],
    merged: Sequence[Merged],
    trouble: str,
    most_chars: int,
) -> str:
    """Each child in at most so many characters: how it ended, what it says, and what became of its changes."""
    told = zip(assignments, returned, merged, strict=True)
    return "\n\n".join(
        clipped(_child(number, *each, trouble, most_chars), most_chars) for number, each in enumerate(told, 1)
    )


def _child(number: int, asked: Assignment, came: Returned, merged: Merged, trouble: str, most: int) -> str:
    ended = "finished" if came.stop_reason == "finished" else f"was stopped ({came.stop_reason})"
    parts = [f"Child {number} ({asked.mode}, thread {came.thread}) {ended} after {came.steps} steps."]
    if came.message.strip():
        parts.append(f"Its report:{code(clipped(neutral(came.message), most // 2))}")
    if asked.mode == "look":
        parts.append("What it wrote was thrown away.")
    elif came.trouble or trouble:
        parts.append(f"Its changes could not be put into your repository: {came.trouble or trouble}")
    else:
        parts.append(_taken(merged))
        parts += [_conflict(each, most // 4) for each in merged.conflicts[:_MOST_NAMES]]
        if len(merged.conflicts) > _MOST_NAMES:
            parts.append(f"… and {len(merged.conflicts) - _MOST_NAMES} more files that could not be merged.")
    return "\n".join(parts)


def _taken(merged: Merged) -> str:
    if not merged.taken:
        return "Nothing of it was put into your repository." if merged.conflicts else "It changed nothing."
    names = ", ".join(map(neutral, merged.taken[:_MOST_NAMES]))
    more = f" and {len(merged.taken) - _MOST_NAMES} more" if len(merged.taken) > _MOST_NAMES else ""
    return f"Put into your repository: {names}{more}"


def _conflict(found: Conflict, most: int) -> str:
    """Both sides of one file, which stays as it was."""
    path = neutral(found.path)
    theirs = f"The child's change, which was not put in:{code(clipped(neutral(found.theirs), most))}"
    if not found.ours:
        return f"Conflict: {path} is there already and git does not know it; it was left as it is. {theirs}"
    ours = f"What was put in before:{code(clipped(neutral(found.ours), most))}"
    return f"Conflict: {path} was left as it is. {ours}\n{theirs}"
