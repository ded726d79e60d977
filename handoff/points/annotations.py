"""What the detectors find in a whole trace, action by action, for people and programs to read."""

from __future__ import annotations

from typing import NamedTuple

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import ValidationRun
from langgraph_takeover.handoff.shell import command_effects
from langgraph_takeover.handoff.trace import file_kinds
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, HandoffPoint, Trace, action_indices


class AnnotatedStep(NamedTuple):
    """One action with its observation, and what it was taken for."""

    action_index: int | None
    """As PROTOCOL numbers actions; None for a reply that was no action."""
    event_index: int
    """Of the observation, or of the action where none came."""
    action: Event
    observation: Event | None
    label: str
    edited_files: tuple[str, ...]
    validation: ValidationRun | None
    points: tuple[HandoffPoint, ...]


def annotate_steps(trace: Trace) -> tuple[AnnotatedStep, ...]:
    """Every action of a trace, in order."""
    state = detectors.create_state(trace.base_directories, trace.workspace)
    indices = action_indices(trace.events)
    found: list[AnnotatedStep] = []
    action: Event | None = None
    for event in trace.events:
        noticed = detectors.process_event(state, event)
        state = noticed.state
        if event.kind == "action":
            if action is not None:
                found.append(_annotate_unanswered(action, indices))
            action = event
            continue
        if action is None:
            continue
        taken_for = _label_action(action, event, noticed)
        found.append(
            AnnotatedStep(
                indices.get(action.index),
                event.index,
                action,
                event,
                taken_for,
                noticed.edited_files,
                noticed.validation,
                noticed.points,
            )
        )
        action = None
    if action is not None:
        found.append(_annotate_unanswered(action, indices))
    return tuple(found)


def explain_point(step: AnnotatedStep, point: HandoffPoint, before: tuple[AnnotatedStep, ...]) -> str:
    """One sentence on what made a point fire."""
    if point.kind == "first_validation" and step.validation is not None:
        decisive = detectors.find_evidence(step.validation, (step.observation,)) if step.observation else ()
        shown = decisive[-1:] or (f"exit code {step.observation.exit_code}" if step.observation else "",)
        return f"{step.validation.kind} {step.validation.outcome}: {shown[0].strip()}"
    changed = f"{step.label} gave {', '.join(step.edited_files)} content not seen before"
    if point.kind == "first_post_failure_edit":
        failed = next(
            (s for s in before if s.validation is not None and s.validation.outcome == "failed"
             and any(b.edited_files for b in before if b.event_index <= s.event_index)),
            None,
        )  # fmt: skip
        if failed is not None:
            return f"{changed}, after action {failed.action_index} had failed"
    return changed


def _annotate_unanswered(action: Event, indices: dict[int, int]) -> AnnotatedStep:
    taken_for = "finish" if action.tool == "finish" else "no answer"
    return AnnotatedStep(indices.get(action.index), action.index, action, None, taken_for, (), None, ())


def _label_action(action: Event, observation: Event, noticed: detectors.DetectorUpdate) -> str:
    if action.tool == UNREADABLE:
        return "no action"
    if observation.refused:
        return "refused"
    parts = []
    if noticed.edited_files:
        parts.append("source edit")
    elif observation.changes:
        parts.append(_label_change(observation))
    if noticed.validation is not None:
        parts.append(noticed.validation.kind)
    if parts:
        return " + ".join(parts)
    if action.tool != "shell":
        return action.arguments.get("command", action.tool) if action.tool == "editor" else action.tool
    command = action.arguments.get("command", "")
    if command_effects.is_search(command):
        return "search"
    if command_effects.list_shown_files(command):
        return "read"
    return "command" if command_effects.find_effect(command) == "anything" else "look"


def _label_change(observation: Event) -> str:
    changed = [change.path for change in observation.changes]
    if all(file_kinds.is_test(path) for path in changed):
        return "test edit"
    known = [change for change in observation.changes if change.before is not None]
    return "change" if known else "new file"
