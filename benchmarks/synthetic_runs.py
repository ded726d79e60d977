"""Run directories built from existing traces, without a sandbox or a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from langgraph_takeover.evals.run.rows import Fields
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord, Notes, TaskBrief, to_json
from langgraph_takeover.handoff.trace.events import Continuation, HandoffPoint, Trace, Usage

VIEWS = ("repository", "trace", "summary", "structured")
_STATES = ("needs_completion", "already_solved", "behavior_broken")
PREDECESSOR, SUCCESSOR = "openai:predecessor", "openai:successor"


def write_run(
    out: Path,
    traces: Sequence[Trace],
    successor_traces: Sequence[Trace],
    *,
    records: int,
    views: Sequence[str] = VIEWS,
    successor: str = SUCCESSOR,
    rename_task: Callable[[str], str] = str,
    patch: str | None = None,
) -> Path:
    """Write a run with `records` records of these predecessor traces, each taken over under every view.

    Successor traces are assigned in rotation.
    """
    for name in ("records", "traces"):
        (out / name).mkdir(parents=True)
    config = RunConfig(
        run_id="1a49e000",
        views=tuple(views),
        predecessors=(PREDECESSOR,),
        successors=(successor,),
        tasks="swebench",
        sandbox="docker",
    )
    config.save(out)
    rows: dict[str, list[Fields]] = {"predecessors": [], "labels": [], "notes": [], "takeovers": []}
    for number in count():
        missing = records - len(rows["labels"])
        if not missing:
            break
        trace = traces[number % len(traces)]
        name = f"{trace.id.removesuffix('.traj')}-{number}"
        points = list_points(trace.events, trace.base_directories, trace.workspace)[:missing]
        made = [_write_record(out, name, rename_task(name), trace, point) for point in points]
        for record in made:
            state = _STATES[len(rows["labels"]) % 3]
            rows["labels"].append({"record_id": record.id, "outcome": "graded", "handoff_state": state})
            for index, view in enumerate(views):
                successor_trace = successor_traces[(number + 7 * index + 1) % len(successor_traces)]
                rows["takeovers"].append(
                    _write_takeover(out, record, view, successor, successor_trace, patch)
                )
        rows["predecessors"].append(
            {
                "task_id": rename_task(name),
                "predecessor": PREDECESSOR,
                "trace": name,
                "outcome": "run",
                "records": [record.id for record in made],
                "stop_reason": "finished",
                "events": len(trace.events),
            }
        )
    for stage, stage_rows in rows.items():
        (out / f"{stage}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stage_rows))
    return out


def _write_record(out: Path, name: str, task: str, trace: Trace, point: HandoffPoint) -> HandoffRecord:
    summary = " ".join(event.text for event in trace.events if event.kind == "action")[:4000]
    brief = TaskBrief(
        id=task,
        prompt=trace.task,
        base_commit="c",
        base_directories=trace.base_directories,
        workspace=trace.workspace,
    )
    notes = Notes(
        model=PREDECESSOR,
        summary=summary,
        structured={"work_completed": (Claim(text=summary[:500]),)},
        summary_usage=Usage(),
        structured_usage=Usage(),
    )
    record = HandoffRecord(
        id=f"{name}.{point.kind}",
        task=brief,
        predecessor=PREDECESSOR,
        point=point,
        patch=trace.events[-1].text[:4000],
        snapshot=None,
        thread_id=f"predecessor.{name}",
        checkpoint_id="",
        trace=trace.events[: point.event_index + 1],
        created_at="",
        notes=notes,
    ).seal()
    directory = out / "records" / record.id
    directory.mkdir()
    (directory / "record.json").write_text(to_json(record, exclude={"notes", "review", "envelope"}))
    (directory / "notes.json").write_text(to_json(notes.seal_for(record.id)))
    return record


def _write_takeover(
    out: Path, record: HandoffRecord, view: str, successor: str, successor_trace: Trace, patch: str | None
) -> Fields:
    name = f"{record.id}.{view}.successor.1"
    continuation = Continuation(trace=record.task.id, record=record.id, point=record.point, view=view)
    update = {"id": name, "format": "takeover", "continues": continuation}
    trace = successor_trace.model_copy(update=update)
    (out / "traces" / f"{name}.json").write_text(json.dumps(trace.model_dump(mode="json")))
    events = len(successor_trace.events)
    return {
        "record_id": record.id,
        "view": view,
        "successor": successor,
        "repeat": 1,
        "task_id": record.task.id,
        "predecessor": record.predecessor,
        "point": record.point.kind,
        "digest": record.digest,
        "outcome": "graded",
        "resolved": events % 3 != 0,
        "stop_reason": "finished",
        "trace": name,
        "patch": successor_trace.events[-1].text[:4000] if patch is None else patch,
        "events": events,
        "steps": events // 2,
        "llm_calls": events // 2,
        "prompt_tokens": 1000 * events,
        "completion_tokens": 100 * events,
        "seconds": 2.5 * events,
        "first_prompt_chars": 8000,
        "first_prompt_tokens": 2000,
        "window_tokens": 128_000,
        "rediscovery_events": events // 5,
        "rediscovery": {"read": events // 5, "search": 0, "command": 0},
        "verification_events": 2,
    }
