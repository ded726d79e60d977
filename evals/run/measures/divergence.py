"""How far the observations of a replay differ from those of its recording."""

from __future__ import annotations

import re
from collections.abc import Sequence

from langgraph_takeover.evals import models
from langgraph_takeover.evals.models.factory import find_first_action
from langgraph_takeover.evals.models.replay import (
    RecordedStep,
    Recording,
    list_recorded_points,
    read_recording,
)
from langgraph_takeover.evals.run.measures.shown_text import is_boilerplate, split_output
from langgraph_takeover.evals.run.rows import Fields
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Event

_MAX_LINE_CHARS = 2_000
_ELISION = re.compile(
    r"elided_chars|(?:characters|chars|lines|tokens|bytes) (?:elided|left out|truncated|omitted|clipped)|<response clipped>"
)
_NO_OUTPUT = "Your command ran successfully and did not produce any output."
_LISTED_FILE = re.compile(r"([bclps-])[rwxsStT-]{9}[.+@]? +\d+ +\S+ +\S+ ")
_LISTED_DIRECTORY = re.compile(r"d[rwxsStT-]{9}[.+@]? +\d+ +\S+ +\S+ +\S+ ")
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_VARIABLE_PARTS = re.compile(
    r"0x[0-9a-fA-F]{4,16}"
    r"|\b(?=[0-9a-f]{0,39}[0-9])(?=[0-9a-f]{0,39}[a-f])[0-9a-f]{7,40}\b"
    r"|\b\d{4}-\d\d-\d\d\b"
    r"|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
    rf"|\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?{_MONTH} {{1,2}}\d{{1,2}}(?:,? {{1,2}}(?:\d{{4}}\b|\d{{1,2}}:\d\d))?"
    r"|\b(?:\d{1,9}m)?\d{1,9}(?:\.\d{1,9})? ?(?:s|ms|us|µs|ns|secs?|seconds?|minutes?)\b"
    r"|\btmp[.\w]{6,}|\bpytest-\d{1,9}\b|(?i:\bpid\b)\W{0,3}\d{1,9}"
)
"""Addresses, hashes of commits (which contain times), dates, times, durations, temporary names and process ids."""


def measure_divergence(
    config: RunConfig,
    model: str,
    task_id: str,
    workspace: str,
    events: Sequence[Event],
    record: HandoffRecord | None = None,
) -> Fields:
    """The share of a replay's steps whose observation differs from the recording, and the first such step.

    Of a predecessor (`record` is None) also the points of the recording that its replay did not reach. All are None for a
    model other than a replay, or whose external agent shows observations in its own form.
    """
    name = models.parse_model_name(config.find_recording(model, task_id))
    if name.kind != "replay" or name.agent:
        return {"divergence": None, "divergence_step": None}
    recording = read_recording(name.file, name.number, workspace)
    if record is not None:
        predecessor = config.find_recording(record.predecessor, task_id)
        record = record.model_copy(update={"predecessor": predecessor})
    share, first = compare_observations(recording, events, find_first_action(name, record), workspace)
    return {"divergence": share, "divergence_step": first}


def list_missed_points(config: RunConfig, model: str, task_id: str, reached: Sequence[str]) -> list[str]:
    """The kinds of points that a replay's recording reaches, but not the replay; empty for other models."""
    recording = config.find_recording(model, task_id)
    if models.parse_model_name(recording).kind != "replay":
        return []
    return [kind for kind in list_recorded_points(recording) if kind in config.points and kind not in reached]


def compare_observations(
    recording: Recording, events: Sequence[Event], start: int, workspace: str
) -> tuple[float | None, int | None]:
    """The share of compared steps that differ, None without any, and the recorded number of the first one."""
    position, compared = start - 1, 0
    differing: list[int] = []
    for event in events:
        if event.kind == "action":
            position += 1
        elif 0 <= position < len(recording.steps):
            step = recording.steps[position]
            differs = _differs(step, event, (recording.trace.workspace, workspace))
            compared += differs is not None
            differing += [step.number] if differs else []
    return (len(differing) / compared if compared else None), (differing[0] if differing else None)


def _differs(step: RecordedStep, ours: Event, workspaces: Sequence[str]) -> bool | None:
    """Whether the observation differs from the recorded one; None if they cannot be compared."""
    theirs = step.observation
    if theirs is None or step.comparison == "nothing":
        return None
    if ours.refused:
        return True
    if step.comparison == "success":
        return ours.timed_out or ours.exit_code not in (0, None)
    if theirs.timed_out != ours.timed_out:
        return True
    if None not in (theirs.exit_code, ours.exit_code) and theirs.exit_code != ours.exit_code:
        return True
    return not _is_same_output(*(_split_lines(text, workspaces) for text in (redact(theirs.text), ours.text)))


def _is_same_output(one: list[list[str]], other: list[list[str]]) -> bool:
    """Compare outputs, line order aside: file systems list files in different orders."""
    if len(one) == len(other) == 1:
        return one == other or sorted(one[0]) == sorted(other[0])
    # Where a tool left out the middle, the ends are compared as far as both show them.
    heads = [each[0][:-1] if len(each) > 1 else each[0] for each in (one, other)]
    tails = [each[-1][:0:-1] if len(each) > 1 else each[-1][::-1] for each in (one, other)]
    return all(a == b for ends in (heads, tails) for a, b in zip(*ends, strict=False))


def _split_lines(text: str, workspaces: Sequence[str]) -> list[list[str]]:
    """The lines of an output without what differs between two equal runs; several lists if parts are left out."""
    parts: list[list[str]] = [[]]
    for line in split_output(text.replace(_NO_OUTPUT, "")):
        if _ELISION.search(line[:_MAX_LINE_CHARS]):
            parts.append([])
        elif not is_boilerplate(line[:_MAX_LINE_CHARS]):
            parts[-1] += [found] if (found := _normalize_line(line[:_MAX_LINE_CHARS], workspaces)) else []
    return parts


def _normalize_line(line: str, workspaces: Sequence[str]) -> str:
    for workspace in (each for each in workspaces if each.strip("/")):
        line = line.replace(workspace, "/…")
    line = _LISTED_DIRECTORY.sub("d ", _LISTED_FILE.sub(r"\1 ", line, count=1), count=1)
    line = " ".join(_VARIABLE_PARTS.sub("…", line).split())
    return "" if re.fullmatch(r"total [\d.]+\w?", line) else line
