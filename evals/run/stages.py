"""The four stages of the experiment, each a function of plain values that any process can run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from evals import models
from evals.run import threads
from evals.run.config import RunConfig
from evals.run.journal import Row
from evals.run.measures import recall_tokens, rediscovery, tokens
from evals.run.places import Places
from evals.tasks import Task
from evals.tasks.grading import GradingFailed, Verdict
from evals.tasks.verdicts import verdict_on
from graph import Outcome
from handoff import prompts, views
from handoff.event import Event, Usage
from handoff.ledger import Fenced, ThreadHeld
from handoff.notes.claims import soundness
from handoff.notes.evidence import Evidence
from handoff.notes.writing import OUTPUT_TOKENS, write_notes
from handoff.record import RecordRefused, write_durably
from handoff.redaction import redacted
from handoff.trace import Continuation, Trace
from nodes.noting import asker
from nodes.receive import recipient
from nodes.replies import ModelFailed
from nodes.session import MachineNotKept
from nodes.state import AgentState, task_of
from sandbox.machine import OutOfDisk, SandboxUnavailable
from sandbox.repository import RepositoryBroken, patch_since
from sandbox.workbench import Workbench

INFRASTRUCTURE: tuple[type[Exception], ...] = (
    ModelFailed,
    SandboxUnavailable,
    GradingFailed,
    RecordRefused,
    ThreadHeld,
    Fenced,
    MachineNotKept,
)
NOTES_TIMEOUT_S = 1800.0
PROMPTS = prompts.version("handoff", "nodes")


def run_predecessor(config: RunConfig, out: Path, task: Task, model: str) -> Row:
    """Run the task once from its beginning; a record is made at every point that fires.

    A run that was cut short goes on where it stands, and so does one of `run_takeover`.
    """
    places = Places(out)
    started = time.monotonic()
    name = config.run_of(task.id, model)
    row: Row = {"task_id": task.id, "predecessor": model, "trace": name}
    settings: dict[str, Any] = {"points": config.points, "run_id": name}
    try:
        with threads.opened(config, task, places, threads.thread_of(row), model, **settings) as run:
            outcome, before = threads.carried_out(run, lambda: run.start(task.id, task.prompt))
    except INFRASTRUCTURE as error:
        return row | failed(error, started)
    events = _events(outcome.state)
    _keep_trace(places, name, outcome.state, model, events)
    return row | {
        "outcome": "run",
        "prompts": PROMPTS,
        "stop_reason": outcome.stop_reason,
        "detail": outcome.trouble,
        "records": list(outcome.records),
        **_costs(events, outcome, before + _since(started)),
        "patch": outcome.patch,
    }


def label(config: RunConfig, out: Path, task: Task, record_id: str) -> Row:
    """Thaw a record's snapshot and validate it officially: the evaluator's handoff state."""
    places = Places(out)
    started = time.monotonic()
    row: Row = {"record_id": record_id}
    try:
        record = places.records.load(record_id)
        patch, trouble = "", ""
        with Workbench(places.spec(config, task)) as workbench:
            machine = workbench.thaw(record.machine, places.records.directory(record_id))
            try:
                patch = patch_since(machine, record.task.base_commit)
            except RepositoryBroken as error:
                trouble = f"no patch: {error}"
        verdict = _graded(config, task, places, patch, f"snapshot.{record_id}")
    except INFRASTRUCTURE as error:
        return row | failed(error, started)
    return row | {
        "outcome": "graded",
        "handoff_state": verdict.handoff_state,
        "detail": trouble or verdict.detail,
        "seconds": _since(started),
    }


def write_note(config: RunConfig, out: Path, task: Task, record_id: str) -> Row:
    """Have the notes of one record written, once."""
    places = Places(out)
    started = time.monotonic()
    row: Row = {"record_id": record_id}
    try:
        record = places.records.load(record_id)
        writer = config.writer(record.predecessor)
        row["model"] = writer
        model = models.build(
            writer,
            task=task,
            base_url=config.base_url,
            # Constructed with its settings, because the client knows which models take no temperature.
            max_reply_tokens=OUTPUT_TOKENS,
            temperature=0.0,
        )
        notes = write_notes(record, asker(model, timeout_s=NOTES_TIMEOUT_S), writer)
        places.records.add_notes(record_id, notes)
    except INFRASTRUCTURE as error:
        return row | failed(error, started)
    costs = {
        kind: _counted(getattr(notes, f"{kind}_usage")).model_dump(exclude={"estimated"})
        for kind in ("summary", "structured")
    }
    return row | {
        "outcome": "written",
        "detail": "",
        "prompts": notes.prompts,
        "usage": costs,
        "malformed": notes.malformed,
        "retried": notes.retried,
        **soundness(notes, Evidence(record))._asdict(),
        "seconds": _since(started),
    }


def run_takeover(
    config: RunConfig, out: Path, task: Task, record_id: str, view: str, successor: str, repeat: int
) -> Row:
    """Let a successor continue one record under one view, and grade what comes of it."""
    places = Places(out)
    started = time.monotonic()
    name = threads.takeover_of(record_id, view, successor, repeat)
    row: Row = {"task_id": task.id, "record_id": record_id, "view": view, "successor": successor}
    row |= {"repeat": repeat, "trace": name}
    try:
        record = places.records.load(record_id)
        row |= {"point": record.point.kind, "predecessor": record.predecessor, "digest": record.digest}
        if view in views.NEED_NOTES and record.notes is None:
            raise RecordRefused(
                f"record {record_id} has no notes, which the {view} view shows; see notes.jsonl"
            )
        with threads.opened(
            config, task, places, threads.thread_of(row), successor, record, points=()
        ) as run:
            known = recipient(run.context)
            first = views.size_of(views.named(view)(record, known))
            outcome, before = threads.carried_out(run, lambda: run.take_over(record_id, view))
        taken = before + _since(started)
        verdict = _graded(config, task, places, outcome.patch, name)
    except INFRASTRUCTURE as error:
        return row | failed(error, started)
    events = _events(outcome.state)
    continues = Continuation(
        trace=record.thread_id.removeprefix(threads.PREDECESSOR),
        record=record_id,
        point=record.point,
        view=view,
    )
    _keep_trace(places, name, outcome.state, successor, events, continues)
    found, recalls = rediscovery(record, events), recall_tokens(events)
    return row | {
        "resolved": verdict.resolved,
        "outcome": "graded",
        "stop_reason": outcome.stop_reason,
        "detail": outcome.trouble or verdict.detail,
        **_costs(events, outcome, taken),
        "first_prompt_chars": first.characters,
        "first_prompt_tokens": first.tokens,
        "window_tokens": known.window_tokens,
        "prompts": PROMPTS,
        "recalls": len(recalls),
        "recall_events": 2 * len(recalls),
        "recall_tokens": sum(recalls),
        "rediscovery_events": sum(found[kind] for kind in ("read", "search", "command")),
        "rediscovery": {kind: found[kind] for kind in ("read", "search", "command")},
        "verification_events": found["verification"],
        "notes_model": record.notes.model if record.notes else None,
        "patch": outcome.patch,
    }


def _keep_trace(
    places: Places,
    name: str,
    state: AgentState,
    model: str,
    events: list[Event],
    continues: Continuation | None = None,
) -> None:
    """Write a run's whole trace where `evals.detect` and `evals.export` find it."""
    task = task_of(state)
    trace = Trace(
        id=name,
        format="takeover",
        events=tuple(events),
        workspace=task.workspace,
        base_directories=task.base_directories,
        task=task.prompt,
        model=model,
        continues=continues,
    )
    places.traces.mkdir(exist_ok=True)
    write_durably(places.traces / f"{name}.json", json.dumps(trace.model_dump(mode="json")))


def _graded(config: RunConfig, task: Task, places: Places, patch: str, name: str) -> Verdict:
    spec = places.spec(config, task)
    return verdict_on(task, patch, spec, places.logs, name, network=config.grading_network)


def _events(state: AgentState) -> list[Event]:
    """What is written of a run, as its record is: an action's own arguments may hold what looks like a key."""
    return [Event.model_validate(event) for event in redacted(state.get("events", []))]


def _costs(events: list[Event], outcome: Outcome, seconds: float) -> Row:
    spent = tokens(events)
    return {
        "events": len(events),
        "steps": outcome.steps,
        "llm_calls": sum(event.kind == "action" for event in events),
        "prompt_tokens": spent.prompt,
        "cached_tokens": spent.cached,
        "completion_tokens": spent.completion,
        "seconds": round(seconds, 3),
    }


def _counted(usage: Usage) -> Usage:
    return Usage() if usage.estimated else usage


def failed(error: Exception, started: float) -> Row:
    if isinstance(error, OutOfDisk):
        raise error  # every other job would fail as well
    return {
        "resolved": None,
        "outcome": "infrastructure_failure",
        "detail": redacted(str(error))[:500],
        "seconds": _since(started),
    }


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)
