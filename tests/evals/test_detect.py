"""Detection of handoff points in recorded runs: text and JSON output, and scores against labels."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.readers import FORMATS, read_traces
from langgraph_takeover.handoff.trace.events import Trace

from ..command_line import call_main
from ..handoff.readers.session_rows import mini_run, read_one

ROOT = Path(__file__).parents[2]
LABELS = ROOT / "tests" / "handoff" / "labels.jsonl"
GOAL = {
    "first_source_edit": 0.97,
    "first_validation": 0.95,
    "first_post_failure_edit": 0.95,
    "validations": 0.97,
}


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which avoids repeated imports."""
    module = importlib.import_module(f"langgraph_takeover.evals.{program}")
    return call_main(module.main, *arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two valid runs, a file of another kind, and a broken file."""
    trace = mini_run(
        ("ls", 0, "src\n"),
        ("sed -i 's/a/b/' src/x.py", 0, ""),
        ("pytest -q | tail -1", 0, "1 failed, 2 passed in 0.10s"),
        ("sed -i 's/c/[bold]d/' src/x.py; printf '\\033[2J'", 0, ""),
    )
    (tmp_path / "one.traj.json").write_text(json.dumps(trace))
    deeper = tmp_path / "more"
    deeper.mkdir()
    (deeper / "two.traj.json").write_text(json.dumps(mini_run(("ls", 0, "a"))))
    (tmp_path / "RESOLVED.json").write_text('{"one": true}')
    (tmp_path / "broken.json").write_text("{")
    return tmp_path


def test_one_object_per_trace(folder: Path) -> None:
    done = run("detect", folder, "--json")
    assert done.returncode == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [Path(row["trace"]).name for row in rows] == ["two.traj.json", "one.traj.json"]
    row = rows[1]
    assert (row["format"], row["events"]) == ("mini-swe-agent-v1", 8)
    kinds = ["first_source_edit", "first_validation", "first_post_failure_edit"]
    assert [point["kind"] for point in row["points"]] == kinds
    assert [(point["action_index"], point["event_index"]) for point in row["points"]] == [
        (1, 3),
        (2, 5),
        (3, 7),
    ]
    edit, validation, again = row["points"]
    assert (edit["paths"], edit["command"]) == (["src/x.py"], "sed -i 's/a/b/' src/x.py")
    assert validation["outcome"] == "failed"
    assert validation["why"] == "test failed: 1 failed, 2 passed in 0.10s"
    assert again["why"].endswith("after the failed validation of action 2")
    expected = {"action_index": 2, "kind": "test", "outcome": "failed", "verdict": None}
    assert row["validations"] == [expected]
    errors = done.stderr.splitlines()
    assert len(errors) == 2
    assert any("RESOLVED.json: unknown trace format" in line for line in errors)
    assert any("broken.json: not JSON" in line for line in errors)


def test_a_timeline_for_people(folder: Path) -> None:
    tests = f"pytest -q {'tests/x ' * 99}"
    long = mini_run(("sed -i 's/a\\[0\\]/b/' src/x.py", 0, ""), (tests, 1, "1 failed in 1s"))
    (folder / "long.traj.json").write_text(json.dumps(long))
    done = run("detect", str(folder / "*.traj.json"))
    assert done.returncode == 0
    assert "first_post_failure_edit" in done.stdout
    assert "first_validation, action 1: test failed: 1 failed in 1s" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "tests/x tests/x" in line]
    assert "│ test " in row
    assert "│ failed " in row
    assert max(map(len, done.stdout.splitlines())) <= 160
    assert "[bold]d" in done.stdout
    assert r"s/a\[0\]/b/" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_directory_of_the_repository_is_shown_and_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    steps = (("sed -i s/1/2/ /srv/shop/a.py", 0, ""), ("pytest -q", 0, "1 passed in 1s"))
    file.write_text(json.dumps(mini_run(*steps)))
    done = run("detect", file)
    assert "repository: /srv/shop (paths of calls are in it)" in done.stdout
    (row,) = map(json.loads, run("detect", file, "--json").stdout.splitlines())
    assert (row["workspace"], row["workspace_why"]) == ("/srv/shop", "paths of calls are in it")
    done = run("detect", file, "--json", "--workspace", "/srv/other")
    row = json.loads(done.stdout)
    assert (row["workspace"], row["workspace_why"], row["points"]) == ("/srv/other", "given by the user", [])
    lost = "1 edited code file (/srv/shop/a.py), not in /srv/other: not counted as edits"
    assert done.stderr == f"warning: {file}: {lost} (pass --workspace DIR)\n"
    done = run("detect", file, "--workspace", "shop")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --workspace: not an absolute path: shop (pass the directory")
    file.write_text(json.dumps(mini_run(("sed -i s/1/2/ a.py", 0, ""))))
    done = run("detect", file)
    unknown = "repository: directory not found; relative paths count as inside it (pass --workspace DIR)"
    assert unknown in done.stdout
    assert done.stderr == ""
    (row,) = map(json.loads, run("detect", file, "--json").stdout.splitlines())
    assert (row["workspace"], [point["kind"] for point in row["points"]]) == (None, ["first_source_edit"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PATHS: pass files, directories or globs of recorded runs"),
        (["nowhere.json"], "nowhere.json: no such file or directory"),
        (["pyproject.toml"], "no trace could be read"),
        ([str(LABELS), "--format", "word"], "unknown format 'word' (use auto, atif"),
        (["pyproject.toml", "--score", "pyproject.toml"], "line 1: not a JSON object: "),
        ([str(LABELS), "--score", str(LABELS)], "no label matches these traces"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], message: str) -> None:
    done = run("detect", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_format_is_reported_once(tmp_path: Path) -> None:
    unknown = [json.dumps({"a": number}) for number in range(20)]
    (tmp_path / "unknown.jsonl").write_text("\n".join(unknown))
    (tmp_path / "mixed.jsonl").write_text("\n".join([*unknown, json.dumps(mini_run(("ls", 0, "a")))]))
    done = run("detect", tmp_path, "--json")
    assert json.loads(done.stdout)["trace"].endswith("mixed.jsonl#20")
    supported = ", ".join(FORMATS)
    assert done.stderr.splitlines() == [
        f"error: {tmp_path / name}: unknown trace format (supported: {supported})"
        for name in ("mixed.jsonl", "unknown.jsonl")
    ]


def test_damaged_lines_of_a_session_are_counted(tmp_path: Path) -> None:
    session = ROOT / "tests" / "handoff" / "readers" / "sessions" / "codex.jsonl"
    path = tmp_path / "codex.jsonl"
    path.write_bytes(session.read_bytes() + b"\xff\xfe\n" + b"\0" * 4096)
    done, whole = run("detect", path, "--json"), run("detect", session, "--json")
    assert done.stderr == f"warning: {path}: 2 damaged or incomplete lines skipped\n"
    report = json.loads(done.stdout)
    assert report.pop("skipped_lines") == 2
    assert report | {"trace": ""} == json.loads(whole.stdout) | {"trace": ""}
    assert whole.stderr == ""


def test_a_full_disk_is_one_line(folder: Path) -> None:
    command = [sys.executable, "-m", "evals.detect", str(folder / "one.traj.json"), "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr == "error: standard output: no space left\n"


@pytest.mark.slow
def test_an_unreadable_directory_does_not_affect_the_rest(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    (folder / "gone.json").symlink_to("nowhere")
    (folder / "zero.json").symlink_to("/dev/zero")
    done = run("detect", folder, "--json")
    assert len(done.stdout.splitlines()) == 2
    assert run("detect", "/dev/zero").stderr.startswith("error: /dev/zero: neither a file")


def test_a_records_trace_is_read(folder: Path) -> None:
    record = folder / "record"
    record.mkdir()
    (folder / "one.traj.json").rename(record / "record.json")
    for name in ("notes.json", "review.json", "other.json"):
        (record / name).write_text("{}")
    done = run("detect", record, "--json")
    says = f"error: {record / 'other.json'}: unknown trace format (supported: {', '.join(FORMATS)})"
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [says]
    assert json.loads(done.stdout)["trace"].endswith("record.json")


@pytest.mark.slow
def test_the_score_counts_correct_points(folder: Path, tmp_path: Path) -> None:
    points = {"first_source_edit": 1, "first_validation": 2, "first_post_failure_edit": None}
    validations = [{"action_index": 2, "kind": "test", "outcome": "passed"}]
    label = {"trace": "one.traj.json", "points": points, "validations": validations}
    label["unclear"] = ["first_validation"]
    labels = tmp_path / "labels.jsonl"
    labels.write_text(json.dumps(label))
    done = run("detect", folder, "--score", labels, "--json")
    score = json.loads(done.stdout)["all"]
    assert score["first_source_edit"] == {"cases": 1, "exact": 1, "found": 1, "labelled": 1, "right": 1}
    assert score["first_validation"]["cases"] == 0
    assert score["first_post_failure_edit"] == {"cases": 1, "exact": 0, "found": 1, "labelled": 0, "right": 0}
    assert score["validations"] == {"cases": 1, "exact": 0, "found": 1, "labelled": 1, "right": 1}
    output = run("detect", folder, "--score", labels, "--misses").stdout
    assert "found action 3, labelled nowhere" in output
    assert "found test failed, labelled test passed" in output


@pytest.mark.slow
def test_every_shared_trace_is_scored(real_data: Path) -> None:
    assert real_data == ROOT.parent / "shared"
    done = run("detect", "--score", LABELS, "--json")
    score = json.loads(done.stdout)["all"]
    assert score["validations"]["cases"] > 400
    for kind, goal in GOAL.items():
        assert score[kind]["exact"] >= goal * score[kind]["cases"], kind
        assert score[kind]["cases"] >= 60


@pytest.mark.slow
def test_sixty_runs_and_one_other_file(real_data: Path) -> None:
    done = run("detect", real_data / "trajectories" / "mini-swe-agent-v1", "--json")
    assert len(done.stdout.splitlines()) == 60
    assert len(done.stderr.splitlines()) == 1
    assert "RESOLVED.json" in done.stderr


def test_documents_are_linked(folder: Path, tmp_path: Path) -> None:
    trace = read_one(folder / "one.traj.json")
    point = detectors.list_points(trace.events, trace.base_directories)[0]
    continues = {"trace": trace.id, "record": "r", "point": point.model_dump(), "view": "trace"}
    later = trace.model_copy(update={"id": "../../later", "format": "takeover"})
    successor = Trace.model_validate({**later.model_dump(), "continues": continues})
    (folder / "later.json").write_text(successor.model_dump_json())
    out = tmp_path / "atif"
    done = run("export", folder / "one.traj.json", folder / "later.json", "--out", out)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["_.._later.json", "one.mini-swe-agent-v1.json"]
    first = json.loads((out / "one.mini-swe-agent-v1.json").read_text())
    assert first["continued_trajectory_ref"] == "_.._later.json"
    assert list(read_traces(out / "_.._later.json")) == [successor]
    assert run("export", "nowhere", "--out", out).returncode == 2


@pytest.mark.slow
def test_deep_nesting_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    trace = mini_run(
        ("python " * 3_000 + "pytest", 2, "python: can't open file 'python'"),
        ("coverage run " * 3_000 + "pytest", 1, "\n" * 200_000),
        ("(" * 3_000 + "pytest" + ")" * 3_000, 1, "1 failed in 0.10s"),
        ("true && " * 3_000 + "sed -i s/a/b/ src/x.py", 0, ""),
    )
    (tmp_path / "one.traj.json").write_text(json.dumps(trace))
    (tmp_path / "two.traj.json").write_text('{"messages": ' + "[" * 5_000 + "]" * 5_000 + "}")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3_000):  # deeper than Python's recursion limit, and longer than a path may be
        os.mkdir("dd", dir_fd=descriptor)
        inner = os.open("dd", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    done = run("detect", tmp_path)
    subprocess.run(["rm", "-rf", tmp_path / "dd"], check=True)  # pytest could not
    assert "first_source_edit" in done.stdout
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    nested = "it is nested too deeply (more than 100 lists and objects in each other)"
    assert sorted(line.rpartition(": ")[2] for line in errors) == ["file name too long", nested]
