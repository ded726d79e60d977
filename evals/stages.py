"""The four stages of the experiment, each a function of plain values that any process can run."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage

from evals import models
from evals.config import RunConfig
from evals.grading import GradingFailed, Verdict, grade
from evals.journal import Row
from evals.measures import rediscovery, tokens
from evals.tasks import Task
from graph import Home, Outcome, Run, ThreadTaken, open_home, open_run
from handoff.event import Event, Usage
from handoff.ledger import Fenced, ThreadHeld, machines
from handoff.note_writing import OUTPUT_TOKENS, TooLong, write_notes
from handoff.record import HandoffRecord, RecordRefused, RecordStore, write_durably
from handoff.trace import Continuation, Trace
from handoff.views import NEED_NOTES
from nodes.replies import ContextOverflow, ModelFailed, ask, usage_of
from nodes.session import BASE, MachineNotKept
from nodes.state import NOTHING_SPENT, AgentState, task_of
from sandbox.machine import OutOfDisk, SandboxSpec, SandboxUnavailable, SnapshotCorrupt
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
_NOTES_TIMEOUT_S = 900.0
_TAKEOVER = "takeover."


class Places:
    """Where a run keeps what."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.work = out / ".repositories"
        self.logs = out / "grading"
        self.records = RecordStore(out / "records")
        self.traces = out / "traces"

    def home(self) -> AbstractContextManager[Home]:
        """Checkpoints, records and machines. Raises LedgerUnusable."""
        return open_home(self.out)


def run_predecessor(config: RunConfig, out: Path, task: Task) -> Row:
    """Run the task once from its beginning; a record is made at every point that fires.

    A run that was cut short goes on where it stands, and so does one of `run_takeover`.
    """
    places = Places(out)
    started = time.monotonic()
    row: Row = {"task_id": task.id, "model": config.predecessor}
    settings: dict[str, Any] = {"points": config.points, "run_id": task.id}
    try:
        with _opened(config, task, places, thread_of(row), config.predecessor, **settings) as run:
            outcome, before = _carried_out(run, lambda: run.start(task.id, task.prompt))
    except INFRASTRUCTURE as error:
        return row | _failed(error, started)
    events = _events(outcome.state)
    _keep_trace(places, task.id, outcome.state, config.predecessor, events)
    return row | {
        "outcome": "run",
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
        with Workbench(_spec(config, task, places)) as workbench:
            machine = workbench.thaw(record.snapshot, places.records.directory(record_id))
            try:
                patch = patch_since(machine, record.task.base_commit)
            except RepositoryBroken as error:
                trouble = f"no patch: {error}"
        verdict = _graded(config, task, places, patch, f"snapshot.{record_id}")
    except INFRASTRUCTURE as error:
        return row | _failed(error, started)
    return row | {
        "outcome": "graded",
        "handoff_state": verdict.handoff_state,
        "detail": trouble or verdict.detail,
    }


def write_note(config: RunConfig, out: Path, task: Task, record_id: str) -> Row:
    """Have the notes of one record written, once."""
    places = Places(out)
    started = time.monotonic()
    row: Row = {"record_id": record_id, "model": config.notes_model}
    try:
        record = places.records.load(record_id)
        notes = write_notes(record, _asker(config, task), config.notes_model)
        places.records.add_notes(record_id, notes)
    except INFRASTRUCTURE as error:
        return row | _failed(error, started)
    costs = {
        kind: _counted(getattr(notes, f"{kind}_usage")).model_dump(exclude={"estimated"})
        for kind in ("summary", "structured")
    }
    return row | {"outcome": "written", "detail": "", "usage": costs, "seconds": _since(started)}


def run_takeover(config: RunConfig, out: Path, task: Task, record_id: str, view: str, repeat: int) -> Row:
    """Let a successor continue one record under one view, and grade what comes of it."""
    places = Places(out)
    started = time.monotonic()
    row: Row = {"task_id": task.id, "record_id": record_id, "view": view}
    row |= {"successor": config.successor, "repeat": repeat}
    thread = thread_of(row)
    name = thread.removeprefix(_TAKEOVER)
    try:
        record = places.records.load(record_id)
        row["point"] = record.point.kind
        if view in NEED_NOTES and record.notes is None:
            raise RecordRefused(
                f"record {record_id} has no notes, which the {view} view shows; see notes.jsonl"
            )
        with _opened(config, task, places, thread, config.successor, record, points=()) as run:
            outcome, before = _carried_out(run, lambda: run.take_over(record_id, view))
        taken = before + _since(started)
        verdict = _graded(config, task, places, outcome.patch, name)
    except INFRASTRUCTURE as error:
        return row | _failed(error, started)
    events = _events(outcome.state)
    continues = Continuation(trace=record.task.id, record=record_id, point=record.point, view=view)
    _keep_trace(places, name, outcome.state, config.successor, events, continues)
    found = rediscovery(record, events)
    return row | {
        "resolved": verdict.resolved,
        "outcome": "graded",
        "stop_reason": outcome.stop_reason,
        "detail": outcome.trouble or verdict.detail,
        **_costs(events, outcome, taken),
        "first_prompt_chars": _first_prompt_chars(outcome.state),
        "rediscovery_events": sum(found[kind] for kind in ("read", "search", "command")),
        "rediscovery": {kind: found[kind] for kind in ("read", "search", "command")},
        "verification_events": found["verification"],
        "notes_model": record.notes.model if record.notes else None,
        "patch": outcome.patch,
    }


def thread_of(row: Row) -> str:
    """The thread that a predecessor's or a takeover's row came from."""
    if "record_id" not in row:
        return f"predecessor.{row['task_id']}"
    return f"{_TAKEOVER}{row['record_id']}.{row['view']}.{row['repeat']}"


def forget_machines(config: RunConfig, home: Home, task: Task, row: Row) -> None:
    """Give back what the machines of a row's thread take, once the row is safe: nothing will go on from them."""
    if row["outcome"] == "infrastructure_failure" or not machines.kept(home.ledger, thread_of(row)):
        return
    with home.session(thread_of(row), _spec(config, task, Places(home.directory))) as (session, _):
        session.forget_machines()
    home.remove_unused_machines()


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


@contextmanager
def _opened(
    config: RunConfig,
    task: Task,
    places: Places,
    thread: str,
    model: str,
    record: HandoffRecord | None = None,
    **settings: Any,
) -> Iterator[Run]:
    """The hold on a thread, with the model that works there and the settings of this run."""
    spec, name = _spec(config, task, places), models.read_name(model)

    def built(workspace: str) -> BaseChatModel:
        return models.build(
            model,
            task=task,
            base_url=config.base_url,
            record=record,
            workspace=workspace,
            max_reply_tokens=config.max_reply_tokens,
        )

    with (
        places.home() as home,
        open_run(
            home,
            thread,
            model=built(record.task.workspace if record else spec.workspace),
            model_name=model,
            sandbox=spec,
            # A step of an LLM is dear to take again. One of the others costs less than its machine's snapshot.
            snapshot_every="step" if name.is_llm else "point",
            protocol=config.protocol,
            max_steps=config.max_steps,
            max_tokens=config.max_tokens,
            max_seconds=config.max_seconds,
            command_timeout_s=config.command_timeout_s,
            **settings,
        ) as run,
    ):
        if record is None and spec.backend == "process" and name.kind == "replay":
            # Only the machine itself tells where the recorded paths are to be moved to.
            there = run.session.enter(BASE).workspace
            run.context = run.context.model_copy(update={"model": built(there)})
        yield run


def _carried_out(run: Run, begin: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """What the thread's run comes to, and the seconds spent on it before: it goes on where it was cut short.

    Where its machine is gone or damaged, it is let go, so that the next attempt goes back to the beginning.
    """
    try:
        return begin(), 0.0
    except ThreadTaken:
        before = run.agent.get_state(run.config).values.get("spent", NOTHING_SPENT)["seconds"]
    except SnapshotCorrupt:
        run.forget_machines()
        raise
    try:
        return run.resume(go_back=True), before
    except (MachineNotKept, SnapshotCorrupt) as error:
        run.forget_machines()
        raise MachineNotKept(
            f"thread {run.thread} cannot go on where it stood: {error}; when the run is resumed, it begins anew"
        ) from error


def _spec(config: RunConfig, task: Task, places: Places) -> SandboxSpec:
    return task.spec(config.sandbox, config.run_id, places.work)


def _graded(config: RunConfig, task: Task, places: Places, patch: str, name: str) -> Verdict:
    spec = _spec(config, task, places)
    return grade(task, patch, spec, places.logs, name, network=config.grading_network)


def _asker(config: RunConfig, task: Task) -> Any:
    # Constructed with its settings, because the client knows which models take no temperature.
    bounded = models.build(
        config.notes_model,
        task=task,
        base_url=config.base_url,
        max_reply_tokens=OUTPUT_TOKENS,
        temperature=0.0,
    )

    def asked(messages: list[BaseMessage]) -> tuple[str, Usage]:
        try:
            reply = ask(bounded, messages, timeout_s=_NOTES_TIMEOUT_S)
        except ContextOverflow as error:
            raise TooLong(str(error)) from error
        return reply.text, usage_of(reply, messages)

    return asked


def _events(state: AgentState) -> list[Event]:
    return [Event.model_validate(event) for event in state.get("events", [])]


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


def _first_prompt_chars(state: AgentState) -> int:
    """The characters of the view's own messages, without the instructions that every agent gets."""
    prompt = itertools.takewhile(lambda message: isinstance(message, HumanMessage), state["messages"][1:])
    return sum(len(message.text) for message in prompt)


def _failed(error: Exception, started: float) -> Row:
    if isinstance(error, OutOfDisk):
        raise error  # every other job would fail as well
    return {
        "resolved": None,
        "outcome": "infrastructure_failure",
        "detail": str(error)[:500],
        "seconds": _since(started),
    }


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)
