from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from langgraph_takeover.evals.tasks import BUNDLED, SUITE, TaskSourceError, load_tasks
from langgraph_takeover.evals.tasks.grading import check_gradable
from langgraph_takeover.handoff.records.record import HandoffRecord, TaskBrief
from langgraph_takeover.handoff.text.fence import TASK
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.sandbox import SandboxManager
from langgraph_takeover.sandbox.backends.host import unavailable_reason
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.snapshots.differences import content_digest

from ...conftest import skip_missing
from .shop_task import Shop

ROW = {
    "instance_id": "a__a-1",
    "problem_statement": "It is broken.\r\nBadly.",
    "repo": "a/a",
    "version": "1",
    "FAIL_TO_PASS": '["test_a"]',
    "PASS_TO_PASS": "[]",
    "eval_script": "true",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "image": "a:latest",
}


def test_bundled_tasks_load_in_order_and_by_id() -> None:
    tasks = load_tasks(BUNDLED)
    assert len(tasks) >= 4
    assert all(task.stream is not None for task in tasks)
    selected = load_tasks(BUNDLED, [tasks[2].id, tasks[0].id])
    assert [task.id for task in selected] == [tasks[2].id, tasks[0].id]
    assert len(load_tasks(BUNDLED, limit=3)) == 3


def test_a_checkout_is_the_base_commit(tmp_path: Path) -> None:
    task = load_tasks(BUNDLED, limit=1)[0]
    task.check_out(tmp_path)
    task.check_out(tmp_path)
    head = (tmp_path / task.id / ".git" / "refs" / "heads" / "main").read_text().strip()
    assert head == task.instance["base_commit"]


def test_the_prompt_contains_the_issue_but_not_the_solution() -> None:
    for task in load_tasks(BUNDLED):
        assert str(task.instance["problem_statement"]).strip() in task.prompt
        assert "diff --git" not in task.prompt
        assert not any(test in task.prompt for test in task.instance["FAIL_TO_PASS"])


def test_jsonl_and_json_files_load(tmp_path: Path) -> None:
    jsonl_file = tmp_path / "tasks.jsonl"
    jsonl_file.write_text(json.dumps(ROW) + "\n\n" + json.dumps({**ROW, "instance_id": "b"}) + "\n")
    assert [task.id for task in load_tasks(str(jsonl_file))] == ["a__a-1", "b"]
    json_file = tmp_path / "tasks.json"
    json_file.write_text("\ufeff" + json.dumps([ROW]))
    (task,) = load_tasks(str(json_file))
    assert "\r" not in task.prompt
    assert task.build_spec("docker", "me", tmp_path).image == "a:latest"
    assert task.build_spec("host", "me", tmp_path).image == "a:latest"
    with pytest.raises(TaskSourceError, match="choose --sandbox docker or host"):
        task.build_spec("process", "me", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"instance_id": "a"}\n', r"t\.jsonl: line 1: field 'problem_statement' is missing"),
        ("t.jsonl", b'{"a": 1}\n{"b\n', r"t\.jsonl: line 2: not JSON"),
        ("t.jsonl", b"\xff\xfe", "not UTF-8"),
        ("t.jsonl", b"[1]\n", "expected an object"),
        ("t.json", b"{", "not JSON"),
        ("t.json", b"5", "expected a list of tasks"),
        (
            "t.jsonl",
            json.dumps({**ROW, "instance_id": "../x"}).encode(),
            "'instance_id' contains invalid characters",
        ),
        (
            "t.jsonl",
            json.dumps({**ROW, "FAIL_TO_PASS": "["}).encode(),
            r"t\.jsonl: line 1: field 'FAIL_TO_PASS' is not JSON",
        ),
        ("t.json", b'{"a": {}, "a": {}}', "the same key twice"),
        ("t.jsonl", b'{"instance_id": "a", "instance_id": "b"}', "line 1: not JSON: .* the same key twice"),
        ("t.parquet", b"PAR1", "not a readable parquet"),
        ("t.txt", b"", "not a task file"),
    ],
)
def test_errors_name_invalid_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TaskSourceError, match=message):
        load_tasks(str(path))


def test_two_tasks_with_one_id_are_refused(tmp_path: Path) -> None:
    other = {**ROW, "problem_statement": "Another fault."}
    sources: dict[str, tuple[str, str, str]] = {
        "t.jsonl": (f"{json.dumps(ROW)}\n\n{json.dumps(other)}\n", "line 1", "line 3"),
        "list.json": (json.dumps([ROW, {**ROW, "instance_id": "b"}, other]), "entry 1", "entry 3"),
        "object.json": (json.dumps({"a": ROW, "b": other}), "entry 1", "entry 2"),
        "number.jsonl": (
            "".join(json.dumps({**ROW, "instance_id": value}) + "\n" for value in (7, "7")),
            "line 1",
            "line 2",
        ),
    }
    for name, (text, first, second) in sources.items():
        path = tmp_path / name
        path.write_text(text)
        for ids in (None, ["b"]):
            with pytest.raises(TaskSourceError, match=f"{path}: {first} and {path}: {second} \\(give one"):
                load_tasks(str(path), ids)
    parquet = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW, other]), parquet)
    with pytest.raises(TaskSourceError, match=f"{parquet}: row 1 and {parquet}: row 2"):
        load_tasks(str(parquet))


def test_two_directories_with_one_id_are_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    copy = shutil.copytree(shop.directory, shop.directory.parent / "copy")
    with pytest.raises(TaskSourceError, match=f"the id shop__shop-1: {copy} and {shop.directory} "):
        load_tasks(str(shop.source))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("task.yaml", "a: 1\nrepo: b\na: 2\n", "task.yaml has a on lines 1 and 3"),
        ("task.yaml", "a: [\n", "cannot be read: while parsing"),
        ("task.yaml", "- a\n", "cannot be read"),
        ("tests.json", '{"FAIL_TO_PASS": ["a"], "FAIL_TO_PASS": []}', "the same key twice"),
        ("tests.json", "{", "tests.json: not JSON: Expecting"),
    ],
)
def test_a_damaged_task_directory_is_named(tmp_path: Path, file: str, text: str, message: str) -> None:
    shop = Shop(tmp_path)
    (shop.directory / file).write_text(text)
    with pytest.raises(
        TaskSourceError, match=f"{shop.directory}: cannot be read: .*{message}|{message}"
    ) as error:
        shop.load()
    assert "\n" not in str(error.value)


def test_unicode_line_separators_do_not_split_rows(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({**ROW, "problem_statement": "one\u2028two"}, ensure_ascii=False) + "\n")
    assert "one\u2028two" in load_tasks(str(path))[0].prompt


def test_ungradable_tasks_are_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    for field, value, message in (
        ("log_parser", "parse_log_nothing", "unknown log_parser 'parse_log_nothing'"),
        ("eval_type", "by_feeling", "cannot read it"),
        ("image_assets", "[1]", "image_assets is not an object"),
    ):
        path.write_text(json.dumps({**ROW, field: value}) + "\n")
        with pytest.raises(TaskSourceError, match=message):
            check_gradable(load_tasks(str(path)))


def test_a_partial_checkout_is_replaced(tmp_path: Path) -> None:
    task = load_tasks(BUNDLED, limit=1)[0]
    (tmp_path / f".partial-{task.id}" / ".git").mkdir(parents=True)
    task.check_out(tmp_path)
    assert (tmp_path / task.id / "README.md").is_file()


def test_a_directory_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskSourceError, match="it needs a directory tasks/"):
        load_tasks(str(tmp_path))


def test_swebench_verified_loads_from_parquet(real_data: Path) -> None:
    source = str(real_data / "data" / "swebench_verified_v5.parquet")
    assert len(load_tasks(source)) == 500
    ids = (real_data / "data" / "selected_075.txt").read_text().split()
    assert [task.id for task in load_tasks(source, ids)] == ids
    with pytest.raises(
        TaskSourceError, match=r"task not found: nobody__nothing-1 \(choose from its 500 tasks"
    ):
        load_tasks(source, ["nobody__nothing-1"])


@pytest.mark.slow
def test_every_view_contains_real_issues_verbatim(real_data: Path) -> None:
    for task in load_tasks(str(real_data / "data" / "swebench_verified_v5.parquet")):
        record = HandoffRecord(
            id="r",
            task=TaskBrief(id=task.id, prompt=task.prompt, base_commit="", base_directories=()),
            predecessor="m",
            point=HandoffPoint(kind="requested", event_index=0, detail=""),
            patch="",
            snapshot=None,
            thread_id="",
            checkpoint_id="",
            trace=(Event(index=0, kind="action", tool="finish", text=""),),
            created_at="",
        )
        for view in VIEWS.values():
            assert view(record)[-1].text.endswith(f"{TASK}\n\n{task.prompt}")


def test_bundled_tasks_are_gradable(tmp_path: Path) -> None:
    """Runs skip this check for bundled tasks, but not for copies of them."""
    copies = load_tasks(str(shutil.copytree(SUITE, tmp_path / "suite")))
    assert len(copies) == len(load_tasks(BUNDLED))
    assert not any(task.is_bundled for task in copies)
    check_gradable(copies)


def test_a_bundled_task_has_only_the_standard_library(tmp_path: Path) -> None:
    """Packages that a host has installed must not affect the results."""
    reason = unavailable_reason()
    if reason is not None:
        skip_missing(reason)
    task = load_tasks(BUNDLED, limit=1)[0]
    task.check_out(tmp_path)
    spec = task.build_spec("host", "me", tmp_path)
    installed = [path for path in spec.hidden if path != SUITE and path.is_dir() and any(path.iterdir())]
    if not installed:
        skip_missing("no installed Python packages to hide")
    listing = "; ".join(f"ls -A {path}" for path in installed)
    results = {}
    for name, hidden in (("bundled", spec.hidden), ("custom", (SUITE,))):
        with SandboxManager(spec.model_copy(update={"hidden": hidden})) as manager:
            results[name] = manager.sandbox().run(f"{listing}; python3 -c 'import json'", timeout_s=60)
    assert results["custom"].output.strip()
    assert results["bundled"].output == ""
    assert results["bundled"].exit_code == results["custom"].exit_code == 0


def test_checkouts_have_the_same_digest(tmp_path: Path) -> None:
    (task,) = load_tasks(BUNDLED, ["ledger__ledger-12"])
    checkouts = []
    for name in ("first", "second"):
        task.check_out(tmp_path / name)
        checkouts.append(tmp_path / name / task.id)
        time.sleep(1.1)  # longer than the coarsest time stamp of a file system
    first, second = (content_digest((each,), LayerStack()) for each in checkouts)
    assert first == second
    assert subprocess.run(["git", "-C", checkouts[0], "diff", "--quiet", "HEAD"]).returncode == 0
