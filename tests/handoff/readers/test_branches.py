"""Sessions that form a tree: the trace has the live branch, and says what the user withdrew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from langgraph_takeover.evals import detect
from langgraph_takeover.handoff.readers import describe_left_out, parse_trace
from langgraph_takeover.handoff.recordings.branches import TreeRow, find_live_rows

from .session_rows import (
    LATER,
    SESSIONS,
    claude_call,
    claude_result,
    claude_row,
    codex_call,
    codex_meta,
    codex_request,
    codex_result,
    codex_row,
    list_commands,
    list_points,
    list_texts,
    load_rows,
)


class ClaudeSession:
    """Writes the rows of a session; every row follows the last one, unless told otherwise."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.leaf: str | None = None

    def add(self, kind: str, content: Any, parent: str | None = "", /, **fields: Any) -> str:
        number = len(self.rows)
        link = {"parentUuid": self.leaf if parent == "" else parent}
        row = claude_row(kind, content, number, **link, **fields)
        if content is None:
            del row["message"]
        self.rows.append(row)
        self.leaf = f"u{number}"
        return self.leaf

    def ask(self, text: str, parent: str | None = "", **fields: Any) -> str:
        return self.add("user", text, parent, **fields)

    def call(self, command: str, call_id: str = "t", parent: str | None = "", reply: str = "") -> str:
        uuid = self.add("assistant", [claude_call(call_id, command=command)], parent)
        self.rows[-1]["message"]["id"] = reply or f"m{uuid}"
        return uuid

    def answer(self, text: str = "ok", call_id: str = "t", parent: str | None = "") -> str:
        return self.add("user", claude_result(call_id, text), parent)

    def run(self, command: str, text: str = "ok") -> str:
        self.call(command)
        return self.answer(text)

    def mark_leaf(self, uuid: str) -> None:
        self.rows.append({"type": "last-prompt", "lastPrompt": "x", "leafUuid": uuid, "sessionId": "s"})


def start() -> ClaudeSession:
    session = ClaudeSession()
    session.ask("Fix add.")
    session.run("cat src/calc.py")
    return session


def test_a_rewind_withdraws_the_request_and_its_actions() -> None:
    session = start()
    kept = session.leaf
    session.ask("Rewrite all in Rust.")
    session.run("sed -i s/a/b/ src/calc.py")
    session.run("python -m pytest -q", "1 failed in 1s")
    session.ask("Only fix the sign.", parent=kept)
    session.run("ls")
    trace = parse_trace(session.rows)
    assert trace.task == "Fix add.\n\nThe user said later:\n\nOnly fix the sign."
    assert list_commands(trace) == ["cat src/calc.py", "ls"]
    assert list_points(trace) == {}
    assert (trace.withdrawn_actions, trace.withdrawn_files) == (2, ("src/calc.py",))
    assert "may still be in the files: src/calc.py" in describe_left_out(trace)


@pytest.mark.parametrize("continues", [True, False])
def test_a_rewind_to_the_first_request_begins_a_new_root(continues: bool) -> None:
    session = start()
    session.ask("Fix sub.", parent=None, **({} if continues else {"sessionId": "other"}))
    session.run("ls")
    trace = parse_trace(session.rows)
    # Rows of another session are the history of a session that was resumed in a new file.
    assert trace.withdrawn_actions == (1 if continues else 0)
    assert trace.task == ("Fix sub." if continues else "Fix add.\n\nThe user said later:\n\nFix sub.")


def test_a_session_that_ends_after_a_rewind() -> None:
    session = start()
    kept = session.leaf
    assert kept is not None
    session.ask("Rewrite all in Rust.")
    session.run("sed -i s/a/b/ src/calc.py")
    session.mark_leaf(kept)
    assert list_commands(parse_trace(session.rows)) == ["cat src/calc.py"]
    # A marker without a rewind never hides work, and rows after it count more.
    session.mark_leaf("u5")
    assert parse_trace(session.rows).withdrawn_actions == 0
    session.mark_leaf(kept)
    session.run("ls")
    assert list_commands(parse_trace(session.rows))[-1] == "ls"


def test_parallel_calls_of_one_reply_are_live() -> None:
    session = start()
    first = session.call("sed -i s/a/b/ src/calc.py", "a", reply="m")
    second = session.call("ls", "b", reply="m")
    session.answer("b", "b", parent=second)
    session.answer("a", "a", parent=first)
    whole = parse_trace(session.rows)
    assert list_texts(whole) == ["ok", "a", "b"]
    session.run("pwd")
    assert parse_trace(session.rows).withdrawn_actions == 0
    assert list_commands(parse_trace(session.rows)) == [*list_commands(whole), "pwd"]


def test_an_interrupted_call_is_live_and_a_dropped_one_is_not() -> None:
    session = start()
    before = session.leaf
    session.call("make test", "killed")
    session.ask("Continue from where you left off.", parent=before, isMeta=True)
    session.ask("Continue.")
    session.run("ls")
    assert list_commands(parse_trace(session.rows)) == ["cat src/calc.py", "make test", "ls"]
    # The client resumed at an earlier reply: the rest of that turn has been withdrawn.
    cut = start()
    kept = cut.leaf
    cut.run("sed -i s/a/b/ src/calc.py")
    cut.ask("Do it otherwise.", parent=kept)
    trace = parse_trace(cut.rows)
    assert (list_commands(trace), trace.withdrawn_files) == (["cat src/calc.py"], ("src/calc.py",))


def test_compaction_continues_the_branch() -> None:
    session = start()
    last = session.leaf
    session.ask("Withdrawn.")
    session.run("rm -r src")
    session.ask("Next.", parent=last)
    before = session.run("ls")
    session.add("system", None, None, subtype="compact_boundary", logicalParentUuid=before)
    session.ask("This session is being continued.", isCompactSummary=True)
    session.run("pwd")
    trace = parse_trace(session.rows)
    assert list_commands(trace) == ["cat src/calc.py", "ls", "pwd"]
    assert trace.task == "Fix add.\n\nThe user said later:\n\nNext."
    # Without the row that the boundary names, it follows the row before.
    lost = [
        row | {"logicalParentUuid": "gone"} if "logicalParentUuid" in row else row for row in session.rows
    ]
    assert parse_trace(lost).events == trace.events


def test_a_missing_row_does_not_hide_those_before_it() -> None:
    session = start()
    session.run("ls")
    session.run("pwd")
    rows = session.rows[:3] + session.rows[4:]
    assert list_commands(parse_trace(rows)) == ["cat src/calc.py", "pwd"]
    subagent = [row | {"isSidechain": True, "uuid": f"side{n}"} for n, row in enumerate(start().rows)]
    assert parse_trace([*session.rows[:5], *subagent, *session.rows[5:]]) == parse_trace(session.rows)
    # Nor does it lead into the conversation of a subagent beside it.
    assert parse_trace([*rows[:3], *subagent, *rows[3:]]) == parse_trace(rows)


def test_commands_of_a_withdrawn_branch_still_run() -> None:
    session = start()
    kept = session.leaf
    session.ask("Start the server.")
    session.run("npm run dev", "Command running in background with ID: b1. Output is being written to: /x.")
    session.ask("Fix add only.", parent=kept)
    assert parse_trace(session.rows).running == ("npm run dev",)


def codex_rows(*steps: str) -> list[dict[str, Any]]:
    """Rows of a rollout: `ask:TEXT`, `run:COMMAND` or `back:N`."""
    rows = [codex_meta()]
    for number, step in enumerate(steps):
        kind, _, text = step.partition(":")
        if kind == "back":
            rows.append(codex_row("event_msg", type="thread_rolled_back", num_turns=json.loads(text)))
        elif kind == "ask":
            rows.append(codex_request(text))
        else:
            rows.append(codex_call("c0", "shell", command=["bash", "-lc", text]))
            rows.append(codex_result("c0", f"Exit code: 0\nWall time: 1 seconds\nOutput:\n{number}"))
    return rows


EDIT = "run:sed -i s/a/b/ src/calc.py"


@pytest.mark.parametrize(
    ("steps", "task", "commands", "withdrawn"),
    [
        (["ask:A", "run:ls", "ask:B", EDIT, "back:1", "ask:C", "run:pwd"], "A C", ["ls", "pwd"], 1),
        (["ask:A", "run:ls", "ask:B", EDIT, "back:1"], "A", ["ls"], 1),
        (["ask:A", EDIT, "ask:B", EDIT, "back:1", "back:1", "ask:C", "run:pwd"], "C", ["pwd"], 2),
        (
            ["ask:A", EDIT, "ask:B", EDIT, "back:1", "ask:C", EDIT, "back:2", "ask:D", "run:ls"],
            "D",
            ["ls"],
            3,
        ),
        (["ask:A", "run:ls", "ask:B", "back:9", "ask:C", "run:pwd"], "C", ["pwd"], 1),
        (["ask:A", "run:ls", "ask:<turn_aborted>no</turn_aborted>", EDIT, "back:1", "ask:C"], "C", [], 2),
        (["ask:A", "run:ls", "back:0", "back:-1", "back:null", "back:true", "back:1.5"], "A", ["ls"], 0),
        (["back:1", "ask:A", "run:ls"], "A", ["ls"], 0),
    ],
)
def test_codex_rolls_turns_back(steps: list[str], task: str, commands: list[str], withdrawn: int) -> None:
    trace = parse_trace(codex_rows(*steps))
    assert trace.task.replace(LATER, " ") == task
    assert (list_commands(trace), trace.withdrawn_actions) == (commands, withdrawn)
    assert set(trace.withdrawn_files) <= {"src/calc.py"}


@pytest.mark.parametrize("is_rewritten", [True, False])
def test_codex_keeps_requests_in_a_compacted_history(is_rewritten: bool) -> None:
    """A rewritten file has the requests before the compaction nowhere else."""
    texts = ("A", "<environment_context>x</environment_context>", "Summary.")
    kept = [codex_request(text)["payload"] for text in texts]
    rows = codex_rows("ask:A", "run:ls", "ask:B", "run:pwd")
    rows.insert(4, codex_row("compacted", message="Summary.", replacement_history=kept))
    trace = parse_trace([rows[0], *rows[4:]] if is_rewritten else rows)
    assert trace.task == "A\n\nThe user said later:\n\nB"


def test_codex_continues_in_another_file() -> None:
    rows = codex_rows("ask:B", "run:ls")
    rows[0]["payload"]["history_base"] = {"thread_id": "01a2", "end_ordinal_exclusive": 40}
    trace = parse_trace(rows)
    assert trace.earlier_session == "01a2"
    assert describe_left_out(trace) == (
        "the work before is in another file, of session 01a2, which is not found or incomplete (put it beside this file)"
    )


def test_qwen_code_rewinds() -> None:
    rows = load_rows("qwen-code.jsonl")
    whole = parse_trace(rows)
    first = next(n for n, row in enumerate(rows) if row["type"] == "tool_result")
    # The program ends the old branch with a row of its own, also if no request follows.
    rewind = {"uuid": "r", "parentUuid": rows[first]["uuid"], "subtype": "rewind", "systemPayload": {}}
    trace = parse_trace([*rows, rows[1] | rewind])
    count = sum(event.kind == "action" and event.tool != "finish" for event in whole.events)
    # The call that was answered after the rewind's target stays without its result.
    assert [event.kind for event in trace.events] == ["action", "observation", "action"]
    assert (trace.withdrawn_actions, trace.withdrawn_files) == (count - 2, ("q.py",))


def test_late_rows_of_qwen_code_withdraw_nothing() -> None:
    rows = load_rows("qwen-code.jsonl")
    late = {**rows[1], "uuid": "late", "subtype": "ui_telemetry", "parentUuid": rows[3]["uuid"]}
    assert parse_trace([*rows, late]) == parse_trace(rows)
    assert parse_trace([*rows, *rows]) == parse_trace(rows)


def test_opencode_reverts() -> None:
    data = json.loads((SESSIONS / "opencode.json").read_text())
    ids = [message["info"]["id"] for message in data["messages"]]
    whole = parse_trace(data)
    assert whole.withdrawn_actions == 0
    count = sum(event.kind == "action" and event.tool != "finish" for event in whole.events)
    last = next(n for n, message in reversed(list(enumerate(data["messages"]))) if len(message["parts"]) > 2)
    data["info"]["revert"] = {"messageID": ids[0]}
    trace = parse_trace(data)
    assert (trace.task, trace.events, trace.withdrawn_actions) == ("", (), count)
    assert trace.withdrawn_files == ("o.py",)
    data["info"]["revert"] = {"messageID": ids[last], "partID": data["messages"][last]["parts"][-1]["id"]}
    assert parse_trace(data).task == whole.task


def test_detect_says_what_was_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    rows = codex_rows("ask:A", "run:ls", "ask:B", EDIT, "back:1")
    path.write_text("\n".join(map(json.dumps, rows)))
    report = json.loads(CliRunner().invoke(detect.app, [str(path), "--json"]).stdout)
    assert report["withdrawn"] == {"actions": 1, "files": ["src/calc.py"]}
    shown = CliRunner().invoke(detect.app, [str(path)]).stderr
    assert "1 withdrawn action left out, whose changes may still be in the files: src/calc.py" in shown


def test_damaged_trees() -> None:
    loop = [TreeRow("a", "b", "request"), TreeRow("b", "a", "reply"), TreeRow("c", "c", "reply")]
    assert find_live_rows(loop) == [False, False, True]
    assert find_live_rows(loop[:2]) == [True, True]
    assert find_live_rows([]) == []
    repeated = [TreeRow("a", None, "request"), TreeRow("b", "a", "reply"), TreeRow("a", "b", "request")]
    assert find_live_rows(repeated) == [True, False, True]
    deep = [TreeRow(str(n), str(n - 1), "reply") for n in range(50_000)]
    assert all(find_live_rows(deep))


LATE_ROWS = [
    ("progress", {"data": {"type": "bash_progress"}}),
    ("attachment", {"attachment": {"type": "hook_success"}}),
    ("system", {"subtype": "turn_duration"}),
]


@pytest.mark.parametrize(("kind", "fields"), LATE_ROWS)
@pytest.mark.parametrize("is_at_end_of_turn", [False, True])
def test_a_late_row_withdraws_nothing(kind: str, fields: dict[str, Any], is_at_end_of_turn: bool) -> None:
    session = start()
    kept = session.leaf if is_at_end_of_turn else session.rows[1]["uuid"]
    session.ask("Next.")
    session.run("ls")
    session.add(kind, None, kept, **fields)
    trace = parse_trace(session.rows)
    assert (list_commands(trace), trace.withdrawn_actions) == (["cat src/calc.py", "ls"], 0)


def test_a_late_result_of_a_parallel_call() -> None:
    session = start()
    first = session.call("make", "a", reply="m")
    second = session.call("ls", "b", parent=first, reply="m")
    session.answer("b", "b", parent=second)
    session.run("pwd")
    session.answer("made", "a", parent=first)
    trace = parse_trace(session.rows)
    assert (list_commands(trace), trace.withdrawn_actions) == (["cat src/calc.py", "make", "ls", "pwd"], 0)
    assert "made" in [event.text for event in trace.events]


def test_results_of_parallel_calls_after_notes() -> None:
    session = start()
    first = session.call("make", "a", reply="m")
    second = session.call("ls", "b", parent=first, reply="m")
    session.answer("made", "a", parent=session.add("progress", None, first))
    session.answer("b", "b", parent=session.add("progress", None, second))
    session.run("pwd")
    assert list_texts(parse_trace(session.rows)) == ["ok", "made", "b", "ok"]


def test_a_command_of_the_user_after_a_rewind() -> None:
    session = start()
    kept = session.leaf
    session.ask("Rewrite all in Rust.")
    session.run("rm -r src")
    session.add("system", None, kept, subtype="local_command", content="<command-name>/cost</command-name>")
    trace = parse_trace(session.rows)
    assert (trace.task, list_commands(trace)) == ("Fix add.", ["cat src/calc.py"])


def test_a_continued_session_goes_back_to_its_own_start() -> None:
    session = start()
    session.ask("Fix sub.", parent=None)
    session.run("rm -r src")
    for row in session.rows[3:]:
        row["sessionId"] = "later"
    session.ask("Fix mul.", parent=None, sessionId="later")
    trace = parse_trace(session.rows)
    assert trace.task == "Fix add.\n\nThe user said later:\n\nFix mul."
    assert (list_commands(trace), trace.withdrawn_actions) == (["cat src/calc.py"], 1)


def test_long_chains_of_notes_take_linear_time() -> None:
    rows = [TreeRow("0", None, "request"), TreeRow("1", "0", "reply", calls=frozenset("a"))]
    for number in range(2, 40_000):
        rows.append(TreeRow(str(number), str(number - 1), "note"))
        rows.append(TreeRow(f"r{number}", str(number), "result", calls=frozenset("a")))
    assert all(find_live_rows(rows))


def test_a_continuation_at_a_stale_row_withdraws_no_request() -> None:
    """As in a session whose client continued by itself at the row that an old marker named."""
    session = start()
    stale = session.leaf
    assert stale is not None
    session.mark_leaf(stale)
    session.ask("Next.")
    session.run("ls")
    whole = len(session.rows)
    session.ask("Continue from where you left off.", parent=stale, isMeta=True)
    session.run("pwd")
    trace = parse_trace(session.rows)
    assert trace.task == "Fix add.\n\nThe user said later:\n\nNext."
    assert (list_commands(trace), trace.withdrawn_actions) == (["cat src/calc.py", "ls", "pwd"], 0)
    # Directly after a rewind, the marker is right.
    session.rows.insert(whole, {"type": "last-prompt", "leafUuid": stale, "sessionId": "s"})
    assert list_commands(parse_trace(session.rows)) == ["cat src/calc.py", "pwd"]


def test_a_request_after_the_progress_of_a_subagent_withdraws_nothing() -> None:
    session = start()
    task = session.call("task", "a")
    progress = session.add("progress", None, task)
    session.answer("done", "a", parent=task)
    session.ask("Next.")
    session.run("ls")
    session.ask("Next.", parent=progress)
    session.run("pwd")
    trace = parse_trace(session.rows)
    assert (list_commands(trace), trace.withdrawn_actions) == (["cat src/calc.py", "task", "ls", "pwd"], 0)
    # A rewind to the progress at the end of a turn is one.
    rewound = start()
    end = rewound.add("progress", None)
    rewound.ask("Rewrite all in Rust.")
    rewound.run("rm -r src")
    rewound.ask("Only fix the sign.", parent=end)
    assert parse_trace(rewound.rows).withdrawn_actions == 1
