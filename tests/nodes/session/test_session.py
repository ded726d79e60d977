"""One hold on one thread: actions that are done once, and machines that are entered as they were."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.ledger import Ledger, acquire, effects, snapshots
from langgraph_takeover.handoff.ledger.effects import EffectKey
from langgraph_takeover.handoff.records.record import RecordStore, TaskBrief
from langgraph_takeover.nodes.agent.lifecycle import build_task_brief
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.snapshots import BASE_STATE, SnapshotEvery, SnapshotNotFoundError
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec, SandboxUnavailableError


class Hall:
    """A ledger, a base, and as many holds on one thread, one after another, as a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        base = root / "base"
        base.mkdir()
        (base / "notes.txt").write_text("")
        self.git = ["git", "-C", str(base), "-c", "user.name=t", "-c", "user.email=t@t"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
            subprocess.run([*self.git, *words], check=True)
        self.spec = SandboxSpec(backend="process", directory=base, owner="test-session")
        self.ledger = Ledger(f"sqlite:///{root / 'ledger.sqlite'}")
        self.held: Session | None = None

    def enter(self, every: SnapshotEvery = "step") -> Session:
        """A new hold, after the death of the one before, whose machine is gone with it."""
        if self.held is not None:
            self.held.close()
        lease = acquire(self.ledger, "thread")
        records = RecordStore(self.root / "records")
        self.held = Session(lease, self.spec, records, self.root / "machines", snapshot_every=every)
        return self.held


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    made = Hall(tmp_path)
    yield made
    if made.held is not None:
        made.held.close()
    made.ledger.close()


def note(text: str) -> Callable[[Sandbox], Observation]:
    def do(machine: Sandbox) -> Observation:
        result = machine.run(f"echo {text} >> notes.txt", timeout_s=10)
        return Observation(text=f"noted {text}", changes=machine.changes(), exit_code=result.exit_code)

    return do


def look(machine: Sandbox) -> Observation:
    result = machine.run("cat notes.txt; pwd; echo $SAID", timeout_s=10)
    return Observation(text=result.output, changes=machine.changes())


def do_nothing(machine: Sandbox) -> Observation:
    raise AssertionError("it is done already")


def begun(session: Session) -> TaskBrief:
    return build_task_brief("t", "prompt", session.enter_state(BASE_STATE))


def test_an_action_that_ended_is_not_done_again(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)
    seen, after = session.act("task", "1", BASE_STATE, task, note("one"), "anything")
    session = hall.enter()
    again = session.act("task", "1", BASE_STATE, task, do_nothing, "anything")
    assert again == (seen, after)
    shown, _ = session.act("next", "2", after, task, look, "nothing")
    assert shown.text.startswith("one\n/")


def test_an_action_that_did_not_end_is_undone_and_done_again(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)
    _, first = session.act("task", "1", BASE_STATE, task, note("one"), "anything")

    def cut_short(machine: Sandbox) -> Observation:
        note("half")(machine)
        raise SandboxUnavailableError("cut short")

    with pytest.raises(SandboxUnavailableError):
        session.act("task 2", "2", first, task, cut_short, "anything")
    _, second = session.act("task 2", "2", first, task, note("two"), "anything")
    shown, _ = session.act("task 3", "3", second, task, look, "nothing")
    assert shown.text.splitlines()[:2] == ["one", "two"]


def test_a_process_that_died_in_an_action_has_it_done_again(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)
    _, first = session.act("task", "1", BASE_STATE, task, note("one"), "anything")
    effects.begin(acquire(hall.ledger, "thread 2"), EffectKey("thread", "task 2", "2"), first)
    session.enter_state(first).write_file("notes.txt", b"half done\n")
    session = hall.enter()
    _, second = session.act("task 2", "2", first, task, note("two"), "anything")
    assert session.enter_state(second).read_file("notes.txt") == b"one\ntwo\n"


def test_the_same_call_of_another_task_is_another_action(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)
    _, first = session.act("task", "1", BASE_STATE, task, note("one"), "anything")
    _, fork = session.act("a fork's task", "1", BASE_STATE, task, note("other"), "anything")
    assert fork != first
    for machine, said in ((first, "one"), (fork, "other"), (first, "one")):
        assert session.enter_state(machine).read_file("notes.txt") == f"{said}\n".encode()


def test_the_shell_stands_where_it_stood(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)

    def move(machine: Sandbox) -> Observation:
        machine.run("mkdir -p deep; cd deep; SAID=hello", timeout_s=10)
        return Observation(text="", changes=machine.changes())

    def move_on(machine: Sandbox) -> Observation:
        machine.run("cd ..", timeout_s=10)
        return Observation(text="", changes=machine.changes())

    _, deep = session.act("task", "1", BASE_STATE, task, move, "anything")
    _, back = session.act("task 2", "2", deep, task, move_on, "shell")
    assert back != deep
    session = hall.enter()
    standing = session.enter_state(deep)
    assert standing.run("pwd; echo $SAID", timeout_s=10).output.endswith("/deep\nhello\n")
    standing = session.enter_state(back)
    assert not standing.cwd().endswith("/deep")
    assert standing.run("echo $SAID", timeout_s=10).output == "hello\n"


def test_a_look_leaves_the_machine_what_it_was(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)
    _, same = session.act("task", "1", BASE_STATE, task, look, "nothing")
    assert same == BASE_STATE
    # A name may stand for something else than it says: what it changed tells.
    _, other = session.act("task", "2", BASE_STATE, task, note("meant to look"), "nothing")
    assert other != BASE_STATE
    assert hall.enter().enter_state(other).read_file("notes.txt") == b"meant to look\n"


def test_a_machine_that_was_not_kept_is_not_replaced(hall: Hall) -> None:
    session = hall.enter("point")
    task = begun(session)
    _, after = session.act("task", "1", BASE_STATE, task, note("one"), "anything")
    _, later = session.act("task 2", "2", after, task, note("two"), "anything")
    session.save_snapshot(later)
    assert snapshots.list_state_ids(hall.ledger, "thread") == {later}
    session = hall.enter("point")
    with pytest.raises(SnapshotNotFoundError, match="no snapshot of sandbox state"):
        session.enter_state(after)
    assert session.enter_state(later).read_file("notes.txt") == b"one\ntwo\n"


def test_another_base_is_told_apart(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)
    subprocess.run([*hall.git, "commit", "-qm", "later", "--allow-empty"], check=True)
    session = hall.enter()
    with pytest.raises(SnapshotNotFoundError, match=r"is at commit .* now"):
        session.enter_state(BASE_STATE, task)


def test_what_a_fork_adds_is_folded_from_its_own_events(hall: Hall) -> None:
    session = hall.enter()
    task = begun(session)
    events: list[dict[str, Any]] = [
        {
            "index": 0,
            "kind": "action",
            "tool": "shell",
            "text": "",
            "arguments": {"command": "ls"},
            "tree": "0",
        },
    ]
    first = session.update_trace_state(events, task, None)
    assert session.update_trace_state(events, task, None) is first
    assert session.update_trace_state([dict(events[0])], task, None) is not first


def test_the_base_of_one_thread_is_not_another_s(hall: Hall) -> None:
    """Under `point` a run begins in the base, which each spec has its own of."""
    kept = []
    for name in ("one", "two"):
        base = hall.root / name
        subprocess.run(["cp", "-r", str(hall.root / "base"), str(base)], check=True)
        (base / "notes.txt").write_text(name)
        subprocess.run(["git", "-C", str(base), *hall.git[3:], "commit", "-qam", name], check=True)
        lease = acquire(hall.ledger, name)
        session = Session(
            lease,
            hall.spec.model_copy(update={"directory": base}),
            RecordStore(hall.root / "records"),
            hall.root / "machines",
            snapshot_every="point",
        )
        assert session.start_run() == BASE_STATE
        kept.append(session.save_snapshot(BASE_STATE))
        session.close()
    assert kept[0].base != kept[1].base


@pytest.mark.parametrize("left", ["nothing", "a part"])
def test_half_a_directory_is_not_taken_for_a_machine(hall: Hall, left: str) -> None:
    """As a process leaves it that was killed while it made or removed one of the same content."""
    session = hall.enter()
    start = session.start_run()
    (whole,) = (hall.root / "machines").iterdir()
    for each in whole.iterdir():
        each.unlink()
    if left == "a part":
        (whole / ".bringing-1").touch()
    hall.enter().forget_snapshots()
    session = hall.enter()
    start = session.start_run()
    session = hall.enter()
    assert "notes.txt" in (session.enter_state(start).directory_listing("") or ())
