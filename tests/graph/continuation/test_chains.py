"""A chain of agents: the record of a successor's session has the work of everybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from langgraph_takeover.agents import Capture, prepare_continuation
from langgraph_takeover.graph.continuation.undo import discard_record
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.records.record_facts import list_chain_lines
from langgraph_takeover.handoff.views import VIEWS

from ...agent_sessions import EDIT, FAILURE, write_claude_session, write_codex_session
from .conftest import Workplace

FIX = "sed -i 's/ - 1//' shop/price.py"


def continue_record(workplace: Workplace, program: Path, record: str, name: str, view: str) -> Path:
    checkout = workplace.root / name
    prepared = prepare_continuation(
        workplace.home, record, agent="claude-code", view=view, directory=checkout, program=program,
        user_home=workplace.user_home,
    )  # fmt: skip
    steps = [(FIX, "", 0), ("python3 -m unittest -q", "Ran 1 test in 0.001s\n\nOK\n", 0)]
    if prepared.session_files:
        (path,) = prepared.session_files
        more = write_claude_session(workplace.root / "more", str(checkout), steps, prompt=prepared.prompt)
        last = json.loads(path.read_text().splitlines()[-1])["uuid"]
        rows = [json.loads(line) for line in more.read_text().splitlines()]
        rows[0]["parentUuid"] = last
        for number, row in enumerate(rows):
            row["sessionId"] = prepared.session_id
            for part in row["message"]["content"] if isinstance(row["message"]["content"], list) else []:
                part.update(
                    {key: f"{value}_new" for key, value in part.items() if key in ("id", "tool_use_id")}
                )
            row["message"].update({"id": f"msg_new_{number}"} if row["type"] == "assistant" else {})
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    else:
        write_claude_session(workplace.user_home, str(checkout), steps, prompt=prepared.prompt)
    (checkout / "shop/price.py").write_text("def total(prices):\n    return sum(prices)\n")
    return checkout


def list_commands(done: Capture) -> list[str]:
    return [event.arguments["command"] for event in done.record.trace if event.kind == "action"]


@pytest.mark.parametrize("view", ["structured", "trace", "transcript"])
def test_the_work_of_both_whatever_view_stood_between(workplace: Workplace, program: Path, view: str) -> None:
    first = workplace.capture()
    checkout = continue_record(workplace, program, first.record.id, "second", view)
    second = workplace.capture("claude-code", repository=checkout)
    number = len(first.record.trace)
    assert second.record.trace[:number] == first.record.trace
    assert [event.index for event in second.record.trace] == list(range(number + 4))
    assert list_commands(second) == [*list_commands(first), FIX, "python3 -m unittest -q"]
    assert second.record.parent is not None
    assert (second.record.parent.id, second.record.parent.digest) == (first.record.id, first.record.digest)
    assert list_chain_lines(second.record) == [
        f"agent 1: codex, e0 to e{number - 1}", f"agent 2: claude-code (claude-x), e{number} to e{number + 3}",
    ]  # fmt: skip
    for name, render in VIEWS.items():
        text = "\n".join(message.text for message in render(second.record))
        assert ("agent 2: claude-code" in text) == (name not in ("repository",)), name
    note = VIEWS["structured"](second.record)[0].text
    assert f"`{EDIT}` → exit code 0 (agent 1)" in note
    assert f"`{FIX}` → exit code 0 (agent 2)" in note
    assert "FAIL: test_total" in VIEWS["trace"](second.record)[0].text
    assert " · agent 2 · action" in VIEWS["trace"](second.record)[0].text
    assert "AssertionError: 2 != 3" in FAILURE


def test_three_agents_and_one_of_them_twice(workplace: Workplace, program: Path) -> None:
    done, checkout = workplace.capture(), workplace.repository
    for name in ("second", "third"):
        checkout = continue_record(workplace, program, done.record.id, name, "structured")
        done = workplace.capture("claude-code", repository=checkout)
    assert [line.split(",")[0] for line in list_chain_lines(done.record)] == [
        "agent 1: codex", "agent 2: claude-code (claude-x)", "agent 3: claude-code (claude-x)",
    ]  # fmt: skip
    assert list_commands(done).count(FIX) == 2
    assert RecordStore(workplace.home / "records").load(done.record.id) == done.record


@pytest.mark.parametrize("view", ["structured", "transcript"])
def test_a_lost_parent_is_named(workplace: Workplace, program: Path, view: str) -> None:
    first = workplace.capture()
    checkout = continue_record(workplace, program, first.record.id, "second", view)
    (first.directory / "record.json").write_text("{}")
    second = workplace.capture("claude-code", repository=checkout)
    lines = list_chain_lines(second.record)
    assert lines[0].startswith("earlier work that this record lacks: ")
    assert "record.json" in lines[0]
    assert "earlier work that this record lacks" in VIEWS["structured"](second.record)[0].text
    assert len(lines) == (3 if view == "transcript" else 2)


def test_a_new_directory_of_that_name_has_no_parent(workplace: Workplace, program: Path) -> None:
    first = workplace.capture()
    checkout = continue_record(workplace, program, first.record.id, "second", "structured")
    checkout.rename(workplace.root / "moved")
    workplace.repository.rename(checkout)
    write_codex_session(workplace.user_home, str(checkout), [("true", "", 0)], session_id="0" * 36)
    assert workplace.capture(repository=checkout, session="0" * 36).record.parent is None


def test_a_discarded_record_names_those_that_continue_it(workplace: Workplace, program: Path) -> None:
    first = workplace.capture()
    checkout = continue_record(workplace, program, first.record.id, "second", "structured")
    second = workplace.capture("claude-code", repository=checkout)
    kept = discard_record(workplace.home, first.record.id, force=True).kept
    assert f"{second.directory} (continues it, with a snapshot of its own)" in kept
