"""A session runs each action once, and restores sandbox states exactly."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.ledger import Ledger, acquire, effects
from langgraph_takeover.handoff.ledger import effects as snapshots
from langgraph_takeover.handoff.ledger.effects import EffectKey
from langgraph_takeover.handoff.records.record import RecordStore, TaskBrief
from langgraph_takeover.nodes.agent.lifecycle import build_task_brief
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import BASE_STATE, SnapshotEvery, SnapshotNotFoundError
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec, SandboxUnavailableError


class SessionFactory:
    """A ledger, a base, and sessions on one thread, one after another."""

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
        self.current: Session | None = None

    def open(self, snapshot_every: SnapshotEvery = "step") -> Session:
        """Open a new session after closing the previous one and its sandbox."""
        if self.current is not None:
            self.current.close()
        lease = acquire(self.ledger, "thread")
        records = RecordStore(self.root / "records")
        self.current = Session(
            lease, self.spec, records, self.root / "snapshots", snapshot_every=snapshot_every
        )
        return self.current


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[SessionFactory]:
    factory = SessionFactory(tmp_path)
    yield factory
    if factory.current is not None:
        factory.current.close()
    factory.ledger.close()


def append_line(text: str) -> Callable[[Sandbox], Observation]:
    def append(sandbox: Sandbox) -> Observation:
        result = sandbox.run(f"echo {text} >> notes.txt", timeout_s=10)
        return Observation(text=f"noted {text}", changes=sandbox.changes(), exit_code=result.exit_code)

    return append


def show_lines(sandbox: Sandbox) -> Observation:
    result = sandbox.run("cat notes.txt; pwd; echo $WORD", timeout_s=10)
    return Observation(text=result.output, changes=sandbox.changes())


def must_not_run(sandbox: Sandbox) -> Observation:
    raise AssertionError("the action has already run")


def start_task(session: Session) -> TaskBrief:
    return build_task_brief("t", "prompt", session.enter_state(BASE_STATE))


def test_a_finished_action_is_not_repeated(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)
    observation, after = session.act("task", "1", BASE_STATE, task, append_line("one"), "anything")
    session = sessions.open()
    again = session.act("task", "1", BASE_STATE, task, must_not_run, "anything")
    assert again == (observation, after)
    lines, _ = session.act("next", "2", after, task, show_lines, "nothing")
    assert lines.text.startswith("one\n/")


def test_an_interrupted_action_is_undone_and_repeated(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)
    _, first = session.act("task", "1", BASE_STATE, task, append_line("one"), "anything")

    def interrupt(sandbox: Sandbox) -> Observation:
        append_line("half")(sandbox)
        raise SandboxUnavailableError("interrupted")

    with pytest.raises(SandboxUnavailableError):
        session.act("task 2", "2", first, task, interrupt, "anything")
    _, second = session.act("task 2", "2", first, task, append_line("two"), "anything")
    lines, _ = session.act("task 3", "3", second, task, show_lines, "nothing")
    assert lines.text.splitlines()[:2] == ["one", "two"]


def test_an_action_is_repeated_after_its_process_died(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)
    _, first = session.act("task", "1", BASE_STATE, task, append_line("one"), "anything")
    effects.begin(acquire(sessions.ledger, "thread 2"), EffectKey("thread", "task 2", "2"), first)
    session.enter_state(first).write_file("notes.txt", b"half done\n")
    session = sessions.open()
    _, second = session.act("task 2", "2", first, task, append_line("two"), "anything")
    assert session.enter_state(second).read_file("notes.txt") == b"one\ntwo\n"


def test_the_same_call_of_another_task_is_another_action(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)
    _, first = session.act("task", "1", BASE_STATE, task, append_line("one"), "anything")
    _, fork = session.act("a fork's task", "1", BASE_STATE, task, append_line("other"), "anything")
    assert fork != first
    for state_id, line in ((first, "one"), (fork, "other"), (first, "one")):
        assert session.enter_state(state_id).read_file("notes.txt") == f"{line}\n".encode()


def test_the_shell_keeps_its_directory_and_variables(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)

    def move(sandbox: Sandbox) -> Observation:
        sandbox.run("mkdir -p deep; cd deep; WORD=hello", timeout_s=10)
        return Observation(text="", changes=sandbox.changes())

    def move_on(sandbox: Sandbox) -> Observation:
        sandbox.run("cd ..", timeout_s=10)
        return Observation(text="", changes=sandbox.changes())

    _, deep = session.act("task", "1", BASE_STATE, task, move, "anything")
    _, back = session.act("task 2", "2", deep, task, move_on, "shell")
    assert back != deep
    session = sessions.open()
    sandbox = session.enter_state(deep)
    assert sandbox.run("pwd; echo $WORD", timeout_s=10).output.endswith("/deep\nhello\n")
    sandbox = session.enter_state(back)
    assert not sandbox.cwd().endswith("/deep")
    assert sandbox.run("echo $WORD", timeout_s=10).output == "hello\n"


def test_an_action_without_effect_keeps_the_state(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)
    _, same = session.act("task", "1", BASE_STATE, task, show_lines, "nothing")
    assert same == BASE_STATE
    # The effect may be guessed wrong: the changes show it.
    _, other = session.act("task", "2", BASE_STATE, task, append_line("meant to show"), "nothing")
    assert other != BASE_STATE
    assert sessions.open().enter_state(other).read_file("notes.txt") == b"meant to show\n"


def test_a_state_without_snapshot_cannot_be_entered(sessions: SessionFactory) -> None:
    session = sessions.open("point")
    task = start_task(session)
    _, after = session.act("task", "1", BASE_STATE, task, append_line("one"), "anything")
    _, later = session.act("task 2", "2", after, task, append_line("two"), "anything")
    session.save_snapshot(later)
    assert snapshots.list_state_ids(sessions.ledger, "thread") == {later}
    session = sessions.open("point")
    with pytest.raises(SnapshotNotFoundError, match="no snapshot of sandbox state"):
        session.enter_state(after)
    assert session.enter_state(later).read_file("notes.txt") == b"one\ntwo\n"


def test_a_changed_base_is_detected(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)
    subprocess.run([*sessions.git, "commit", "-qm", "later", "--allow-empty"], check=True)
    session = sessions.open()
    with pytest.raises(SnapshotNotFoundError, match=r"is at commit .* now"):
        session.enter_state(BASE_STATE, task)


def test_a_fork_computes_its_trace_state_from_its_own_events(sessions: SessionFactory) -> None:
    session = sessions.open()
    task = start_task(session)
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


def test_each_spec_has_its_own_base(sessions: SessionFactory) -> None:
    """With `point`, a run starts in the base of its spec."""
    snapshots_of_bases = []
    for name in ("one", "two"):
        base = sessions.root / name
        subprocess.run(["cp", "-r", str(sessions.root / "base"), str(base)], check=True)
        (base / "notes.txt").write_text(name)
        subprocess.run(["git", "-C", str(base), *sessions.git[3:], "commit", "-qam", name], check=True)
        lease = acquire(sessions.ledger, name)
        session = Session(
            lease,
            sessions.spec.model_copy(update={"directory": base}),
            RecordStore(sessions.root / "records"),
            sessions.root / "snapshots",
            snapshot_every="point",
        )
        assert session.start_run() == BASE_STATE
        snapshots_of_bases.append(session.save_snapshot(BASE_STATE))
        session.close()
    assert snapshots_of_bases[0].base != snapshots_of_bases[1].base


@pytest.mark.parametrize("left", ["nothing", "a part"])
def test_an_incomplete_snapshot_directory_is_replaced(sessions: SessionFactory, left: str) -> None:
    """A killed process may leave such a directory, with the name of the same content."""
    session = sessions.open()
    start = session.start_run()
    (directory,) = (sessions.root / "snapshots").iterdir()
    for each in directory.iterdir():
        each.unlink()
    if left == "a part":
        (directory / ".bringing-1").touch()
    sessions.open().forget_snapshots()
    session = sessions.open()
    start = session.start_run()
    session = sessions.open()
    assert "notes.txt" in (session.enter_state(start).directory_listing("") or ())
