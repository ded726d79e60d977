"""The four stages of the experiment, and grading. Each is a function of plain values that any process can run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from langgraph_takeover import Outcome, Run
from langgraph_takeover.agents import ExternalAgentError
from langgraph_takeover.errors import CheckpointCorruptError, ThreadExistsError
from langgraph_takeover.evals import models
from langgraph_takeover.evals.run.execution import threads
from langgraph_takeover.evals.run.execution.attempts import (
    TakeoverAttempt,
    choose_attempt,
    count_passing,
    describe_attempts,
    list_test_commands,
    name_attempts,
)
from langgraph_takeover.evals.run.execution.row_parts import (
    describe_agent,
    describe_empty_calls,
    describe_left_out,
    join_details,
    measure_costs,
    measure_first_prompt,
    measure_rediscovery,
    redact_events,
    save_trace,
)
from langgraph_takeover.evals.run.measures.divergence import list_missed_points, measure_divergence
from langgraph_takeover.evals.run.measures.final_patch import (
    clean_patch,
    measure_patch,
    measure_remainder,
    measure_trust,
)
from langgraph_takeover.evals.run.measures.replies import (
    compute_cost_usd,
    count_recall_tokens,
    describe_empty_notes,
    digest_notes,
    find_empty_note,
    has_note,
    list_needed_notes,
    list_truncated_notes,
    sum_usage,
)
from langgraph_takeover.evals.run.rows import (
    INFRASTRUCTURE_FAILURE,
    AgentRow,
    Fields,
    LabelRow,
    NotesRow,
    PredecessorRow,
    Row,
    Takeover,
)
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import GradingError, Verdict, get_verdict
from langgraph_takeover.handoff import prompts, views
from langgraph_takeover.handoff.ledger import FencedError, ThreadHeldError
from langgraph_takeover.handoff.names import TakeoverView
from langgraph_takeover.handoff.notes.contradictions import measure_soundness
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.writer import OUTPUT_TOKENS, write_notes
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.handoff.records.record_facts import add_observed_changes
from langgraph_takeover.handoff.records.verification import require_record
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Continuation, Usage
from langgraph_takeover.handoff.views import NOTE_BY_VIEW
from langgraph_takeover.nodes.agent.take_over import build_recipient
from langgraph_takeover.nodes.model.calls import CallCount
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.nodes.model.note_calls import NotesCall, build_ask
from langgraph_takeover.nodes.session.state_store import SnapshotNotFoundError
from langgraph_takeover.nodes.state import NO_SPENDING, get_task
from langgraph_takeover.sandbox import SandboxManager, start
from langgraph_takeover.sandbox.interface import (
    OutOfDiskError,
    SandboxUnavailableError,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.repository import RepositoryError, patch_since

_RowT = TypeVar("_RowT", bound=Row)


def require_patch(outcome: Outcome) -> None:
    """Raise RepositoryError if a run has no patch although it started: nothing can be graded."""
    if outcome.patch_error and not outcome.diff_from_base and "sandbox_state" in outcome.state:
        raise RepositoryError(outcome.patch_error)


def grade_patch(config: RunConfig, task: Task, paths: RunPaths, patch: str, name: str) -> Verdict:
    spec = paths.spec(config, task)
    return get_verdict(task, patch, spec, paths.logs, name, network=config.grading_network)


def grade_predecessor(
    config: RunConfig, task: Task, paths: RunPaths, outcome: Outcome, name: str
) -> tuple[bool | None, str]:
    """Whether a run that ended by itself solved the task, and a description of a failed grading."""
    if outcome.stop_reason != "finished" or not outcome.records:
        return None, ""
    return _try_grading(config, task, paths, outcome.diff_from_base, f"predecessor.{name}", "final patch")


def grade_cleaned(
    config: RunConfig, task: Task, paths: RunPaths, patch: str, record: HandoffRecord, name: str
) -> tuple[bool | None, str]:
    """Whether the patch without scratch and build files solves the task; None and a description if grading failed."""
    cleaned = clean_patch(patch, record.task.base_directories)
    return _try_grading(config, task, paths, cleaned, f"{name}.cleaned", "patch without scratch files")


def _try_grading(
    config: RunConfig, task: Task, paths: RunPaths, patch: str, name: str, label: str
) -> tuple[bool | None, str]:
    """Whether a patch solves the task; a row is valid without this verdict, so a failure is only described."""
    try:
        return grade_patch(config, task, paths, patch, name).resolved, ""
    except OutOfDiskError:
        raise  # every other job would fail too
    except (GradingError, SandboxUnavailableError) as error:
        return None, f"{label} not graded: {redact(str(error))[:300]}"


def run_or_resume(run: Run, begin: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """Start or resume a thread. Return its outcome, and the seconds of earlier attempts.

    If its snapshot is missing or damaged, or the agent did nothing, the thread is deleted, so that the next attempt starts
    over. Raises ModelError in the latter case: an agent that did nothing has no result.
    """
    outcome, before = _run_or_resume(run, begin)
    if not outcome.state.get("events"):
        run.delete_snapshots()
        raise ModelError(_describe_idle_run(run, outcome))
    return outcome, before


def _describe_idle_run(run: Run, outcome: Outcome) -> str:
    if outcome.stop_reason == "max_seconds":
        return (
            f"no reply within {run.context.max_seconds:g} seconds, the limit of an agent (check the endpoint, "
            "or raise --max-seconds in a new run)"
        )
    if outcome.stop_reason == "context_overflow":
        return (
            "the first prompt exceeds the model's context window, so the agent did nothing "
            "(state the model's window, so that views are cut, or use a shorter view or another model)"
        )
    return f"the agent did nothing before its run ended with {outcome.stop_reason}"


def _run_or_resume(run: Run, begin: Callable[[], Outcome]) -> tuple[Outcome, float]:
    try:
        return begin(), 0.0
    except ThreadExistsError:
        before = run.agent.get_state(run.config).values.get("spent", NO_SPENDING)["seconds"]
    except SnapshotCorruptError:
        run.delete_snapshots()
        raise
    except CheckpointCorruptError as error:
        raise _discard_thread(run, error) from error
    try:
        return run.resume(go_back=True), before
    except CheckpointCorruptError as error:
        raise _discard_thread(run, error) from error
    except (SnapshotNotFoundError, SnapshotCorruptError) as error:
        run.delete_snapshots()
        raise SnapshotNotFoundError(
            f"thread {run.thread} cannot resume: {error}; the resumed run starts it again"
        ) from error


def _discard_thread(run: Run, error: CheckpointCorruptError) -> SnapshotNotFoundError:
    run.discard()
    return SnapshotNotFoundError(
        f"{error}; its checkpoints are deleted here: the resumed run starts the thread again"
    )


INFRASTRUCTURE_ERRORS: tuple[type[Exception], ...] = (
    ModelError,
    SandboxUnavailableError,
    GradingError,
    RecordError,
    ThreadHeldError,
    FencedError,
    SnapshotNotFoundError,
    ExternalAgentError,
    RepositoryError,
)
PROMPTS = prompts.compute_version("handoff", "nodes", "evals.tasks")


def run_predecessor(config: RunConfig, out: Path, task: Task, model: str) -> PredecessorRow:
    """Run the task from the start, and create a record at each handoff point.

    An interrupted run resumes from its last checkpoint, as `run_takeover` does.
    """
    paths = RunPaths(out)
    started = time.monotonic()
    config = config.for_predecessors()
    name = config.name_run(task.id, model)
    known: Fields = {"task_id": task.id, "predecessor": model, "trace": name}
    settings: dict[str, Any] = {"points": config.points, "run_id": name}
    try:
        with threads.open_thread(
            config, task, paths, threads.name_predecessor_thread(name), model, **settings
        ) as run:
            outcome, before = run_or_resume(run, lambda: run.start(task.id, task.prompt))
        require_patch(outcome)
    except INFRASTRUCTURE_ERRORS as error:
        return make_failure_row(PredecessorRow, known, error, started)
    events = redact_events(outcome.state)
    save_trace(paths, name, outcome.state, model, events)
    resolved, trouble = grade_predecessor(config, task, paths, outcome, name)
    return PredecessorRow(
        **known,
        outcome="run",
        prompts=PROMPTS,
        stop_reason=outcome.stop_reason,
        resolved=resolved,
        detail=join_details(outcome.patch_error, trouble, describe_empty_calls(config, model, events)),
        records=outcome.records,
        remainders={
            record_id: measure_remainder(
                events,
                paths.records.load(record_id).point.event_index,
                outcome.stop_reason,
                outcome.uncounted_calls,
            )
            for record_id in outcome.records
        },
        **measure_costs(config, model, events, outcome, before + _measure_elapsed(started)),
        **measure_divergence(config, model, task.id, get_task(outcome.state).workspace, events),
        missed_points=tuple(
            list_missed_points(
                config, model, task.id, [record_id.rpartition(".")[2] for record_id in outcome.records]
            )
        ),
        **describe_agent(outcome),
        **describe_left_out(outcome),
        patch=outcome.diff_from_base,
    )


def grade_snapshot(config: RunConfig, out: Path, task: Task, record_id: str) -> LabelRow:
    """Restore a record's snapshot and grade it officially, to label the record's handoff state."""
    paths = RunPaths(out)
    started = time.monotonic()
    try:
        record = paths.records.load(record_id)
        with SandboxManager(paths.spec(config, task)) as manager:
            sandbox = manager.restore(record.required_snapshot, paths.records.directory(record_id))
            require_record(sandbox, record)
            patch = patch_since(sandbox, record.task.base_commit, open_base=lambda: start(manager.spec))
            patch = add_observed_changes(patch, record.trace)
        verdict = grade_patch(config, task, paths, patch.text, f"snapshot.{record_id}")
    except INFRASTRUCTURE_ERRORS as error:
        return make_failure_row(LabelRow, {"record_id": record_id}, error, started)
    return LabelRow(
        record_id=record_id,
        outcome="graded",
        handoff_state=verdict.handoff_state,
        **verdict.failing_tests,
        detail=verdict.detail,
        **describe_left_out(patch),
        seconds=_measure_elapsed(started),
    )


def write_note(config: RunConfig, out: Path, task: Task, record_id: str) -> NotesRow:
    """Write the notes of one record."""
    paths = RunPaths(out)
    started = time.monotonic()
    known: Fields = {"record_id": record_id}
    try:
        record = paths.records.load(record_id)
        writer = known["model"] = config.choose_writer(record.predecessor)
        model = models.build_notes_model(
            writer,
            task=task,
            base_url=config.base_url,
            models=config.models,
            max_tokens=OUTPUT_TOKENS,
            read_timeout_s=config.find_timeout_s("read_timeout_s", writer),
        )
        calls: list[NotesCall] = []
        lost_calls: list[int] = []
        with threads.open_call_log(paths, f"{threads.NOTES_PREFIX}{record_id}") as log:

            def begin_call() -> CallCount:
                count, lost = log.begin_call(0, model)
                lost_calls.append(lost)
                return count

            ask = build_ask(
                model,
                timeout_s=config.find_timeout_s("notes_timeout_s", writer),
                window_tokens=config.find_window(writer),
                begin_call=begin_call,
                on_call=calls.append,
            )
            notes = write_notes(record, ask, writer, list_needed_notes(config.views))
            trouble = describe_empty_notes(
                calls, writer, models.find_notes_limit(writer, config.models, OUTPUT_TOKENS)
            )
            if empty := find_empty_note(notes, calls, config.views):
                raise ModelError(
                    f"{writer} wrote no {empty} note: {trouble or 'the prompt exceeds its context window'}"
                )
        paths.records.add_notes(record_id, notes)
    except INFRASTRUCTURE_ERRORS as error:
        return make_failure_row(NotesRow, known, error, started)
    usages = (notes.summary_usage, notes.structured_usage)
    costs = [_drop_estimate(usage).model_dump(exclude={"estimated"}) for usage in usages]
    uncounted = sum(call.uncounted_calls for call in calls) + sum(lost_calls)
    spent = sum_usage((call.usage for call in calls), uncounted)
    return NotesRow(
        **known,
        outcome="written",
        detail=trouble,
        truncated=tuple(list_truncated_notes(calls)),
        prompts=notes.prompts,
        usage=dict(zip(("summary", "structured"), costs, strict=True)),
        llm_calls=len(calls),
        prompt_tokens=spent.prompt,
        cached_tokens=spent.cached,
        completion_tokens=spent.completion,
        uncounted_calls=spent.uncounted_calls,
        cost_usd=compute_cost_usd(config.find_price(writer), spent, len(calls)),
        **digest_notes(paths.records.load(record_id).notes or notes),  # as stored, without secrets
        malformed=notes.malformed,
        retried=notes.retried,
        **measure_soundness(notes, Evidence(record))._asdict(),
        seconds=_measure_elapsed(started),
    )


def run_takeover(
    config: RunConfig, out: Path, task: Task, record_id: str, view: str, successor: str, repeat: int
) -> Takeover:
    """Let a successor continue one record under one view, and grade the result."""
    paths = RunPaths(out)
    started = time.monotonic()
    name = threads.name_takeover(record_id, view, successor, repeat)
    attempts: list[TakeoverAttempt] = []
    known: Fields = {"task_id": task.id, "record_id": record_id, "view": view, "successor": successor}
    known |= {"repeat": repeat, "trace": name}
    try:
        record = paths.records.load(record_id)
        known |= {"point": record.point.kind, "predecessor": record.predecessor, "digest": record.digest}
        if view in views.VIEWS_WITH_NOTES and not has_note(record, view):
            raise RecordError(
                f"record {record_id} has no {NOTE_BY_VIEW[view]} note, which the {view} view shows (see its row in "
                "notes.jsonl; retry with --resume, or start a new run with --from if that row says written)"
            )
        commands = list_test_commands(record) if config.choose else ()
        options: dict[str, Any] = {"snapshot_every": "step"} if config.choose else {}
        for attempt in name_attempts(name, config.attempts):
            begun, thread = time.monotonic(), threads.name_takeover_thread(attempt)
            with threads.open_thread(
                config, task, paths, thread, successor, record, points=(), **options
            ) as run:
                recipient = build_recipient(run.context)
                outcome, before = run_or_resume(
                    run, partial(run.take_over, record_id, cast(TakeoverView, view))
                )
                require_patch(outcome)
                taken = before + _measure_elapsed(begun)
                passed = 0
                if config.choose:
                    final = run.session.enter_state(outcome.state["sandbox_state"])
                    passed = count_passing(final, commands, record, config.command_timeout_s)
                    run.session.close_sandbox()
            events = redact_events(outcome.state)
            costs = measure_costs(config, successor, events, outcome, taken)
            attempts.append(TakeoverAttempt(attempt, outcome, events, passed, costs))
        chosen = choose_attempt(attempts)
        outcome, events, costs = chosen.outcome, chosen.events, chosen.costs
        known["trace"] = chosen.name
        verdict = grade_patch(config, task, paths, outcome.diff_from_base, name)
    except INFRASTRUCTURE_ERRORS as error:
        return make_failure_row(Takeover, known, error, started)
    cleaned_resolved, trouble = grade_cleaned(config, task, paths, outcome.diff_from_base, record, name)
    continues = Continuation(
        trace=record.thread_id.removeprefix(threads.PREDECESSOR_PREFIX),
        record=record_id,
        point=record.point,
        view=view,
    )
    for each in attempts:
        save_trace(paths, each.name, each.outcome.state, successor, each.events, continues)
    recalls = count_recall_tokens(events)
    return Takeover(
        **known,
        resolved=verdict.resolved,
        outcome="graded",
        **verdict.failing_tests,
        cleaned_resolved=cleaned_resolved,
        **measure_patch(outcome.diff_from_base, record.task.base_directories)._asdict(),
        stop_reason=outcome.stop_reason,
        detail=join_details(
            outcome.patch_error or verdict.detail, trouble, describe_empty_calls(config, successor, events)
        ),
        **costs,
        **describe_attempts(attempts, chosen, len(commands)),
        **measure_divergence(config, successor, task.id, record.task.workspace, events, record),
        **measure_first_prompt(record, view, recipient, outcome),
        **describe_agent(outcome),
        window_tokens=recipient.window_tokens,
        prompts=PROMPTS,
        recalls=len(recalls),
        recall_events=2 * len(recalls),
        recall_tokens=sum(recalls),
        **measure_rediscovery(record, events),
        **measure_trust(record, events, outcome.diff_from_base)._asdict(),
        notes_model=record.notes.model if record.notes else None,
        note_digest=digest_notes(record.notes)[f"{NOTE_BY_VIEW[view]}_digest"]
        if record.notes and view in NOTE_BY_VIEW
        else None,
        **describe_left_out(outcome),
        patch=outcome.diff_from_base,
    )


def _drop_estimate(usage: Usage) -> Usage:
    return Usage() if usage.estimated else usage


def make_failure_row(model: type[_RowT], known: Fields, error: Exception, started: float) -> _RowT:
    """The row of a job that failed for a reason that says nothing about the agents."""
    if isinstance(error, OutOfDiskError):
        raise error  # every other job would fail too
    verdict = {"resolved": None} if issubclass(model, AgentRow) else {}
    return model(
        **known,
        **verdict,
        outcome=INFRASTRUCTURE_FAILURE,
        detail=redact(str(error))[:500],
        seconds=_measure_elapsed(started),
    )


def _measure_elapsed(started: float) -> float:
    return round(time.monotonic() - started, 3)
