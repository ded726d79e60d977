"""How the built-in model takes its part in a team: by what the system's message says of its place, and nothing else."""

from __future__ import annotations

import re

from langgraph_takeover.evals.models.scripted import Turn
from langgraph_takeover.handoff.trace.action import Action

_MEMBER = re.compile(r"^You are `([\w-]+)`, one of several agents", re.MULTILINE)
_SUPERVISOR = re.compile(r"^You choose who continues", re.MULTILINE)
_TARGETS = re.compile(r"^When you hand over, .*: one of ([\w, -]+)\.$", re.MULTILINE)
_FINISHERS = re.compile(r"^Only (.+) may finish the task; you may not\.$", re.MULTILINE)


def adapt_to_team(system: str, turn: Turn, *, is_fixed: bool) -> Turn:
    """What an agent of a team does in place of what it would do alone; `fixed` says that the fix is known to stand."""
    if not _MEMBER.search(system):
        return turn
    found, may_not = _TARGETS.search(system), _FINISHERS.search(system)
    targets = found[1].split(", ") if found else []
    if _SUPERVISOR.search(system) and targets:
        if is_fixed:
            return _hand_over(targets[-1], "The fix stands; verify it, and finish.")
        return _hand_over(targets[0], "Find the fault and mend it.")
    finishers = re.findall(r"`([\w-]+)`", may_not[1]) if may_not else []
    if is_fixed and (able := [name for name in finishers if name in targets]):
        return _hand_over(able[-1], "The fix is in place; verify it, and finish.")
    if finishers and turn.action is not None and turn.action.tool == "finish":
        return Turn(
            "I am done, and look at what has changed.", Action("shell", {"command": "git status --short"})
        )
    return turn


def _hand_over(to: str, message: str) -> Turn:
    return Turn("", Action("handoff", {"to": to, "message": message}))
