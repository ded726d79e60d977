"""Behavior of the built-in model in a team, derived from its system prompt alone."""

from __future__ import annotations

import re

from langgraph_takeover.evals.models.scripted import Turn
from langgraph_takeover.handoff.trace.action import Action

_MEMBER = re.compile(r"^You are `([\w-]+)`, one of several agents", re.MULTILINE)
_SUPERVISOR = re.compile(r"^You choose who continues", re.MULTILINE)
_TARGETS = re.compile(r"^When you hand over, .*: one of ([\w, -]+)\.$", re.MULTILINE)
_FINISHERS = re.compile(r"^Only (.+) may finish the task; you may not\.$", re.MULTILINE)


def adapt_to_team(system: str, turn: Turn, *, is_fixed: bool) -> Turn:
    """The turn of a team member in place of the turn it would take alone."""
    if not _MEMBER.search(system):
        return turn
    targets_line, finishers_line = _TARGETS.search(system), _FINISHERS.search(system)
    targets = targets_line[1].split(", ") if targets_line else []
    if _SUPERVISOR.search(system) and targets:
        if is_fixed:
            return _hand_over(targets[-1], "The fix is in place; verify it and finish.")
        return _hand_over(targets[0], "Find the bug and fix it.")
    finishers = re.findall(r"`([\w-]+)`", finishers_line[1]) if finishers_line else []
    if is_fixed and (able := [name for name in finishers if name in targets]):
        return _hand_over(able[-1], "The fix is in place; verify it and finish.")
    if finishers and turn.action is not None and turn.action.tool == "finish":
        return Turn(
            "I am done, and check the changed files.", Action("shell", {"command": "git status --short"})
        )
    return turn


def _hand_over(to: str, message: str) -> Turn:
    return Turn("", Action("handoff", {"to": to, "message": message}))
