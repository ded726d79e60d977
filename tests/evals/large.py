"""A run of the size of the study, made of recorded runs of real agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evals.journal import Row
from handoff.detectors import points
from handoff.event import Event, HandoffPoint, Usage
from handoff.readers import read
from handoff.record import Claim, HandoffRecord, Notes, TaskBrief, as_json
from handoff.trace import Continuation, Trace

VIEWS = ("repository", "trace", "summary", "structured")
SUCCESSOR = "openai:successor"
CONFIG: dict[str, Any] = {
    "run_id": "1a49e000",
    "views": VIEWS,
    "predecessors": ["openai:predecessor"],
    "successors": [SUCCESSOR],
    "tasks": "swebench",
    "sandbox": "docker",
}


def recorded(shared: Path) -> list[Trace]:
    found = (next(iter(read(path))) for path in sorted((shared / "trajectories").glob("mini-*/*.traj.json")))
    return [trace for trace in found if isinstance(trace, Trace)]


def lay(out: Path, traces: list[Trace], records: int = 181) -> None:
    """A run's directory with so many records, each taken over under every view."""
    for name in ("records", "traces"):
        (out / name).mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(CONFIG))
    rows: dict[str, list[Row]] = {"predecessors": [], "labels": [], "notes": [], "takeovers": []}
    number = 0
    while len(rows["labels"]) < records:
        trace = traces[number % len(traces)]
        name = f"{trace.id.removesuffix('.traj')}-{number}"
        fired = points(trace.events, trace.base_directories, trace.workspace)
        ids = []
        for point in fired[: records - len(rows["labels"])]:
            record = _record(f"{name}.{point.kind}", trace, point)
            ids.append(record.id)
            place = out / "records" / record.id
            place.mkdir()
            (place / "record.json").write_text(as_json(record, exclude={"notes", "review", "envelope"}))
            assert record.notes is not None
            (place / "notes.json").write_text(as_json(record.notes))
            states = ("needs_completion", "already_solved", "behavior_broken")
            state = states[len(rows["labels"]) % 3]
            rows["labels"].append({"record_id": record.id, "outcome": "graded", "handoff_state": state})
            for place_of, view in enumerate(VIEWS):
                taken = traces[(number + 7 * place_of + 1) % len(traces)]
                rows["takeovers"].append(_takeover(out, name, record, view, taken))
        rows["predecessors"].append(
            {
                "task_id": name,
                "predecessor": CONFIG["predecessors"][0],
                "trace": name,
                "outcome": "run",
                "records": ids,
                "stop_reason": "finished",
                "events": len(trace.events),
            }
        )
        number += 1
    for name, each in rows.items():
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))


def _record(name: str, trace: Trace, point: HandoffPoint) -> HandoffRecord:
    text = " ".join(event.text for event in trace.events if event.kind == "action")[:4000]
    return HandoffRecord(
        id=name,
        task=TaskBrief(
            id=name,
            prompt=trace.task,
            base_commit="c",
            base_directories=trace.base_directories,
            workspace=trace.workspace,
        ),
        predecessor=CONFIG["predecessors"][0],
        point=point,
        patch=trace.events[-1].text[:4000],
        snapshot=None,
        thread_id="predecessor." + name,
        checkpoint_id="",
        trace=trace.events[: point.event_index + 1],
        created_at="",
        notes=Notes(
            model="openai:predecessor",
            summary=text,
            structured={"work_completed": (Claim(text=text[:500]),)},
            summary_usage=Usage(),
            structured_usage=Usage(),
        ),
    ).sealed()


def _takeover(out: Path, task: str, record: HandoffRecord, view: str, taken: Trace) -> Row:
    name = f"{record.id}.{view}.successor.1"
    events = tuple(_counted(event) for event in taken.events)
    trace = taken.model_copy(
        update={
            "id": name,
            "format": "takeover",
            "events": events,
            "continues": Continuation(trace=task, record=record.id, point=record.point, view=view),
        }
    )
    (out / "traces" / f"{name}.json").write_text(json.dumps(trace.model_dump(mode="json")))
    key = {"record_id": record.id, "view": view, "successor": SUCCESSOR, "repeat": 1}
    return key | {
        "task_id": task,
        "predecessor": record.predecessor,
        "point": record.point.kind,
        "digest": record.digest,
        "outcome": "graded",
        "resolved": len(events) % 3 != 0,
        "stop_reason": "finished",
        "detail": "",
        "trace": name,
        "patch": events[-1].text[:4000],
        "events": len(events),
        "steps": len(events) // 2,
        "llm_calls": len(events) // 2,
        "prompt_tokens": 1000 * len(events),
        "cached_tokens": None,
        "completion_tokens": 100 * len(events),
        "seconds": 2.5 * len(events),
        "first_prompt_chars": 8000,
        "first_prompt_tokens": 2000,
        "window_tokens": 128_000,
        "recalls": 0,
        "recall_events": 0,
        "recall_tokens": 0,
        "rediscovery_events": len(events) // 5,
        "rediscovery": {"read": len(events) // 5, "search": 0, "command": 0},
        "verification_events": 2,
        "notes_model": "openai:predecessor",
        "prompts": "",
    }


def _counted(event: Event) -> Event:
    usage = Usage(prompt_tokens=1000 * event.index, completion_tokens=100) if event.kind == "action" else None
    return event.model_copy(update={"usage": usage})
