"""A capture saves session and repository exactly, and changes neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from langgraph_takeover.agents import Capture, CaptureError
from langgraph_takeover.graph.continuation.capture import select_point
from langgraph_takeover.handoff.agents.session_files import SessionError
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.readers import TraceError
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.records.verification import Verification, verify_record
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.sandbox import OutOfDiskError, restore
from langgraph_takeover.sandbox.backends.base import make_restore_spec
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.ownership import ROOT_VARIABLE

from ...agent_sessions import (
    EDIT,
    SECRET,
    TASK,
    describe_tree,
    list_default_steps,
    make_repository,
    run_git,
    set_modified,
    write_claude_session,
    write_codex_session,
)
from ...conftest import fill_disk, mount_small_disk
from .conftest import Workplace

ROOT = Path(__file__).parents[3]


def test_the_record_has_session_repository_and_points(workplace: Workplace) -> None:
    before = describe_tree(workplace.repository), describe_tree(workplace.user_home)
    done = workplace.capture()
    assert (describe_tree(workplace.repository), describe_tree(workplace.user_home)) == before
    record = RecordStore(workplace.home / "records").load(done.record.id)
    assert record.task.prompt == TASK
    assert record.task.base_commit == run_git(workplace.repository, "rev-parse", "HEAD")
    assert record.external is not None
    assert (record.external.agent, record.external.version) == ("codex", "0.169.0")
    assert record.external.workspace == str(workplace.repository)
    assert [point.kind for point in done.points] == ["first_source_edit", "first_validation", "requested"]
    assert record.point == HandoffPoint(
        kind="first_validation", event_index=5, detail="test failed: python3 -m unittest -q"
    )
    assert done.later_files == ("notes.txt",)
    assert done.secret_files == (".env",)
    assert "-    return sum(prices) + 1\n+    return sum(prices) - 1\n" in record.patch
    assert verify_record(done.directory) == Verification(())


def test_the_snapshot_has_uncommitted_untracked_and_ignored_files(workplace: Workplace) -> None:
    done = workplace.capture()
    assert done.record.snapshot is not None
    spec = make_restore_spec(done.record.snapshot, "host")
    sandbox = restore(done.record.snapshot, done.directory, spec)
    try:
        assert sandbox.inspect("git status --short --ignored").output == (
            " M shop/price.py\n?? notes.txt\n!! .env\n"
        )
        assert sandbox.read_file(".env").decode() == f"SHOP_API_TOKEN={SECRET}\n"
        assert sandbox.inspect("git log --format=%s").output == "Start\n"
    finally:
        sandbox.close()


def test_a_large_file_is_named(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    from langgraph_takeover.graph.cli.external_commands import _print_capture

    with (workplace.repository / "big.bin").open("wb") as file:
        file.truncate(17 * 1024**2)
    done = workplace.capture()
    assert [each.path for each in done.record.left_out] == ["big.bin"]
    _print_capture(done, workplace.home)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Not in the patch: big.bin (larger than 16 MiB). The snapshot has it." in shown


def test_the_record_contains_no_secret_and_the_paths_of_the_sandbox(workplace: Workplace) -> None:
    done = workplace.capture()
    text = (done.directory / "record.json").read_text()
    assert SECRET not in text
    assert "[redacted]" in text
    assert done.record.trace[0].arguments["command"] == "cat /testbed/shop/price.py .env"
    assert done.record.trace[3].changes[0].path == "shop/price.py"
    content = json.loads(text)
    assert str(workplace.repository) not in json.dumps(content | {"external": None})


def test_the_edited_file_is_known_by_its_real_content(workplace: Workplace) -> None:
    (file,) = workplace.capture().record.edited_files
    assert (file.path, file.content) == ("shop/price.py", (workplace.repository / file.path).read_text())


def test_records_are_private(workplace: Workplace) -> None:
    workplace.capture()
    assert workplace.home.stat().st_mode & 0o077 == 0


def test_a_session_that_began_in_a_directory_of_the_repository(workplace: Workplace) -> None:
    steps = [("sed -i 's/ + 1/ - 1/' price.py", "", 0)]
    write_claude_session(workplace.user_home, f"{workplace.repository}/shop", steps)
    record = workplace.capture("claude-code").record
    assert [change.path for change in record.trace[-1].changes] == ["shop/price.py"]
    assert record.point.kind == "first_source_edit"


def test_a_session_that_began_above_the_repository(workplace: Workplace) -> None:
    steps = [(f"cd {workplace.repository} && sed -i 's/ + 1/ - 1/' shop/price.py", "", 0)]
    path = write_claude_session(workplace.user_home, str(workplace.repository.parent), steps)
    record = workplace.capture("claude-code", session=path.stem).record
    assert [change.path for change in record.trace[-1].changes] == ["shop/price.py"]
    assert record.point.kind == "first_source_edit"


def test_files_of_withdrawn_work_are_in_the_record(workplace: Workplace) -> None:
    steps = [("sed -i 's/ + 1/ - 1/' shop/price.py", "", 0)]
    path = write_claude_session(workplace.user_home, str(workplace.repository), steps)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(row for row in rows if row["type"] == "user")
    call, result = [dict(row) for row in rows if row["type"] != "user" or row is not first][:2]
    request = {
        **first,
        "uuid": "r",
        "parentUuid": first["uuid"],
        "message": {"role": "user", "content": "No."},
    }
    call |= {"uuid": "c", "parentUuid": "r"}
    result |= {"uuid": "d", "parentUuid": "c"}
    command = next(part for part in call["message"]["content"] if part["type"] == "tool_use")
    call["message"] = {**call["message"], "id": "n", "content": [{**command, "input": {"command": "ls"}}]}
    path.write_text("\n".join(map(json.dumps, [*rows, request, call, result])))
    record = workplace.capture("claude-code", session=path.stem).record
    assert [event.arguments["command"] for event in record.trace if event.kind == "action"] == ["ls"]
    assert record.external is not None
    assert record.external.withdrawn_files == ("shop/price.py",)


def test_latest_is_the_newest_session_of_the_repository(workplace: Workplace, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other")
    names = ("aaaa1111", "aaaa2222", "bbbb3333")
    places = (workplace.repository, workplace.repository, other)
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        session_id = f"{name}-0000-4000-8000-000000000000"
        path = write_claude_session(
            workplace.user_home, str(place), list_default_steps(place), session_id=session_id
        )
        set_modified(path, 1_700_000_000 + number)

    def session(**options: object) -> str:
        found = workplace.capture("claude-code", **options).record.external
        assert found is not None
        return found.session_id[:8]

    assert session() == "aaaa2222"
    assert session(session="aaaa1111") == "aaaa1111"
    assert session(repository=other) == "bbbb3333"
    assert session(repository=workplace.repository / "shop") == "aaaa2222"
    with pytest.raises(SessionError, match="ambiguous"):
        session(session="aaaa")
    with pytest.raises(CaptureError, match=f"ran in {other}, not in"):
        session(session="bbbb3333")
    with pytest.raises(SessionError, match=r"no session in .*/third; it has sessions in .*/other, .*/shop "):
        session(repository=make_repository(tmp_path / "third"))


def test_two_captures_at_once(workplace: Workplace) -> None:
    done: list[Capture] = []
    threads = [threading.Thread(target=lambda: done.append(workplace.capture())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = (each.record for each in done)
    assert first.id != second.id
    assert first.snapshot is not None
    assert second.snapshot is not None
    assert first.snapshot.digest == second.snapshot.digest
    assert all(verify_record(each.directory) == Verification(()) for each in done)


def test_a_repository_that_cannot_be_captured(workplace: Workplace, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CaptureError, match=r"not a git repository.*git init"):
        workplace.capture(repository=empty)
    run_git(empty, "init", "-q")
    with pytest.raises(CaptureError, match=r"no commit yet .*git commit"):
        workplace.capture(repository=empty)
    with pytest.raises(CaptureError, match="not a directory"):
        workplace.capture(repository=tmp_path / "missing")
    with pytest.raises(CaptureError, match="inside the repository"):
        workplace._replace(home=workplace.repository / ".takeover").capture()
    assert not (workplace.repository / ".takeover").exists()


def test_an_agent_that_cannot_be_captured(workplace: Workplace) -> None:
    with pytest.raises(CaptureError, match="keeps no sessions"):
        workplace.capture("mini")
    with pytest.raises(CaptureError, match="is not known"):
        workplace.capture("nobody")


def test_a_session_with_damaged_lines(workplace: Workplace) -> None:
    """A power cut leaves blocks of NUL bytes; the rest of the session is captured."""
    (path,) = workplace.user_home.rglob("rollout-*.jsonl")
    whole = workplace.capture().record
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"\0" * 4096, b"\n", b"\xff\n", *lines[4:]]))
    done = workplace.capture()
    assert done.skipped_lines == "2 damaged or incomplete lines skipped"
    assert [event.text for event in done.record.trace] == [event.text for event in whole.trace]


def test_a_session_without_actions(workplace: Workplace) -> None:
    write_claude_session(workplace.user_home, str(workplace.repository), [])
    with pytest.raises(TraceError, match="no action yet"):
        workplace.capture("claude-code")
    assert not (workplace.home / "records").exists()


def test_a_session_that_changes_meanwhile(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session grows while the repository is copied, as if the agent were working."""
    from langgraph_takeover.graph.continuation import capture

    (path,) = workplace.user_home.rglob("rollout-*.jsonl")
    take = capture.snapshot_tree

    def take_while_working(*arguments: object, **options: object) -> object:
        with path.open("a") as file:
            file.write("\n")
        return take(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(capture, "snapshot_tree", take_while_working)
    with pytest.raises(CaptureError, match="finish its turn"):
        workplace.capture()
    assert RecordStore(workplace.home / "records").list_ids() == ()
    assert list((workplace.home / "records").iterdir()) == []


def test_a_full_disk(workplace: Workplace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (workplace.repository / "large").write_bytes(os.urandom(3 << 20))
    with mount_small_disk(tmp_path / "disk", "3m") as disk:
        with pytest.raises(OutOfDiskError, match="the disk is full"):
            workplace._replace(home=disk / "home").capture()
        assert RecordStore(disk / "home" / "records").list_ids() == ()
        fill_disk(disk)
        monkeypatch.setenv(ROOT_VARIABLE, str(disk))
        with pytest.raises((OutOfDiskError, SandboxUnavailableError)):
            workplace.capture()


@pytest.mark.slow
def test_a_kill_leaves_no_record(workplace: Workplace) -> None:
    """The process is killed while it copies the repository; the next capture works."""
    program = (
        "import os, signal; from pathlib import Path; from langgraph_takeover.graph.continuation import capture\n"
        "capture.select_workspace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"capture.capture_session(Path({str(workplace.home)!r}), 'codex', repository=Path({str(workplace.repository)!r}),"
        f" user_home=Path({str(workplace.user_home)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    store = RecordStore(workplace.home / "records")
    assert store.list_ids() == ()
    assert len(list(store.root.glob(".partial-*"))) == 1
    assert workplace.capture().record.id in store.list_ids()


def test_the_process_back_end(workplace: Workplace) -> None:
    done = workplace.capture(backend="process")
    assert done.record.snapshot is not None
    assert done.record.snapshot.backend == "process"
    assert "sum(prices) - 1" in done.record.patch
    assert verify_record(done.directory) == Verification(())


def test_the_point_is_the_last_one_if_it_is_at_the_end(workplace: Workplace) -> None:
    trace = workplace.capture().record.trace
    points = list_points(trace, ("shop",), "/testbed")
    end = HandoffPoint(kind="requested", event_index=5, detail="the recording ends")
    assert select_point((*points, end)).kind == "first_validation"
    late = end.model_copy(update={"event_index": 7})
    assert select_point((*points, late)).detail == "captured at the end of the session"


def test_a_session_of_windows(workplace: Workplace) -> None:
    (source,) = workplace.user_home.rglob("rollout-*.jsonl")
    text = source.read_text().replace(str(workplace.repository), r"C:\\\\Users\\\\u\\\\shop")
    moved = workplace.root / source.name
    moved.write_text(text)
    source.write_text(text)
    with pytest.raises(SessionError, match="no session in"):
        workplace.capture()
    done = workplace.capture(session=moved)
    assert "Users" not in done.record.model_dump_json(exclude={"external"})
    assert [point.kind for point in done.points] == ["first_source_edit", "first_validation", "requested"]
    with pytest.raises(SessionError, match=r"absent\.jsonl: No such"):
        workplace.capture(session=Path("absent.jsonl"))


def test_a_link_to_the_repository(workplace: Workplace, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(workplace.repository)
    write_codex_session(workplace.user_home, str(link), [(f"cd {link} && {EDIT}", "", 0)])
    record = workplace.capture(repository=link).record
    assert record.trace[0].arguments["command"] == f"cd /testbed && {EDIT}"
    assert [change.path for change in record.trace[1].changes] == ["shop/price.py"]
