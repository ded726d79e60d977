"""Kept sandboxes are restored exactly, on every backend, and released once nothing needs them."""

from __future__ import annotations

import pytest

from langgraph_takeover.errors import ThreadNotFoundError
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.sandbox.interface import SnapshotCorruptError

from .conftest import DONE, EDIT, NOTE, SHOW, RunHarness, get_note_text, get_shown_lines, scripted_model

ALL_SANDBOXES = pytest.mark.parametrize(
    ("database", "backend"),
    [
        ("postgres", "process"),
        ("sqlite", "host"),
        pytest.param("sqlite", "process", marks=pytest.mark.slow),
        pytest.param("sqlite", "docker", marks=pytest.mark.slow),
    ],
)


@ALL_SANDBOXES
def test_a_fork_has_the_sandbox_of_its_checkpoint(bench: RunHarness) -> None:
    bench.run(scripted_model(NOTE.format(1), NOTE.format(2), NOTE.format(3), DONE))
    for step in (0, 1, 2, 3):
        (moment,) = [
            each
            for each in bench.home.history("thread")
            if each.step == step and each.next == ("think",) and each.is_restorable
        ][-1:]
        replies = [""] * step + ["```bash\ntouch notes.txt; cat notes.txt\n```", DONE]
        done = bench.resume(scripted_model(*replies), checkpoint=moment.checkpoint)
        assert get_shown_lines(done.state) == [*map(str, range(1, step + 1))]


@ALL_SANDBOXES
def test_a_lost_or_damaged_sandbox_is_never_replaced(bench: RunHarness) -> None:
    with pytest.raises(ModelError):
        bench.run(scripted_model(NOTE.format(1), ModelError("gone")), model_tries=1)
    archives = [path for path in bench.home.snapshot_directory.rglob("*") if path.is_file()]
    archive = max(archives, key=lambda path: path.stat().st_mtime_ns)
    whole = archive.read_bytes()
    for content in (whole[:-20], b""):
        archive.write_bytes(content)
        with pytest.raises(SnapshotCorruptError):
            bench.resume(scripted_model("", SHOW, DONE))
    archive.unlink()
    with pytest.raises(SnapshotCorruptError):
        bench.resume(scripted_model("", SHOW, DONE))
    archive.write_bytes(whole)
    assert get_note_text(bench.resume(scripted_model("", SHOW, DONE)).state) == "1"


def directories(bench: RunHarness) -> set[str]:
    return {path.name for path in bench.home.snapshot_directory.iterdir()}


@pytest.mark.parametrize("backend", ["process", "host"])
def test_the_working_directory_survives_repeated_resumes(bench: RunHarness) -> None:
    gone = ModelError("gone")
    with pytest.raises(ModelError):
        bench.run(scripted_model(NOTE.format(1), gone), model_tries=1)
    with pytest.raises(ModelError):
        bench.resume(scripted_model("", "```bash\ncd pkg\n```", gone), model_tries=1)
    done = bench.resume(scripted_model("", "", "```bash\ncat ../notes.txt\n```", DONE))
    assert get_shown_lines(done.state) == ["1"]


@ALL_SANDBOXES
def test_history_and_sandboxes_are_pruned_together(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format(1), EDIT, NOTE.format(2), NOTE.format(3), SHOW, DONE)
    before = bench.run(model, points=("first_source_edit",), max_steps=4)
    assert len(directories(bench)) == 5
    with bench.open_run(model) as run:
        run.prune()
    (moment,) = bench.home.history("thread")
    assert (moment.step, moment.is_restorable, len(directories(bench))) == (4, True, 1)
    assert bench.load_state().values == before
    done = bench.resume(model)
    assert get_note_text(done.state) == "1\n2\n3"
    taken = bench.take_over(scripted_model(SHOW, DONE))
    assert get_note_text(taken) == "1"


def test_partial_snapshots_are_removed_only_in_exclusive_mode(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE))
    kept = set(bench.home.snapshot_directory.iterdir())
    half_made, vanished = (
        bench.home.snapshot_directory / ".snapshot-1",
        bench.home.snapshot_directory / ".snapshot-2",
    )
    half_made.mkdir()
    # Removed by another process between the directory listing and the check of its age.
    vanished.symlink_to("nowhere")
    (bench.home.snapshot_directory / "host-0-1").mkdir()
    assert bench.home.remove_unused_snapshots() == 1
    assert set(bench.home.snapshot_directory.iterdir()) == {*kept, half_made, vanished}
    assert bench.home.remove_unused_snapshots(is_exclusive=True) == 2
    assert set(bench.home.snapshot_directory.iterdir()) == kept


@pytest.mark.slow
def test_inspecting_the_sandbox_of_a_checkpoint_leaves_it_unchanged(bench: RunHarness) -> None:
    replies = (NOTE.format(1), NOTE.format(2), SHOW, DONE)
    bench.run(scripted_model(*replies), max_steps=2)
    moments = {(each.step, each.next): each for each in bench.home.history("thread")}
    before, after = moments[2, ("shell",)], moments[2, ("think",)]
    with bench.open_run(scripted_model(*replies), max_steps=5) as agent_run:
        assert agent_run.sandbox().read_file("notes.txt") == b"1\n2\n"
        assert agent_run.sandbox(before).read_file("notes.txt") == b"1\n"
        assert agent_run.sandbox(after.checkpoint).read_file("notes.txt") == b"1\n2\n"
        assert agent_run.sandbox(moments[0, ("think",)]).inspect("ls notes.txt").exit_code != 0
        with pytest.raises(ThreadNotFoundError, match="has no checkpoint '1f0'"):
            agent_run.sandbox("1f0")
        assert get_note_text(agent_run.resume().state) == "1\n2"
    with (
        bench.open_run(scripted_model(), thread="other") as agent_run,
        pytest.raises(ThreadNotFoundError, match="thread not found"),
    ):
        agent_run.sandbox()
