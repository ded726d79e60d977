"""What a page shows of each handoff point: who did what before it and after, and what a successor was given."""

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
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.metrics import (
    PredecessorKnowledge,
    RediscoveryKind,
    classify_events,
    collect_knowledge,
)
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.settings.config import POINTS
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import create_state, process_event
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import CLOSING
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace
from langgraph_takeover.handoff.trace.rendering import render_heading
from langgraph_takeover.handoff.views.common import load_instructions, render_task

_WORKERS = 4
_PARALLEL_THRESHOLD = 200
"""Takeovers for which several processes are worth it."""
_MAX_LABEL_LENGTH = 80
_FIRST_EVENTS = 2
"""Of the trace view: the others are those of the predecessor's own timeline."""
_SHOWN_MESSAGES = (4, 3)
"""Of a long conversation: so many from its beginning, and from its end."""


def run_name(record_id: str) -> str:
    """The predecessor's run that a record was made in, by its name."""
    return record_id.rpartition(".")[0]


def takeover_key(row: Row) -> str:
    """The name of a takeover among those of its point."""
    return f"{row['view']}/{row['successor']}/{row['repeat']}"


def build_chunks(results: Results) -> dict[str, Chunk]:
    """One chunk for every predecessor's run, by its name."""
    owners = {record_id: row for row in results.predecessors for record_id in row.get("records", ())}
    runs: dict[str, dict[str, list[Row]]] = {}
    for record_id in owners:
        runs.setdefault(run_name(record_id), {})[record_id] = []
    for row in results.takeovers:
        runs.setdefault(run_name(row["record_id"]), {}).setdefault(row["record_id"], []).append(row)
    apart = results._replace(predecessors=(), labels=(), notes=(), takeovers=(), warnings=())
    jobs = [
        (name, apart, points, {each: owners[each] for each in points if each in owners})
        for name, points in runs.items()
    ]
    # Forking a process that has threads can deadlock its child.
    if len(jobs) < 2 or len(results.takeovers) < _PARALLEL_THRESHOLD or threading.active_count() > 1:
        return dict(map(_build_named_chunk, jobs))
    with ProcessPoolExecutor(min(_WORKERS, os.cpu_count() or 1), get_context("fork")) as pool:
        return dict(pool.map(_build_named_chunk, jobs))


def _build_named_chunk(job: tuple[str, Results, dict[str, list[Row]], dict[str, Row]]) -> tuple[str, Chunk]:
    name, results, points, owners = job
    return name, _build_chunk(results, points, owners)


class _Timeline(NamedTuple):
    """What a predecessor did up to the latest of its points, and what detectors knew after each event."""

    events: tuple[Event, ...]
    marks: list[dict[str, Any]]
    states: list[DetectorState]


def _build_chunk(results: Results, points: dict[str, list[Row]], owners: dict[str, Row]) -> Chunk:
    pool = TextPool()
    records = {
        record_id: _load_record(results, rows or [owners[record_id] | {"record_id": record_id}])
        for record_id, rows in points.items()
    }
    longest = sorted(filter(None, records.values()), key=lambda each: len(each.trace), reverse=True)
    lanes: list[_Timeline] = []
    of = {record.id: _find_timeline(pool, lanes, record) for record in longest}
    found = {}
    for record_id, rows in points.items():
        if (record := records[record_id]) is not None:
            found[record_id] = _describe_point(results, pool, record, lanes[of[record_id]], rows)
            found[record_id]["lane"] = of[record_id]
            continue
        found[record_id] = {
            "runs": {takeover_key(row): _describe_run(results, pool, None, None, row) for row in rows}
        }
        if record_id in owners and (trace := results.load_trace(owners[record_id])):
            found[record_id]["whole"], _ = _mark_events(pool, trace.events, _initial_state(trace))
    return pool.build_chunk({"points": found, "lanes": [lane.marks for lane in lanes]})


def _load_record(results: Results, rows: Sequence[Row]) -> HandoffRecord | None:
    """The record that rows are of, from whichever run has it."""
    return next((found for row in rows if (found := results.load_record(row)) is not None), None)


def _find_timeline(pool: TextPool, timelines: list[_Timeline], record: HandoffRecord) -> int:
    """The number of the lane that begins with the record's events: the points of a run share one."""
    for number, lane in enumerate(timelines):
        if record.trace == lane.events[: len(record.trace)]:
            return number
    before = create_state(record.task.base_directories, record.task.workspace)
    timelines.append(_Timeline(record.trace, *_mark_events(pool, record.trace, before)))
    return len(timelines) - 1


def _describe_point(
    results: Results, pool: TextPool, record: HandoffRecord, timeline: _Timeline, rows: Sequence[Row]
) -> dict[str, Any]:
    """What a record tells, every view of it that a successor was given, and what they made of it."""
    state = timeline.states[len(record.trace) - 1]
    had = collect_knowledge(record, state)
    given = {_view_key(results, row): row for row in rows if row["outcome"] == "graded"}
    return {
        "event_index": record.point.event_index,
        "detail": record.point.detail,
        "task": pool(record.task.prompt, is_extended=True),
        "patch": pool(record.patch, is_extended=True),
        "views": {name: _render_view(results, pool, record, row) for name, row in given.items()},
        "runs": {takeover_key(row): _describe_run(results, pool, had, state, row) for row in rows},
    }


def _describe_run(
    results: Results,
    pool: TextPool,
    prior_knowledge: PredecessorKnowledge | None,
    state: DetectorState | None,
    row: Row,
) -> dict[str, Any]:
    """What is told of one takeover beside its row."""
    run: dict[str, Any] = {
        "patch": pool(row.get("patch") or "", is_extended=True),
        "given": _view_key(results, row),
    }
    if (trace := results.load_trace(row)) is not None:
        kinds = () if prior_knowledge is None else classify_events(prior_knowledge, trace.events)
        # A script that the predecessor wrote is a reproduction to its successor, too.
        state = (state or _initial_state(trace))._replace(fired=POINTS, pending_validation=None)
        run["events"], _ = _mark_events(pool, trace.events, state, kinds)
    return run


def _initial_state(trace: Trace) -> DetectorState:
    return create_state(trace.base_directories, trace.workspace)


def _mark_events(
    pool: TextPool,
    events: Sequence[Event],
    state: DetectorState,
    kinds: Sequence[RediscoveryKind | None] = (),
) -> tuple[list[dict[str, Any]], list[DetectorState]]:
    """Events as the page reads them, and the state after each."""
    marks, states = [], []
    for event, kind in zip_longest(events, kinds):
        noticed = process_event(state, event)
        state = noticed.state
        mark = _mark_event(pool, event)
        if kind is not None:
            mark["kind"] = kind
        if noticed.edited_files:
            mark["edited"] = list(noticed.edited_files)
        if noticed.validation is not None:
            mark["validation"] = [noticed.validation.kind, noticed.validation.outcome]
        if noticed.points:
            mark["points"] = [point.kind for point in noticed.points]
        marks.append(mark)
        states.append(state)
    return marks, states


def _mark_event(pool: TextPool, event: Event) -> dict[str, Any]:
    mark: dict[str, Any] = {"n": event.index, "tool": event.tool, "text": pool(event.text)}
    if event.kind == "action":
        mark["does"] = _label_event(event)
        # A native call's arguments stand nowhere else.
        unsaid = {name: value for name, value in event.arguments.items() if value and value not in event.text}
        if unsaid:
            mark["arguments"] = {name: pool(value) for name, value in unsaid.items()}
    if event.exit_code is not None:
        mark["exit_code"] = event.exit_code
    mark |= {name: value for name in ("refused", "timed_out", "seconds") if (value := getattr(event, name))}
    if event.changes:
        mark["changes"] = [change.path for change in event.changes]
    if event.usage is not None:
        usage = event.usage
        counted = [usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens]
        mark["usage"] = [*counted, usage.estimated]
    return mark


def _label_event(event: Event) -> str:
    """What an action does, in a few words."""
    if event.tool == UNREADABLE:
        return "no action"
    said = event.arguments.get("command", "")
    if event.tool == "editor":
        said = f"{said} {event.arguments.get('path', '')}"
    line = " ".join(said[: 4 * _MAX_LABEL_LENGTH].split()) or event.tool
    return line if len(line) <= _MAX_LABEL_LENGTH else f"{line[: _MAX_LABEL_LENGTH - 1]}…"


def _view_key(results: Results, row: Row) -> str:
    """The name of the view as this successor got it: it depends on its window and protocol."""
    protocol, window = _read_recipient(results, row)
    return f"{row['view']}/{protocol}/{window}"


def _read_recipient(results: Results, row: Row) -> tuple[str, int]:
    protocol = next(source.config.protocol for source in results.sources if str(source.out) == row["out"])
    return protocol, row.get("window_tokens") or views.Recipient().window_tokens


def _render_view(results: Results, pool: TextPool, record: HandoffRecord, row: Row) -> list[dict[str, Any]]:
    """A view's messages; what they repeat of the trace is told by its place there."""
    protocol, window = _read_recipient(results, row)
    recipient = views.Recipient.model_validate({"protocol": protocol, "window_tokens": window})
    last = len(record.trace) - 1
    if row["view"] == "trace" and last >= _FIRST_EVENTS:
        rest = f"events e{_FIRST_EVENTS} to e{last} follow, as they stand in the predecessor's lane"
        return [
            _split_message(pool, record, each, rest) for each in views.find_view("trace")(record, recipient)
        ]
    messages = views.find_view(row["view"])(record, recipient)
    head, tail = _SHOWN_MESSAGES
    left = len(messages) - head - tail
    if left <= 1:
        return [_split_message(pool, record, each) for each in messages]
    told = f"{left} messages, which repeat events of the predecessor's lane"
    return [
        *(_split_message(pool, record, each) for each in messages[:head]),
        {"left": told},
        *(_split_message(pool, record, each) for each in messages[len(messages) - tail :]),
    ]


def _split_message(
    pool: TextPool, record: HandoffRecord, message: BaseMessage, omission: str = ""
) -> dict[str, Any]:
    """A message in parts, because all views share the first and the last."""
    text, first, last = message.text, load_instructions(), render_task(record)
    before = first if text.startswith(first) else ""
    after = last if text.endswith(last) else ""
    middle = text[len(before) : len(text) - len(after)]
    if not middle.strip():
        before, middle = before + middle, ""
    parts: list[Any] = [pool(before, is_extended=True)] if before else []
    if omission:
        # No text in an event passes for a heading or a closing tag.
        shown = middle.partition(f"\n{render_heading(record.trace[_FIRST_EVENTS])}")[0]
        _, tag, end = middle.rpartition(CLOSING)
        parts += [pool(f"{shown}\n", is_extended=True), omission, pool(f"{tag}{end}".rstrip())]
    elif middle:
        parts.append(pool(middle, is_extended=True))
    if after:
        parts.append(pool(after, is_extended=True))
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = [{"name": call["name"], "arguments": call["args"]} for call in message.tool_calls]
        parts.append(pool(json.dumps(calls, ensure_ascii=False, indent=1)))
    return {"from": message.type, "parts": parts}
