"""No evaluator data and no later event reaches a view, a prompt or a model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest

from langgraph_takeover.evals.tasks.grading import HandoffState
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.views import VIEWS, Recipient
from langgraph_takeover.handoff.views.common import recall_events

from .conftest import ROOT, RunCommand, read_rows

pytestmark = pytest.mark.slow

TASK = "ledger__ledger-12"
GOLD, HIDDEN, PATCH = "gold_canary_9c1e", "test_hidden_canary_4b7d", "patch_canary_27fa"
RECIPIENTS = (Recipient(protocol="text"), Recipient(protocol="native"))


@pytest.fixture(scope="module")
def marked_run(tmp_path_factory: pytest.TempPathFactory, run_main: RunCommand) -> Path:
    """A run of a bundled task whose gold patch, test patch and hidden tests each contain a canary."""
    root = tmp_path_factory.mktemp("planted")
    suite = root / "suite"
    shutil.copytree(ROOT / "evals" / "tasks" / "suite", suite)
    task = suite / "tasks" / TASK
    for name, canary in (("gold.patch", GOLD), ("test.patch", PATCH)):
        patch = (task / name).read_text()
        (task / name).write_text(
            re.sub(r"^(\+[^+\n].*)$", rf"\1  # {canary}", patch, count=1, flags=re.MULTILINE)
        )
    tests = json.loads((task / "tests.json").read_text())
    added = (task / "test.patch").read_text()
    names = (test.split(" ")[0] for test in tests["FAIL_TO_PASS"])
    hidden = next(name for name in names if f"+    def {name}(" in added)
    for path in (task / "tests.json", task / "test.patch", task / "eval.sh"):
        path.write_text(path.read_text().replace(hidden, HIDDEN))
    done = run_main("--view", "all", "--tasks", suite, "--task-ids", TASK, "--out", root / "out")
    assert done.returncode == 0, done.stderr
    return root


def test_the_evaluator_data_contains_the_canaries(marked_run: Path) -> None:
    """Without canaries, the tests below would pass vacuously."""
    task = marked_run / "suite" / "tasks" / TASK
    assert GOLD in (task / "gold.patch").read_text()
    assert HIDDEN in (task / "tests.json").read_text()
    assert PATCH in (task / "test.patch").read_text()
    assert all(row["resolved"] for row in read_rows(marked_run / "out"))
    logs = "".join(
        path.read_text(errors="replace")
        for path in (marked_run / "out" / "grading").rglob("*")
        if path.is_file()
    )
    assert HIDDEN in logs
    assert {row["handoff_state"] for row in read_rows(marked_run / "out", "labels")} <= set(
        get_args(HandoffState)
    )


def test_no_evaluator_data_is_in_a_record_a_view_or_a_prompt(marked_run: Path) -> None:
    out = marked_run / "out"
    store = RecordStore(out / "records")
    words = (GOLD, HIDDEN, PATCH, *get_args(HandoffState))
    assert len(store.list_ids()) == 3
    for name in store.list_ids():
        record = store.load(name)
        texts = [
            record.model_dump_json(),
            recall_events(record.trace, "canary hidden gold"),
            recall_events(record.trace, "e0-e11"),
        ]
        texts += [
            str(message) for view in VIEWS.values() for to in RECIPIENTS for message in view(record, to)
        ]
        assert not [word for word in words for text in texts if word in text]
    database = b"".join(path.read_bytes() for path in out.glob("takeover.sqlite*"))
    assert not [word for word in words if word.encode() in database]


def test_no_later_event_is_in_a_view(marked_run: Path) -> None:
    out = marked_run / "out"
    store = RecordStore(out / "records")
    trace = json.loads((out / "traces" / f"{TASK}.json").read_text())["events"]
    whole = [Event.model_validate(event) for event in trace]
    for name in store.list_ids():
        record = store.load(name)
        assert record.trace == tuple(whole[: len(record.trace)])
        before = " ".join(event.text for event in record.trace) + record.task.prompt
        later = {
            line.strip()
            for event in whole[len(record.trace) :]
            for line in event.text.splitlines()
            if len(line.strip()) > 25 and line.strip() not in before
        }
        assert later or name.endswith("first_post_failure_edit")
        for view in VIEWS.values():
            for to in RECIPIENTS:
                shown = "\n".join(str(message) for message in view(record, to))
                assert not [line for line in later if line in shown]


def test_a_trace_cut_at_a_point_has_the_view_of_its_record(marked_run: Path) -> None:
    store = RecordStore(marked_run / "out" / "records")
    last = store.load(f"{TASK}.first_post_failure_edit")
    for name in store.list_ids():
        record = store.load(name)
        cut = last.model_copy(
            update={
                "trace": last.trace[: len(record.trace)],
                "patch": record.patch,
                "files": record.files,
                "edited_files": record.edited_files,
                "notes": record.notes,
            }
        )
        for view in VIEWS.values():
            assert [str(m) for m in view(cut)] == [str(m) for m in view(record)]
