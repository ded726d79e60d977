from __future__ import annotations

import json
from pathlib import Path

import pytest

from langgraph_takeover.evals.models import ModelNameError, check_model
from langgraph_takeover.evals.models.replay import assign_recordings
from langgraph_takeover.evals.tasks import BUNDLED, Task, load_tasks

from ..conftest import RunCommand, assert_refused, read_rows

GALLEY, LEDGER, KIOSK = "galley__galley-31", "ledger__ledger-12", "kiosk__kiosk-16"


def write_recording(path: Path, *steps: tuple[str, int, str], instance_id: str | None = None) -> Path:
    """A run of mini-swe-agent: commands with exit codes and outputs."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for command, code, output in steps:
        observation = f"<returncode>{code}</returncode>\n<output>\n{output}</output>"
        messages += [
            {"role": "assistant", "content": f"THOUGHT: next\n\n```bash\n{command}\n```"},
            {"role": "user", "content": observation},
        ]
    found = {"messages": messages, "trajectory_format": "mini-swe-agent-1"}
    path.write_text(json.dumps(found | ({"instance_id": instance_id} if instance_id else {})))
    return path


def edit(package: str) -> tuple[str, int, str]:
    return f"echo '# edited' >> {package}/__init__.py", 0, ""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Recordings of three tasks, one of them named by its file alone, beside a file of results."""
    directory = tmp_path / "recordings"
    (directory / "more").mkdir(parents=True)
    write_recording(directory / "a.traj.json", edit("galley"), instance_id=GALLEY)
    write_recording(directory / "more" / f"{LEDGER}.traj.json", edit("ledger"))
    write_recording(directory / "c.traj.json", edit("sympy"), instance_id="sympy__sympy-20438")
    (directory / "RESOLVED.json").write_text(json.dumps({GALLEY: True}))
    return directory


def load(*ids: str) -> tuple[Task, ...]:
    return load_tasks(BUNDLED, ids)


def test_each_recording_of_a_directory_goes_to_its_task(directory: Path) -> None:
    assert assign_recordings(f"replay:{directory}", load(LEDGER, GALLEY, KIOSK)) == {
        LEDGER: f"replay:{directory}/more/{LEDGER}.traj.json#0",
        GALLEY: f"replay:{directory}/a.traj.json#0",
    }


def test_the_number_of_a_task_is_compared_as_a_whole(tmp_path: Path) -> None:
    (task,) = load(GALLEY)
    longer = write_recording(tmp_path / "t.json", edit("galley"), instance_id=f"{GALLEY}4")
    with pytest.raises(ModelNameError, match=f"a recording of {GALLEY}4, not of {GALLEY}"):
        check_model(f"replay:{longer}", (task,), None)
    own = write_recording(tmp_path / "u.json", edit("galley"), instance_id=f"{GALLEY}.oracle-3f")
    assert assign_recordings(f"replay:{own}", (task,))


def test_two_recordings_of_one_task_are_ambiguous(directory: Path) -> None:
    write_recording(directory / "z.traj.json", edit("galley"), instance_id=GALLEY)
    with pytest.raises(
        ModelNameError, match=rf"two recordings of task {GALLEY}: \S+a\.traj\.json#0 and \S+z\."
    ):
        assign_recordings(f"replay:{directory}", load(GALLEY, LEDGER))
    assert assign_recordings(f"replay:{directory}/z.traj.json", load(GALLEY, LEDGER)).keys() == {GALLEY}


def test_a_recording_belongs_to_the_task_with_the_longest_id(tmp_path: Path) -> None:
    (task,) = load(GALLEY)
    short, long = (task.model_copy(update={"id": name}) for name in ("till", "till-2"))
    for name in ("till", "till-2"):
        write_recording(tmp_path / f"{name}.json", edit("galley"), instance_id=name)
    assert assign_recordings(f"replay:{tmp_path}", (short, long)) == {
        name: f"replay:{tmp_path}/{name}.json#0" for name in ("till", "till-2")
    }
    assert assign_recordings(f"replay:{tmp_path}/till-2.json", (short, long)).keys() == {"till-2"}


def test_a_recording_without_an_id_belongs_to_the_only_task(tmp_path: Path) -> None:
    name = f"replay:{write_recording(tmp_path / 'run.traj.json', edit('galley'))}"
    assert assign_recordings(f"{name}@0", load(GALLEY)) == {GALLEY: f"{name}#0@0"}
    with pytest.raises(ModelNameError, match="names no task, but 2 are selected"):
        assign_recordings(name, load(GALLEY, LEDGER))
    with pytest.raises(ModelNameError, match=f"no recording names {GALLEY}"):
        assign_recordings(f"replay:{tmp_path}", load(GALLEY))


def test_the_runs_of_one_file_go_to_their_tasks(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    step = [{"id": 1, "action": "run", "args": {"command": "ls"}}, {"cause": 1, "observation": "run"}]
    lines = [{"instance_id": name, "history": step} for name in (LEDGER, GALLEY)]
    path.write_text("\n".join(map(json.dumps, lines)))
    name = f"replay:{path}"
    assert assign_recordings(name, load(GALLEY, LEDGER)) == {GALLEY: f"{name}#1", LEDGER: f"{name}#0"}
    with pytest.raises(ModelNameError, match=f"a recording of {LEDGER}, not of {GALLEY}"):
        assign_recordings(f"{name}#0", load(GALLEY))


def test_a_shard_may_lack_the_task_of_a_recording(directory: Path) -> None:
    name = f"replay:{directory}/a.traj.json"
    assert assign_recordings(name, load(LEDGER), is_part=True) == {}
    with pytest.raises(ModelNameError):
        assign_recordings(name, load(LEDGER))


def test_a_wrong_or_missing_recording_is_refused_before_anything_runs(
    run_main: RunCommand, directory: Path, tmp_path: Path
) -> None:
    def plan(ids: str, *paths: Path) -> tuple[str | Path, ...]:
        names = [word for path in paths for word in ("--predecessor", f"replay:{path}")]
        return (
            "--task-ids",
            ids,
            "--successor",
            "builtin:oracle",
            *names,
            "--out",
            tmp_path / "out",
            "--dry-run",
        )

    other = directory / "c.traj.json"
    refusal = f"a recording of sympy__sympy-20438, not of {GALLEY} (select it by --task-ids)"
    assert_refused(run_main(*plan(GALLEY, other)), refusal)
    assert_refused(run_main(*plan(GALLEY, other)[:-1]), refusal)
    message = f"--predecessor: no recording of {KIOSK} (pass one, or --task-ids {GALLEY},{LEDGER})"
    assert_refused(run_main(*plan(f"{GALLEY},{KIOSK},{LEDGER}", directory)), message)
    assert_refused(run_main(*plan(GALLEY, directory / "a.traj.json", other)), "not of")
    two = (directory / "a.traj.json", directory / "more" / f"{LEDGER}.traj.json")
    assert run_main(*plan(f"{GALLEY},{LEDGER}", *two)).returncode == 0


@pytest.mark.slow
def test_one_run_replays_a_directory_and_successors_continue_their_own_recording(
    run_main: RunCommand, directory: Path, tmp_path: Path
) -> None:
    out, name = tmp_path / "out", f"replay:{directory}"
    options = ("--allow-unisolated", "--sandbox", "process", "--view", "repository")
    done = run_main(
        *("--task-ids", f"{GALLEY},{LEDGER}", "--model", name, *options, "--out", out),
    )
    assert done.returncode == 0, done.stderr
    rows = read_rows(out, "predecessors")
    assert {row["task_id"]: row["predecessor"] for row in rows} == {GALLEY: name, LEDGER: name}
    assert {row["task_id"]: row["patch"].count("# edited") for row in rows} == {GALLEY: 1, LEDGER: 1}
    assert [(row["divergence"], row["divergence_step"], row["missed_points"]) for row in rows] == [
        (0.0, None, [])
    ] * 2
    # The edit is the recording's last action, which the successor therefore does not repeat.
    taken = read_rows(out)
    assert {(row["task_id"], row["steps"], row["patch"].count("# edited")) for row in taken} == {
        (GALLEY, 1, 1),
        (LEDGER, 1, 1),
    }
