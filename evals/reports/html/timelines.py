"""Timelines around each handoff point: marked events of predecessor and successors, and the successors' views."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import zip_longest
from multiprocessing import get_context
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.evals.reports.html.chunks import Chunk, TextPool
from langgraph_takeover.evals.run.measures.rediscovery import (
    PredecessorKnowledge,
    PredecessorText,
    RediscoveryKind,
    StepText,
    classify_events,
    collect_knowledge,
)
from langgraph_takeover.evals.run.measures.shown_text import join_ranges, split_output
from langgraph_takeover.evals.run.results import Results, load_record
from langgraph_takeover.evals.run.rows import AgentRow, PredecessorRow, Takeover
from langgraph_takeover.evals.run.settings.config import POINTS
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import create_state, process_event
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import CLOSING
from langgraph_takeover.handoff.trace.conversation import render_heading
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace
from langgraph_takeover.handoff.views.common import load_instructions, render_task

_MAX_LABEL_LENGTH = 80
_MAX_WRAPPING_LINES = 6
"""Lines that a tool puts before the output of a program."""


def mark_event(pool: TextPool, event: Event) -> dict[str, Any]:
    mark: dict[str, Any] = {"index": event.index, "tool": event.tool, "text": pool(event.text)}
    if event.kind == "action":
        mark["label"] = _label_event(event)
        # The text of a native tool call does not contain its arguments.
        hidden = {name: value for name, value in event.arguments.items() if value and value not in event.text}
        if hidden:
            mark["arguments"] = {name: pool(value) for name, value in hidden.items()}
    if event.exit_code is not None:
        mark["exit_code"] = event.exit_code
    mark |= {name: value for name in ("refused", "timed_out", "seconds") if (value := getattr(event, name))}
    if event.is_parallel:
        mark["parallel"] = True
    if event.changes:
        mark["changes"] = [change.path for change in event.changes]
    if event.usage is not None and not event.is_parallel:
        usage = event.usage
        mark["usage"] = [
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.estimated,
        ]
    return mark


def mark_text(event: Event, step: StepText) -> dict[str, Any]:
    """The shown and re-shown characters of an observation, its re-shown lines, and their files."""
    mark: dict[str, Any] = {"chars": step.shown_chars, "reshown": step.reshown_chars}
    if step.reshown_chars:
        lines = event.text.split("\n")
        first = _find_start(lines, split_output(event.text))
        if first is not None:
            mark["lines"] = join_ranges([first + index for index in step.reshown_lines])
            mark["total"] = len(lines)
        mark["files"] = [(file.path, file.ranges) for file in step.files]
    return mark


def _find_start(lines: Sequence[str], part: Sequence[str]) -> int | None:
    """Where the lines without the tool's wrapping begin; None if they were changed."""
    for start in range(min(len(lines), _MAX_WRAPPING_LINES)):
        if list(lines[start : start + len(part)]) == list(part):
            return start
    return None


def _label_event(event: Event) -> str:
    """A short label of an action."""
    if event.tool == UNREADABLE:
        return "no action"
    command = event.arguments.get("command", "")
    if event.tool == "editor":
        command = f"{command} {event.arguments.get('path', '')}"
    line = " ".join(command[: 4 * _MAX_LABEL_LENGTH].split()) or event.tool
    return line if len(line) <= _MAX_LABEL_LENGTH else f"{line[: _MAX_LABEL_LENGTH - 1]}…"


_WORKERS = 4
_PARALLEL_THRESHOLD = 200
"""Number of takeovers from which several processes are faster."""
_FIRST_EVENTS = 2
"""Events of the trace view to include; the others are in the predecessor's timeline."""
_SHOWN_MESSAGES = (4, 3)
"""Messages of a long conversation to include, from its beginning and from its end."""


def run_name(record_id: str) -> str:
    """The name of the predecessor's run in which a record was made."""
    return record_id.rpartition(".")[0]


def takeover_key(row: Takeover) -> str:
    """The name of a takeover, unique per handoff point."""
    return f"{row.view}/{row.successor}/{row.repeat}"


def build_chunks(results: Results) -> dict[str, Chunk]:
    """One chunk per predecessor run, by the name of the run."""
    owners = {record_id: row for row in results.predecessors for record_id in row.records or ()}
    runs: dict[str, dict[str, list[Takeover]]] = {}
    for record_id in owners:
        runs.setdefault(run_name(record_id), {})[record_id] = []
    for row in results.takeovers:
        runs.setdefault(run_name(row.record_id), {}).setdefault(row.record_id, []).append(row)
    without_rows = results._replace(predecessors=(), labels=(), notes=(), takeovers=(), warnings=())
    jobs = [
        (name, without_rows, points, {each: owners[each] for each in points if each in owners})
        for name, points in runs.items()
    ]
    # Forking a process with threads can deadlock the child.
    if len(jobs) < 2 or len(results.takeovers) < _PARALLEL_THRESHOLD or threading.active_count() > 1:
        return dict(map(_build_named_chunk, jobs))
    with ProcessPoolExecutor(min(_WORKERS, os.cpu_count() or 1), get_context("fork")) as pool:
        return dict(pool.map(_build_named_chunk, jobs))


def _build_named_chunk(
    job: tuple[str, Results, dict[str, list[Takeover]], dict[str, PredecessorRow]],
) -> tuple[str, Chunk]:
    name, results, points, owners = job
    return name, _build_chunk(results, points, owners)


class _PriorWork(NamedTuple):
    """The predecessor's work up to a point: what it had done, what it had seen, and the detectors' state."""

    knowledge: PredecessorKnowledge
    text: PredecessorText
    state: DetectorState


class _Timeline(NamedTuple):
    """A predecessor's events up to its last point, and the detector state after each event."""

    events: tuple[Event, ...]
    marks: list[dict[str, Any]]
    states: list[DetectorState]


def _build_chunk(
    results: Results, points: dict[str, list[Takeover]], owners: dict[str, PredecessorRow]
) -> Chunk:
    pool = TextPool()
    records = {
        record_id: _find_record(record_id, rows or [owners[record_id]]) for record_id, rows in points.items()
    }
    longest_first = sorted(filter(None, records.values()), key=lambda each: len(each.trace), reverse=True)
    timelines: list[_Timeline] = []
    numbers = {record.id: _find_timeline(pool, timelines, record) for record in longest_first}
    descriptions = {}
    for record_id, rows in points.items():
        if (record := records[record_id]) is not None:
            number = numbers[record_id]
            description = _describe_point(results, pool, record, timelines[number], rows)
            descriptions[record_id] = description | {"timeline": number}
            continue
        descriptions[record_id] = {
            "runs": {takeover_key(row): _describe_run(results, pool, None, row) for row in rows}
        }
        if record_id in owners and (trace := results.load_trace(owners[record_id])):
            descriptions[record_id]["full_trace"], _ = _mark_events(pool, trace.events, _initial_state(trace))
    return pool.build_chunk({"points": descriptions, "timelines": [timeline.marks for timeline in timelines]})


def _find_record(record_id: str, rows: Sequence[AgentRow]) -> HandoffRecord | None:
    """A record from the first run of these rows that has it."""
    records = (load_record(row.out, record_id) for row in rows)
    return next((record for record in records if record is not None), None)


def _find_timeline(pool: TextPool, timelines: list[_Timeline], record: HandoffRecord) -> int:
    """The number of the timeline that begins with the record's events; the points of a run share one."""
    for number, timeline in enumerate(timelines):
        if record.trace == timeline.events[: len(record.trace)]:
            return number
    state = create_state(record.task.base_directories, record.task.workspace)
    timelines.append(_Timeline(record.trace, *_mark_events(pool, record.trace, state)))
    return len(timelines) - 1


def _describe_point(
    results: Results, pool: TextPool, record: HandoffRecord, timeline: _Timeline, rows: Sequence[Takeover]
) -> dict[str, Any]:
    """A record's point and patch, the views of it, and the takeovers."""
    state = timeline.states[len(record.trace) - 1]
    known = _PriorWork(
        collect_knowledge(record.trace, state), PredecessorText(record.trace, record.task.workspace), state
    )
    row_by_view = {_view_key(results, row): row for row in rows if row.outcome == "graded"}
    return {
        "event_index": record.point.event_index,
        "detail": record.point.detail,
        "task": pool(record.task.prompt, is_extended=True),
        "patch": pool(record.patch, is_extended=True),
        "views": {name: _render_view(results, pool, record, row) for name, row in row_by_view.items()},
        "runs": {takeover_key(row): _describe_run(results, pool, known, row) for row in rows},
    }


def _describe_run(
    results: Results,
    pool: TextPool,
    prior: _PriorWork | None,
    row: Takeover,
) -> dict[str, Any]:
    """The details of one takeover that its row lacks."""
    run: dict[str, Any] = {
        "patch": pool(row.patch or "", is_extended=True),
        "view_key": _view_key(results, row),
    }
    if (trace := results.load_trace(row)) is not None:
        kinds = () if prior is None else classify_events(prior.knowledge, trace.events)
        # The predecessor's reproduction script counts as one for the successor, too.
        state = (_initial_state(trace) if prior is None else prior.state)._replace(
            fired=POINTS, pending_validation=None
        )
        run["events"], _ = _mark_events(pool, trace.events, state, kinds)
        for step in () if prior is None else prior.text.measure_steps(trace.events):
            if step.shown_chars:
                run["events"][step.event_index]["shown"] = mark_text(trace.events[step.event_index], step)
    return run


def _initial_state(trace: Trace) -> DetectorState:
    return create_state(trace.base_directories, trace.workspace)


def _mark_events(
    pool: TextPool,
    events: Sequence[Event],
    state: DetectorState,
    kinds: Sequence[RediscoveryKind | None] = (),
) -> tuple[list[dict[str, Any]], list[DetectorState]]:
    """The marks of events on the page, and the detector state after each event."""
    marks, states = [], []
    for event, kind in zip_longest(events, kinds):
        detected = process_event(state, event)
        state = detected.state
        mark = mark_event(pool, event)
        if kind is not None:
            mark["kind"] = kind
        if detected.edited_files:
            mark["edited"] = list(detected.edited_files)
        if detected.validation is not None:
            run = detected.validation
            result = "no_verdict" if run.verdict == "exit_code_only" else run.outcome
            mark["validation"] = [run.kind, result]
        if detected.points:
            mark["points"] = [point.kind for point in detected.points]
        marks.append(mark)
        states.append(state)
    return marks, states


def _view_key(results: Results, row: Takeover) -> str:
    """The name of a view as rendered for a successor, which depends on its window and protocol."""
    protocol, window = _read_recipient(results, row)
    return f"{row.view}/{protocol}/{window}"


def _read_recipient(results: Results, row: Takeover) -> tuple[str, int]:
    protocol = next(source.config.protocol for source in results.sources if str(source.out) == row.out)
    return protocol, row.window_tokens or views.Recipient().window_tokens


def _render_view(
    results: Results, pool: TextPool, record: HandoffRecord, row: Takeover
) -> list[dict[str, Any]]:
    """The messages of a view, without events that are in the predecessor's timeline."""
    protocol, window = _read_recipient(results, row)
    recipient = views.Recipient.model_validate({"protocol": protocol, "window_tokens": window})
    last = len(record.trace) - 1
    if row.view == "trace" and last >= _FIRST_EVENTS:
        rest = f"events e{_FIRST_EVENTS} to e{last}: see the predecessor's timeline"
        return [
            _split_message(pool, record, each, rest) for each in views.find_view("trace")(record, recipient)
        ]
    if row.view == CONTINUATION:
        return [{"omitted": "no view: the predecessor's own conversation, whose events are in its timeline"}]
    messages = views.find_view(row.view)(record, recipient)
    head, tail = _SHOWN_MESSAGES
    omitted = len(messages) - head - tail
    if omitted <= 1:
        return [_split_message(pool, record, each) for each in messages]
    return [
        *(_split_message(pool, record, each) for each in messages[:head]),
        {"omitted": f"{omitted} messages that repeat events of the predecessor's timeline"},
        *(_split_message(pool, record, each) for each in messages[len(messages) - tail :]),
    ]


def _split_message(
    pool: TextPool, record: HandoffRecord, message: BaseMessage, omission: str = ""
) -> dict[str, Any]:
    """A message in parts, because all views share the first and the last part."""
    text, first, last = message.text, load_instructions(), render_task(record)
    before = first if text.startswith(first) else ""
    after = last if text.endswith(last) else ""
    middle = text[len(before) : len(text) - len(after)]
    if not middle.strip():
        before, middle = before + middle, ""
    parts: list[Any] = [pool(before, is_extended=True)] if before else []
    if omission:
        # Views neutralize headings and closing tags in the text of events.
        head = middle.partition(f"\n{render_heading(record.trace[_FIRST_EVENTS])}")[0]
        _, tag, end = middle.rpartition(CLOSING)
        parts += [pool(f"{head}\n", is_extended=True), omission, pool(f"{tag}{end}".rstrip())]
    elif middle:
        parts.append(pool(middle, is_extended=True))
    if after:
        parts.append(pool(after, is_extended=True))
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = [{"name": call["name"], "arguments": call["args"]} for call in message.tool_calls]
        parts.append(pool(json.dumps(calls, ensure_ascii=False, indent=1)))
    return {"from": message.type, "parts": parts}
