"""`python -m handoff`: list and move handoffs, and let a person take one and return it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from langgraph_takeover.graph.cli.handoff_options import list_homes
from langgraph_takeover.graph.delivery.offers import hand_over
from langgraph_takeover.graph.delivery.recovery import repair
from langgraph_takeover.handoff.__main__ import main
from langgraph_takeover.handoff.ledger import acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.handoff.ledger.store import handoffs as rows
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.sandbox.backends import host

from ...command_line import call_main
from ...conftest import skip_missing
from ..conftest import DONE, EDIT, FIX, RunHarness, scripted_model
from ..delivery.test_delivery import QUICK, RECORD, UNDERSTOOD, deliver_record

ROOT = Path(__file__).parents[3]
READS_STDIN = ("take", "give")


@pytest.fixture
def backend() -> Any:
    if reason := host.unavailable_reason():
        skip_missing(reason)
    return "host"


def handoff(*argv: str, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    if argv[0] not in READS_STDIN:
        return call_main(main, *argv, environment={**os.environ, **environment})
    return subprocess.run(
        [sys.executable, "-m", "handoff", *argv],
        input=typed,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


def offer_handoff(bench: RunHarness, to: str = "ann") -> Handoff:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    return hand_over(
        bench.home,
        RECORD,
        target=to,
        source="writer",
        envelope=Envelope(message="Mind \x1b[2J the minus."),
        idempotency_key="k",
    )


@pytest.mark.slow
def test_a_person_takes_a_handoff_works_and_hands_it_to_an_agent(bench: RunHarness) -> None:
    found = offer_handoff(bench)
    record, home = str(bench.home.records.directory(RECORD)), str(bench.home.directory)
    typed = "double(3) is 6\nlook at the file\nthat the test fails\ncat pkg/core.py\ncd pkg\nedit core.py\npwd\nexit\n"
    seen = handoff("take", record, "--as", "ann", typed=typed, EDITOR="sed -i s/3/4/")
    assert (seen.returncode, seen.stderr) == (0, "")
    assert "Continuation state:** changed_not_validated" in seen.stdout, "the note is printed"
    assert "return n * 3" in seen.stdout
    assert seen.stdout.rstrip().endswith(f"saved as it is (return to it: handoff take {record})")
    assert handoffs.load(bench.home.ledger, found.id).state == "active"
    back = handoff("take", record, "--as", "ann", typed="pwd; cat core.py\n")
    assert "/testbed/pkg\ndef double(n):\n    return n * 4" in back.stdout, (
        "the shell and the files are as they were left"
    )
    result = handoff("give", record, "--as", "ann", "--to", "tester", "--message", "only the number is wrong")
    assert result.returncode == 0, result.stderr
    states = {each["to"] if "to" in each else each["target"]: each for each in list_as_json(home)}
    assert states["ann"]["state"] == "completed"
    assert states["tester"]["state"] == "offered"
    sent = RecordStore(bench.home.records.root).load(states["tester"]["record"])
    assert sent.predecessor == "person:ann"
    commands = [event.arguments.get("command", "") for event in sent.trace if event.kind == "action"]
    assert "cat pkg/core.py" in commands
    assert any(command.startswith("cat > core.py <<") for command in commands), "an edit is an event, too"
    edited = [change.path for event in sent.trace for change in event.changes]
    assert edited == ["pkg/core.py", "pkg/core.py"]
    model = scripted_model(UNDERSTOOD, DONE)
    done = deliver_record(bench, handoffs.load(bench.home.ledger, states["tester"]["id"]), model)
    assert done.handoff.state == "completed"
    assert "From: ann" in model.seen[0][1].text
    assert "only the number is wrong" in model.seen[0][1].text


def list_as_json(home: str) -> list[dict[str, Any]]:
    done = handoff("list", "--home", home, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_table_history_and_next_prompt(bench: RunHarness) -> None:
    found, home = offer_handoff(bench, "tester"), str(bench.home.directory)
    deliver_record(bench, found, scripted_model("?", "?", "?", "?"))
    table = handoff("list", "--home", home, "--state", "timed_out").stdout
    assert all(word in table for word in (found.id, "timed_out", "writer", "tester", RECORD))
    done = handoff("history", found.id, "--home", home)
    assert [line.split()[2] for line in done.stdout.splitlines()[1:6]] == [
        "prepared", "offered", "timed_out", "offered", "timed_out",
    ]  # fmt: skip
    assert "lacked goal" in done.stdout
    assert len(json.loads(handoff("history", found.id, "--home", home, "--json").stdout)["history"]) == 5
    shown = handoff("show", found.id, "--home", home, "--view", "structured")
    assert "Message: Mind \\x1b[2J the minus." in shown.stdout


@pytest.mark.slow
def test_retry_unblock_and_rollback(bench: RunHarness) -> None:
    found, home = offer_handoff(bench, "tester"), str(bench.home.directory)
    down = scripted_model("?", "?", "?", "?")
    deliver_record(bench, found, down)
    again = handoff("retry", found.id, "--home", home)
    assert (again.returncode, "offered to tester again" in again.stdout) == (0, True)
    deliver_record(
        bench, found, down, delivery_policy=QUICK.model_copy(update={"rounds": 1}), on_blocked=lambda _: None
    )
    assert handoffs.load(bench.home.ledger, found.id).state == "blocked"
    refused = handoff("retry", found.id, "--home", home)
    assert (refused.returncode, "unblock" in refused.stderr) == (2, True)
    assert handoff("unblock", found.id, "--home", home).returncode == 0
    deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE))
    back = handoff("rollback", found.id, "--home", home, "--reason", "no good")
    assert back.returncode == 0, back.stderr
    assert "thread thread is at checkpoint" in back.stdout
    assert bench.resume(scripted_model("", FIX, DONE)).stop_reason == "finished"


@pytest.mark.slow
def test_retry_replaces_a_working_successor_only_with_force(bench: RunHarness) -> None:
    found, home = offer_handoff(bench, "tester"), str(bench.home.directory)
    lease = acquire(bench.home.ledger, "successor")
    handoffs.change_state(bench.home.ledger, found.id, "accepted", by="tester", successor="successor")
    refused = handoff("retry", found.id, "--home", home)
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert handoff("retry", found.id, "--home", home, "--force").returncode == 0
    with bench.home.ledger.read_transaction() as connection, pytest.raises(Exception, match=found.id):
        lease.require(connection)


USAGE_ERRORS: list[tuple[list[str], str]] = [
    (["list", "--home", "{home}", "--state", "lost"], "--state: unknown state 'lost'"),
    (["list", "--home", "nowhere"], "--home: directory not found: nowhere"),
    (["status", "--home", "{root}"], "no takeover.sqlite in it"),
    (["list", "extra"], "unexpected extra argument"),
    (["list", "--hom", "x"], "no such option: --hom"),
    (["lst"], "no such command 'lst'"),
    (["show"], "missing argument 'RECORD' (see: handoff show --help)"),
    (["history", "another", "--home", "{home}"], "handoff not found: 'another'"),
    (["history", "\x1b[2J", "--home", "{home}"], "handoff not found: '\\x1b[2J'"),
    (["unblock", "{id}", "--home", "{home}"], "is offered, not blocked"),
    (["give", "{record}", "--as", "zoe", "--to", "tester"], "zoe has not taken"),
    (["give", "{record}", "--as", "ann", "--to", " "], "not an agent's name"),
    (
        ["give", "{record}", "--to", "zoe", "--agent", "ann", "--agent", "bob"],
        "unknown agent 'zoe' (known agents: ann, bob)",
    ),
    (["take", "{root}"], "RECORD: record not found"),
    (["export", "{record}"], "missing argument 'FILE'"),
]


@pytest.mark.slow
def test_usage_errors_are_one_line(bench: RunHarness) -> None:
    known = {
        "home": bench.home.directory, "root": bench.home.directory.parent, "id": offer_handoff(bench).id,
        "record": bench.home.records.directory(RECORD),
    }  # fmt: skip
    for argv, expected in USAGE_ERRORS:
        done = handoff(*[each.format(**known) for each in argv])
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert expected in done.stderr


@pytest.mark.parametrize(
    ("command", "empty"),
    [("list", []), ("status", {}), ("thin", {}), ("repair", []), ("stats", {"handoffs": 0})],
)
def test_a_home_without_a_ledger_is_empty(tmp_path: Path, command: str, empty: Any) -> None:
    """Such as one that has captured records only. It gets no ledger by being asked."""
    (tmp_path / "records").mkdir()
    done = handoff(command, "--json", "--home", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found == empty or empty.items() <= found.items()
    lines = {
        "list": f"no handoffs and no records in {tmp_path}\n",
        "status": f"no threads in {tmp_path}\n",
        "thin": f"no threads in {tmp_path}\n",
        "repair": "nothing to repair\n",
    }
    if command in lines:
        assert handoff(command, "--home", str(tmp_path)).stdout == lines[command]
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_old_snapshots_are_thinned_except_on_held_threads(bench: RunHarness) -> None:
    for thread in ("old", "held"):
        model = scripted_model(
            *(f"```bash\necho {n} >> notes.txt\n```" for n in range(4)), "<finish>Done.</finish>"
        )
        bench.run(model, thread=thread, run_id=thread)
    home = str(bench.home.directory)
    assert json.loads(handoff("thin", "--home", home, "--json").stdout) == {"held": 0, "old": 0}
    with bench.open_run(scripted_model(), thread="held"):
        done = handoff("thin", "--home", home, "--keep-every-step-s", "0", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["old"]) == (0, 3)
    assert found["held"].startswith("not thinned: thread 'held' is held by")
    assert handoff("thin", "ol", "--home", home, "--keep-every-step-s", "0").stdout.split()[-2:] == [
        "old",
        "0",
    ]


def test_a_thread_is_stopped_by_its_unique_beginning(bench: RunHarness) -> None:
    home = str(bench.home.directory)
    for thread in ("fix-1", "fix-12", "write"):
        acquire(bench.home.ledger, thread).release()
    assert handoff("stop", "wri", "--home", home).stdout.startswith("thread 'write' is not running")
    assert handoff("stop", "fix-1", "--home", home).stdout.startswith("thread 'fix-1' is not running")
    refused = handoff("stop", "fix", "--home", home)
    assert (refused.returncode, "THREAD: 'fix' is ambiguous: fix-1, fix-12" in refused.stderr) == (2, True)


def test_the_home_of_the_current_directory_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".takeover").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert list_homes(None) == [tmp_path / ".takeover"]
    monkeypatch.chdir("/")
    assert list_homes(None) == [tmp_path / ".takeover"]


def test_startup_repairs_dead_handoffs_and_reports_the_rest(bench: RunHarness) -> None:
    found = offer_handoff(bench, "tester")
    with bench.home.ledger.write_transaction() as connection:
        connection.execute(update(rows).values(deadline_at=time.time() - 5))
    died = handoffs.prepare(
        bench.home.ledger, handoff_id="died", record="lost", digest="d", task="t", thread="other", source="a",
        target="b", envelope=Envelope(), by="a",
    )  # fmt: skip
    with bench.home.ledger.write_transaction() as connection:
        connection.execute(update(rows).where(rows.c.id == died.id).values(changed_at=time.time() - 3600))
    half = bench.home.records.root / ".partial-x.12345678"
    half.mkdir()
    os.utime(half, (1, 1))
    repairs = {(each.subject, each.action.split(";")[0].split(",")[0]) for each in repair(bench.home)}
    assert (f"handoff {found.id}", "set to timed_out") in repairs
    assert ("handoff died", "offered to b") in repairs
    assert ("handoff died", "send the record again") in repairs
    assert ("records", "removed") in repairs
    assert not half.exists()
    after = [each.subject for each in repair(bench.home)]
    assert after == ["handoff died"], "what was mended is not found again"
    deliver_record(bench, found, scripted_model(UNDERSTOOD, DONE))
    assert handoffs.load(bench.home.ledger, found.id).state == "completed"


def test_a_successor_without_a_process_is_reported(bench: RunHarness) -> None:
    found = offer_handoff(bench, "tester")
    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE), max_steps=1)
    assert done.handoff.state == "active"
    (problem,) = repair(bench.home)
    assert "no process works on" in problem.problem
    assert found.id in problem.action


@pytest.mark.slow
def test_an_interrupt_restores_the_terminal(bench: RunHarness) -> None:
    offer_handoff(bench, "tester")
    record = str(bench.home.records.directory(RECORD))
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "handoff", "take", record, "--as", "ann"])
    before, seen = termios.tcgetattr(terminal), ""
    while "testbed$ " not in seen:
        seen += os.read(terminal, 65536).decode()
    os.write(terminal, b"echo half a comm\x03")
    while "interrupted (run the same command again" not in seen:
        seen += os.read(terminal, 65536).decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert termios.tcgetattr(terminal) == before
    os.close(terminal)
    assert "saved as it is" in handoff("take", record, "--as", "ann", typed="pwd\n").stdout


@pytest.mark.slow
def test_threads_are_shown_and_stopped(bench: RunHarness) -> None:
    home = ("--home", str(bench.home.directory))
    bench.run(scripted_model(EDIT, DONE), thread="done")
    lease = acquire(bench.home.ledger, "busy")
    try:
        assert json.loads(handoff("status", *home, "--json").stdout) == {
            "busy": "running",
            "done": "finished",
        }
        assert handoff("stop", "busy", *home, "--now").stdout == "thread 'busy' stops now\n"
        assert handoff("stop", "busy", *home).stdout == "thread 'busy' stops after its current step\n"
        assert "stopping" in handoff("status", *home).stdout
        assert lease.stop_mode in (None, "now"), "a later request does not weaken it"
    finally:
        lease.release()
    assert handoff("stop", "done", *home).stdout == "thread 'done' is not running: finished\n"
    unknown = handoff("stop", "nowhere", *home)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("error: thread not found: 'nowhere'")
