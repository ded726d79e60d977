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

from evals.reports.chunks import Chunk, Pool
from evals.run.config import POINTS
from evals.run.journal import Row
from evals.run.measures import Kind, Known, classified, known
from evals.run.results import Results
from handoff import views
from handoff.detector_state import DetectorState
from handoff.detectors import notice, start
from handoff.event import UNREADABLE, Event
from handoff.fence import CLOSING
from handoff.record import HandoffRecord
from handoff.trace import Trace
from handoff.views.frame import closing, opening
from handoff.views.trace import heading

_WORKERS = 4
_MANY = 200
"""Takeovers for which several processes are worth it."""
_LABEL = 80
_FIRST_EVENTS = 2
"""Of the trace view: the others are those of the predecessor's own timeline."""
_MESSAGES = (4, 3)
"""Of a long conversation: so many from its beginning, and from its end."""


def run_of(record_id: str) -> str:
    """The predecessor's run that a record was made in, by its name."""
    return record_id.rpartition(".")[0]


def key_of(row: Row) -> str:
    """The name of a takeover among those of its point."""
    return f"{row['view']}/{row['successor']}/{row['repeat']}"


def chunks(results: Results) -> dict[str, Chunk]:
    """One chunk for every predecessor's run, by its name."""
    owners = {record_id: row for row in results.predecessors for record_id in row.get("records", ())}
    runs: dict[str, dict[str, list[Row]]] = {}
    for record_id in owners:
        runs.setdefault(run_of(record_id), {})[record_id] = []
    for row in results.takeovers:
        runs.setdefault(run_of(row["record_id"]), {}).setdefault(row["record_id"], []).append(row)
    apart = results._replace(predecessors=(), labels=(), notes=(), takeovers=(), warnings=())
    jobs = [
        (name, apart, points, {each: owners[each] for each in points if each in owners})
        for name, points in runs.items()
    ]
    # Forking a process that has threads can deadlock its child.
    if len(jobs) < 2 or len(results.takeovers) < _MANY or threading.active_count() > 1:
        return dict(map(_made, jobs))
    with ProcessPoolExecutor(min(_WORKERS, os.cpu_count() or 1), get_context("fork")) as pool:
        return dict(pool.map(_made, jobs))


def _made(job: tuple[str, Results, dict[str, list[Row]], dict[str, Row]]) -> tuple[str, Chunk]:
    name, results, points, owners = job
    return name, _chunk(results, points, owners)


class _Lane(NamedTuple):
    """What a predecessor did up to the latest of its points, and what detectors knew after each event."""

    events: tuple[Event, ...]
    marks: list[dict[str, Any]]
    states: list[DetectorState]


def _chunk(results: Results, points: dict[str, list[Row]], owners: dict[str, Row]) -> Chunk:
    pool = Pool()
    records = {
        record_id: _record(results, rows or [owners[record_id] | {"record_id": record_id}])
        for record_id, rows in points.items()
    }
    longest = sorted(filter(None, records.values()), key=lambda each: len(each.trace), reverse=True)
    lanes: list[_Lane] = []
    of = {record.id: _lane_of(pool, lanes, record) for record in longest}
    found = {}
    for record_id, rows in points.items():
        if (record := records[record_id]) is not None:
            found[record_id] = _point(results, pool, record, lanes[of[record_id]], rows)
            found[record_id]["lane"] = of[record_id]
            continue
        found[record_id] = {"runs": {key_of(row): _run(results, pool, None, None, row) for row in rows}}
        if record_id in owners and (trace := results.trace(owners[record_id])):
            found[record_id]["whole"], _ = _marks(pool, trace.events, _started(trace))
    return pool.chunk({"points": found, "lanes": [lane.marks for lane in lanes]})


def _record(results: Results, rows: Sequence[Row]) -> HandoffRecord | None:
    """The record that rows are of, from whichever run has it."""
    return next((found for row in rows if (found := results.record(row)) is not None), None)


def _lane_of(pool: Pool, lanes: list[_Lane], record: HandoffRecord) -> int:
    """The number of the lane that begins with the record's events: the points of a run share one."""
    for number, lane in enumerate(lanes):
        if record.trace == lane.events[: len(record.trace)]:
            return number
    before = start(record.task.base_directories, record.task.workspace)
    lanes.append(_Lane(record.trace, *_marks(pool, record.trace, before)))
    return len(lanes) - 1


def _point(
    results: Results, pool: Pool, record: HandoffRecord, lane: _Lane, rows: Sequence[Row]
) -> dict[str, Any]:
    """What a record tells, every view of it that a successor was given, and what they made of it."""
    state = lane.states[len(record.trace) - 1]
    had = known(record, state)
    given = {_given(results, row): row for row in rows if row["outcome"] == "graded"}
    return {
        "event_index": record.point.event_index,
        "detail": record.point.detail,
        "task": pool(record.task.prompt, roomy=True),
        "patch": pool(record.patch, roomy=True),
        "views": {name: _view(results, pool, record, row) for name, row in given.items()},
        "runs": {key_of(row): _run(results, pool, had, state, row) for row in rows},
    }


def _run(
    results: Results, pool: Pool, had: Known | None, state: DetectorState | None, row: Row
) -> dict[str, Any]:
    """What is told of one takeover beside its row."""
    run: dict[str, Any] = {"patch": pool(row.get("patch") or "", roomy=True), "given": _given(results, row)}
    if (trace := results.trace(row)) is not None:
        kinds = () if had is None else classified(had, trace.events)
        # A script that the predecessor wrote is a reproduction to its successor, too.
        state = (state or _started(trace))._replace(fired=POINTS, awaited=None)
        run["events"], _ = _marks(pool, trace.events, state, kinds)
    return run


def _started(trace: Trace) -> DetectorState:
    return start(trace.base_directories, trace.workspace)


def _marks(
    pool: Pool, events: Sequence[Event], state: DetectorState, kinds: Sequence[Kind | None] = ()
) -> tuple[list[dict[str, Any]], list[DetectorState]]:
    """Events as the page reads them, and the state after each."""
    marks, states = [], []
    for event, kind in zip_longest(events, kinds):
        noticed = notice(state, event)
        state = noticed.state
        mark = _event(pool, event)
        if kind is not None:
            mark["kind"] = kind
        if noticed.edited:
            mark["edited"] = list(noticed.edited)
        if noticed.validation is not None:
            mark["validation"] = [noticed.validation.kind, noticed.validation.outcome]
        if noticed.points:
            mark["points"] = [point.kind for point in noticed.points]
        marks.append(mark)
        states.append(state)
    return marks, states


def _event(pool: Pool, event: Event) -> dict[str, Any]:
    mark: dict[str, Any] = {"n": event.index, "tool": event.tool, "text": pool(event.text)}
    if event.kind == "action":
        mark["does"] = _label(event)
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


def _label(event: Event) -> str:
    """What an action does, in a few words."""
    if event.tool == UNREADABLE:
        return "no action"
    said = event.arguments.get("command", "")
    if event.tool == "editor":
        said = f"{said} {event.arguments.get('path', '')}"
    line = " ".join(said[: 4 * _LABEL].split()) or event.tool
    return line if len(line) <= _LABEL else f"{line[: _LABEL - 1]}…"


def _given(results: Results, row: Row) -> str:
    """The name of the view as this successor got it: it depends on its window and protocol."""
    protocol, window = _recipient(results, row)
    return f"{row['view']}/{protocol}/{window}"


def _recipient(results: Results, row: Row) -> tuple[str, int]:
    protocol = next(source.config.protocol for source in results.sources if str(source.out) == row["out"])
    return protocol, row.get("window_tokens") or views.Recipient().window_tokens


def _view(results: Results, pool: Pool, record: HandoffRecord, row: Row) -> list[dict[str, Any]]:
    """A view's messages; what they repeat of the trace is told by its place there."""
    protocol, window = _recipient(results, row)
    recipient = views.Recipient.model_validate({"protocol": protocol, "window_tokens": window})
    last = len(record.trace) - 1
    if row["view"] == "trace" and last >= _FIRST_EVENTS:
        rest = f"events e{_FIRST_EVENTS} to e{last} follow, as they stand in the predecessor's lane"
        return [_message(pool, record, each, rest) for each in views.named("trace")(record, recipient)]
    messages = views.named(row["view"])(record, recipient)
    head, tail = _MESSAGES
    left = len(messages) - head - tail
    if left <= 1:
        return [_message(pool, record, each) for each in messages]
    told = f"{left} messages, which repeat events of the predecessor's lane"
    return [
        *(_message(pool, record, each) for each in messages[:head]),
        {"left": told},
        *(_message(pool, record, each) for each in messages[len(messages) - tail :]),
    ]


def _message(pool: Pool, record: HandoffRecord, message: BaseMessage, rest: str = "") -> dict[str, Any]:
    """A message in parts, because all views share the first and the last."""
    text, first, last = message.text, opening(), closing(record)
    before = first if text.startswith(first) else ""
    after = last if text.endswith(last) else ""
    middle = text[len(before) : len(text) - len(after)]
    if not middle.strip():
        before, middle = before + middle, ""
    parts: list[Any] = [pool(before, roomy=True)] if before else []
    if rest:
        # No text in an event passes for a heading or a closing tag.
        shown = middle.partition(f"\n{heading(record.trace[_FIRST_EVENTS])}")[0]
        _, tag, end = middle.rpartition(CLOSING)
        parts += [pool(f"{shown}\n", roomy=True), rest, pool(f"{tag}{end}".rstrip())]
    elif middle:
        parts.append(pool(middle, roomy=True))
    if after:
        parts.append(pool(after, roomy=True))
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = [{"name": call["name"], "arguments": call["args"]} for call in message.tool_calls]
        parts.append(pool(json.dumps(calls, ensure_ascii=False, indent=1)))
    return {"from": message.type, "parts": parts}
