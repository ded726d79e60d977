"""The steps of a trace, annotated with the findings of the detectors."""

from __future__ import annotations

from typing import NamedTuple

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import ValidationRun
from langgraph_takeover.handoff.shell import command_effects
from langgraph_takeover.handoff.trace import file_kinds
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, HandoffPoint, Trace, action_indices


class AnnotatedStep(NamedTuple):
    """One action with its observation and the findings of the detectors."""

    action_index: int | None
    """Index as PROTOCOL counts actions; None for a reply without a readable action."""
    event_index: int
    """Index of the observation, or of the action if it has no observation."""
    action: Event
    observation: Event | None
    label: str
    """One or a few words, such as `source edit + test`."""
    edited_files: tuple[str, ...]
    """Source files with new content."""
    validation: ValidationRun | None
    points: tuple[HandoffPoint, ...]


def annotate_steps(trace: Trace) -> tuple[AnnotatedStep, ...]:
    """Annotate every action of a trace, in order."""
    state = detectors.create_state(trace.base_directories, trace.workspace)
    indices = action_indices(trace.events)
    steps: list[AnnotatedStep] = []
    action: Event | None = None
    for event in trace.events:
        update = detectors.process_event(state, event)
        state = update.state
        if event.kind == "action":
            if action is not None:
                steps.append(_annotate_unanswered(action, indices))
            action = event
            continue
        if action is None:
            continue
        label = _label_action(action, event, update)
        steps.append(
            AnnotatedStep(
                indices.get(action.index),
                event.index,
                action,
                event,
                label,
                update.edited_files,
                update.validation,
                update.points,
            )
        )
        action = None
    if action is not None:
        steps.append(_annotate_unanswered(action, indices))
    return tuple(steps)


def explain_point(step: AnnotatedStep, point: HandoffPoint, before: tuple[AnnotatedStep, ...]) -> str:
    """Explain in one sentence why a point fired."""
    if point.kind == "first_validation" and step.validation is not None:
        evidence = detectors.find_evidence(step.validation, (step.observation,)) if step.observation else ()
        reason = evidence[-1:] or (f"exit code {step.observation.exit_code}" if step.observation else "",)
        return f"{step.validation.kind} {step.validation.result}: {reason[0].strip()}"
    explanation = f"{step.label}: new content in {', '.join(step.edited_files)}"
    if point.kind == "first_post_failure_edit":
        failure = next(
            (s for s in before if s.validation is not None and s.validation.outcome == "failed"
             and any(b.edited_files for b in before if b.event_index <= s.event_index)),
            None,
        )  # fmt: skip
        if failure is not None:
            return f"{explanation}, after the failed validation of action {failure.action_index}"
    return explanation


def _annotate_unanswered(action: Event, indices: dict[int, int]) -> AnnotatedStep:
    label = "finish" if action.tool == "finish" else "no answer"
    return AnnotatedStep(indices.get(action.index), action.index, action, None, label, (), None, ())


def _label_action(action: Event, observation: Event, update: detectors.DetectorUpdate) -> str:
    if action.tool == UNREADABLE:
        return "no action"
    if observation.refused:
        return "refused"
    parts = []
    if update.edited_files:
        parts.append("source edit")
    elif observation.changes:
        parts.append(_label_change(observation))
    if update.validation is not None:
        parts.append(update.validation.kind)
    if parts:
        return " + ".join(parts)
    if action.tool != "shell":
        return action.arguments.get("command", action.tool) if action.tool == "editor" else action.tool
    command = action.arguments.get("command", "")
    if command_effects.is_search(command):
        return "search"
    if command_effects.list_shown_files(command):
        return "read"
    return "command" if command_effects.find_effect(command) == "anything" else "inspect"


def _label_change(observation: Event) -> str:
    paths = [change.path for change in observation.changes]
    if all(file_kinds.is_test(path) for path in paths):
        return "test edit"
    existing = [change for change in observation.changes if change.before is not None]
    return "change" if existing else "new file"
