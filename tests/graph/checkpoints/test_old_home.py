"""A home that an earlier version wrote opens, resumes and hands over: `old_home.tar.xz`.

Version 0.1 wrote it, when events had all fields and their own texts. It holds the base repository, the home of a thread
that stopped at its third step, and the events of that thread as they were then.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel

from langgraph_takeover import Home, Outcome, build_agent, open_home, open_run, resume, take_over
from langgraph_takeover.handoff.records.verification import verify_record
from langgraph_takeover.nodes.events import load_events
from langgraph_takeover.sandbox.interface import SandboxSpec

from ..conftest import DONE, NOTE, SHOW, scripted_model

ARCHIVE = Path(__file__).with_name("old_home.tar.xz")
RECORD = "run.first_source_edit"
MODEL_REPLIES = ("", "", "", NOTE, SHOW, DONE)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Home]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with open_home(tmp_path / "home") as home:
        yield home


def options(home: Home, model: BaseChatModel) -> dict[str, Any]:
    base = home.directory.parent / "base"
    return {"model": model, "sandbox": SandboxSpec(backend="process", owner="test-agent", directory=base)}


def old_events(home: Home) -> list[dict[str, Any]]:
    return list(json.loads((home.directory.parent / "events.json").read_text()))


def finish(home: Home) -> Outcome:
    return resume(home, "thread", **options(home, scripted_model(*MODEL_REPLIES)), points=())


def test_an_old_thread_resumes_with_the_same_trace(old: Home) -> None:
    before = old_events(old)
    outcome = finish(old)
    assert (outcome.stop_reason, outcome.steps) == ("finished", 6)
    assert [event.model_dump(mode="json") for event in outcome.events[: len(before)]] == before
    assert outcome.state["events"][: len(before)] == before
    assert "text" not in outcome.state["events"][len(before)]
    assert outcome.events[len(before)].text == NOTE
    assert "n * 3" in outcome.patch


def test_every_old_checkpoint_is_readable(old: Home) -> None:
    graph = build_agent(old.saver)
    lengths = [
        len(load_events(state.values))
        for state in graph.get_state_history({"configurable": {"thread_id": "thread"}})
    ]
    assert sorted(lengths) == lengths[::-1]
    assert max(lengths) == len(old_events(old))


def test_an_old_record_keeps_its_digest_and_is_taken_over(old: Home) -> None:
    assert not verify_record(old.records.directory(RECORD)).problems
    record = old.records.load(RECORD)
    assert [event.model_dump(mode="json") for event in record.trace] == old_events(old)[: len(record.trace)]
    taken = take_over(
        old,
        "successor",
        record_id=RECORD,
        view="trace",
        **options(old, scripted_model(NOTE, DONE)),
        points=(),
    )
    assert taken.stop_reason == "finished"
    assert "notes.txt" in taken.patch
    assert "pkg/core.py" not in taken.patch  # the predecessor's change
    assert "pkg/core.py" in taken.diff_from_base


def test_the_first_diff_after_a_resume_starts_from_the_old_change(old: Home) -> None:
    fix = "```bash\nsed -i 's/n \\* 3/n * 2/' pkg/core.py\n```"
    with open_run(old, "thread", **options(old, scripted_model("", "", "", fix, DONE)), points=()) as run:
        run.resume()
        graph = run.agent
        history = list(graph.get_state_history(run.config))
    diffs = [state.values["diff"] for state in history if "diff" in state.values]
    assert diffs == [
        "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,2 +1,2 @@\n def double(n):\n-    return n * 3\n+    return n * 2\n"
    ]
