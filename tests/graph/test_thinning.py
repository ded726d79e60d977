"""Old snapshots of steps are deleted by a policy: what can still be resumed, what says that it cannot, and beside what."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from langgraph_takeover import Home
from langgraph_takeover.errors import SettingsError, SnapshotNotFoundError, ThreadHeldError
from langgraph_takeover.integrations import Sandboxes, SandboxState
from langgraph_takeover.sandbox import gc
from langgraph_takeover.sandbox.untrusted_trees import disk_usage

from .conftest import DONE, EDIT, NOTE, SHOW, RunHarness, get_shown_lines, scripted_model


def write_notes(bench: RunHarness, number: int, *more: Any, **settings: Any) -> Any:
    """Run an agent that writes one line per step."""
    model = scripted_model(*(NOTE.format(each) for each in range(number)), *more, SHOW, DONE)
    return bench.run_to_outcome(model, **settings)


def list_states(home: Home, *, is_restorable: bool) -> list[str]:
    """The states of checkpoints, oldest first, that have a snapshot or have none."""
    moments = [each for each in home.history("thread") if each.is_restorable is is_restorable]
    return [*dict.fromkeys(each.state_id for each in reversed(moments) if each.step)]


def test_old_steps_are_thinned_and_say_which_state_is_left(bench: RunHarness) -> None:
    write_notes(bench, 6)
    before = disk_usage(bench.home.snapshot_directory)
    assert bench.home.thin_snapshots("thread", keep_every_step_s=3600) == 0
    assert bench.home.thin_snapshots("thread", keep_every_step_s=0) == 5
    assert disk_usage(bench.home.snapshot_directory) < before
    # The last act is in the journal, with the state before it.
    assert len(list_states(bench.home, is_restorable=True)) == 2
    assert bench.home.thin_snapshots("thread", keep_every_step_s=0) == 0

    lost = next(each for each in bench.home.history("thread") if each.step == 3 and not each.is_restorable)
    kept = bench.home.find_restorable_checkpoint("thread", lost.checkpoint)
    assert kept is not None
    with pytest.raises(
        SnapshotNotFoundError, match=f"no snapshot of checkpoint {lost.checkpoint}.*{kept.checkpoint}"
    ):
        bench.resume(scripted_model(DONE), checkpoint=lost.checkpoint)
    with bench.open_run(scripted_model()) as run:
        assert run.sandbox().read_file("notes.txt") == b"0\n1\n2\n3\n4\n5\n"
        with pytest.raises(SnapshotNotFoundError, match=kept.checkpoint):
            run.sandbox(lost)
    again = bench.resume(
        scripted_model(NOTE.format("new"), SHOW, DONE), checkpoint=lost.checkpoint, go_back=True
    )
    assert get_shown_lines(again.state) == ["new"]


def test_points_forks_and_ends_are_kept(bench: RunHarness) -> None:
    """A record's state, the state in which a fork begins, the end of both branches, and a fork that no run has used."""
    write_notes(bench, 3, EDIT, NOTE.format("a"), NOTE.format("b"), points=("first_source_edit",))
    moments = {each.step: each for each in reversed(bench.home.history("thread"))}
    bench.resume(
        scripted_model("", "", NOTE.format("x"), NOTE.format("y"), DONE), checkpoint=moments[2].checkpoint
    )
    with bench.open_run(scripted_model()) as run:
        run.update_state({"messages": []}, checkpoint=moments[1].checkpoint)
    first, *_ = states = list_states(bench.home, is_restorable=True)
    assert len(states) == 9
    assert bench.home.thin_snapshots("thread", keep_every_step_s=0) == 3, "of the base, and of steps 3 and 5"
    left = {*list_states(bench.home, is_restorable=True)}
    assert {*states} - left == {first, moments[3].state_id, moments[5].state_id}


def test_a_run_thins_beside_its_steps(bench: RunHarness) -> None:
    done = write_notes(bench, 12, keep_every_step_s=0)
    assert get_shown_lines(done.state) == [*map(str, range(12))]
    assert len(list_states(bench.home, is_restorable=True)) < 6
    with bench.open_run(scripted_model()) as run:
        assert run.sandbox().read_file("notes.txt").split() == [b"%d" % n for n in range(12)]


def test_a_failure_to_thin_ends_no_run(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **kwargs: Any) -> int:
        raise OSError("the disk has gone")

    monkeypatch.setattr(Home, "_thin", fail)
    assert get_shown_lines(write_notes(bench, 3, keep_every_step_s=0).state) == ["0", "1", "2"]
    assert "old snapshots not thinned: OSError: the disk has gone" in caplog.text


def test_invalid_times_and_held_threads_are_refused(bench: RunHarness) -> None:
    write_notes(bench, 1)
    for value in (-1, float("inf"), float("nan"), True, "1h"):
        with pytest.raises(SettingsError, match="keep_every_step_s: invalid value"):
            bench.home.thin_snapshots("thread", keep_every_step_s=value)  # type: ignore[arg-type]
    with bench.open_run(scripted_model()), pytest.raises(ThreadHeldError):
        bench.home.thin_snapshots("thread", keep_every_step_s=0)


class State(SandboxState, total=False):
    text: str


def test_a_graph_of_ones_own_names_the_nearest_state_that_is_left(bench: RunHarness) -> None:
    with Sandboxes(bench.home, bench.spec) as sandboxes:

        def node(state: State) -> State:
            write = f"echo {state['text']} >> log"
            act = sandboxes.current().act(
                "write", lambda box: box.run(write, timeout_s=10).exit_code, state=state.get("sandbox_state")
            )
            return {"sandbox_state": act.state}

        saver: Any = InMemorySaver()
        builder = StateGraph(State).add_node("node", node).add_edge(START, "node")
        graph = builder.compile(checkpointer=sandboxes.guard(saver))
        config: Any = {"configurable": {"thread_id": "own"}}
        states = [graph.invoke({"text": str(n)}, config)["sandbox_state"] for n in range(5)]
        moments = [each for each in graph.get_state_history(config) if not each.next][::-1]
        graph.invoke({"text": "fork"}, moments[0].config)
        assert bench.home.thin_snapshots("own", keep_every_step_s=0) == 3
        with pytest.raises(
            SnapshotNotFoundError, match=f"{states[3]}.* nearest before it .* state {states[0]}"
        ):
            graph.invoke({"text": "x"}, moments[3].config)
        assert graph.invoke({"text": "5"}, moments[4].config)["sandbox_state"]


@contextmanager
def repeat(work: Any) -> Iterator[list[float]]:
    """Do something again and again in another OS thread; yield the seconds that each took."""
    taken: list[float] = []
    errors: list[BaseException] = []
    is_over = threading.Event()

    def loop() -> None:
        try:
            while not is_over.is_set():
                start = time.monotonic()
                work()
                taken.append(time.monotonic() - start)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield taken
    finally:
        is_over.set()
        thread.join()
    assert not errors, errors


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["process", "host"])
def test_collecting_garbage_beside_runs_starts_and_restores_removes_nothing_that_lives(
    bench: RunHarness,
) -> None:
    """As in restic issue 2059: a backup fails while old ones are removed, and the removal while something is backed up."""

    def collect() -> None:
        for each in gc.survey(gc.CollectionRequest(owner=None)).stale_resources:
            if each.owner.startswith("test-agent"):
                gc.remove_resource(each)
        bench.home.remove_unused_snapshots()

    with repeat(collect) as collected:
        for number in range(3):
            done = write_notes(bench, 6, thread=f"run {number}", run_id=f"run {number}", keep_every_step_s=0)
            assert get_shown_lines(done.state) == [*map(str, range(6))]
            with bench.open_run(scripted_model(), thread=f"run {number}") as run:
                for each in (each for each in bench.home.history(f"run {number}") if each.is_restorable):
                    lines = run.sandbox(each).run("cat notes.txt 2>/dev/null", timeout_s=10).output.split()
                    assert lines == [*map(str, range(len(lines)))]
    assert len(collected) > 1


def test_content_that_is_saved_again_meanwhile_remains(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in containerd issue 3787: a collector finds a snapshot unused, and a run saves the same one before its removal."""
    from langgraph_takeover.graph import home as module

    write_notes(bench, 4)
    lost = next(each for each in bench.home.history("thread") if each.step == 2 and each.is_restorable)
    with bench.open_run(scripted_model()) as run:
        snapshot = run.session.find_snapshot(lost.state_id)
        assert snapshot is not None
        stored = run.session.snapshot_directory(snapshot)
    shutil.copytree(stored, tmp_path / "copy")
    states, listed = [], module.list_directory

    def save_meanwhile(directory: Path) -> Any:
        found = listed(directory)
        if not states:
            with bench.open_run(scripted_model(), thread="other") as run:
                states.append(run.session.adopt_snapshot(snapshot, tmp_path / "copy"))
        return found

    monkeypatch.setattr(module, "list_directory", save_meanwhile)
    assert bench.home.thin_snapshots("thread", keep_every_step_s=0) == 3
    assert states
    with bench.open_run(scripted_model(), thread="other") as run:
        assert run.session.view_state(states[0]).read_file("notes.txt").startswith(b"0\n")


def test_one_snapshot_that_cannot_be_removed_does_not_keep_the_others(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containerd issue 3923: one failed removal ended the whole collection."""
    from langgraph_takeover.graph import home as module

    write_notes(bench, 5)
    failed, set_aside = [], module.set_aside

    def fail_once(path: Path) -> Path:
        if not failed:
            failed.append(path)
            raise PermissionError(13, "Permission denied", str(path))
        return set_aside(path)

    before = len([*bench.home.snapshot_directory.iterdir()])
    monkeypatch.setattr(module, "set_aside", fail_once)
    assert bench.home.thin_snapshots("thread", keep_every_step_s=0) == 4
    assert before - len([*bench.home.snapshot_directory.iterdir()]) == 3
    assert bench.home.remove_unused_snapshots() == 1, "the next collection removes it"


def test_no_step_waits_for_the_removal_of_snapshots(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are removed outside of the lock under which runs save their snapshots."""
    from langgraph_takeover.graph import home as module

    begun, may_end, remove = threading.Event(), threading.Event(), module.remove_tree

    def remove_later(path: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return remove(path)

    write_notes(bench, 4, thread="old", run_id="old")
    monkeypatch.setattr(module, "remove_tree", remove_later)
    thread = threading.Thread(
        target=bench.home.thin_snapshots, args=("old",), kwargs={"keep_every_step_s": 0}, daemon=True
    )
    thread.start()
    assert begun.wait(20)
    try:
        assert get_shown_lines(write_notes(bench, 4).state) == [*map(str, range(4))]
        assert thread.is_alive()
    finally:
        may_end.set()
        thread.join()
