"""A full disk stops a run with one line; once there is room, the run resumes without loss."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import open_home, resume, run, sandbox
from langgraph_takeover.handoff.ledger import LedgerUnavailableError, handoffs
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox import ownership as host_directories
from langgraph_takeover.sandbox.backends import host, overlay
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

from ..conftest import fill_disk, mount_small_disk, skip_missing
from .conftest import DONE, FIX, NOTE, PROMPT, SHOW, TEST, RunHarness, get_shown_lines, scripted_model
from .delivery.test_delivery import QUICK, UNDERSTOOD, deliver_record, offer_first_record

NOTES = [NOTE.format(number) for number in (1, 2, 3)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small separate disk."""
    with mount_small_disk(tmp_path / "disk", "24m") as directory:
        yield directory


@pytest.mark.cases(2)
@pytest.mark.parametrize("on_it", ["database", "home"])
@pytest.mark.parametrize("moment", ["thinking", "acting", "observed"])
def test_a_run_continues_once_there_is_room(
    bench: RunHarness, disk: Path, tmp_path: Path, on_it: str, moment: str
) -> None:
    home_at = disk / "home" if on_it == "home" else tmp_path / "roomy"
    database = f"sqlite:///{disk}/ledger.sqlite" if on_it == "database" else None

    def listen(caught: dict[str, Any]) -> None:
        if caught["event"] == moment and caught["step"] == 2:
            fill_disk(disk)

    model = scripted_model(*NOTES, SHOW, DONE)
    options: dict[str, Any] = {"model": model, "sandbox": bench.spec, "points": ()}
    expected = LedgerUnavailableError if on_it == "database" else (LedgerUnavailableError, OutOfDiskError)
    with (
        pytest.raises(expected, match=r"disk is full|full; make room") as caught,
        open_home(home_at, database) as home,
    ):
        run(home, "thread", task_id="t", prompt=PROMPT, on_progress=listen, **options)
    assert "\n" not in str(caught.value)

    (disk / "filler").unlink()
    with open_home(home_at, database) as home:
        done = resume(home, "thread", **options)
    assert (done.stop_reason, done.steps) == ("finished", 5)
    assert get_shown_lines(done.state) == ["1", "2", "3"]


@pytest.mark.parametrize(
    "reply",
    [
        "```bash\nhead -c 2000000 /dev/urandom > big; echo 2 >> notes.txt\n```",
        "long " * 180_000 + "\n\n" + NOTE.format(2),
    ],
    ids=["a sandbox", "a checkpoint"],
)
def test_a_file_larger_than_the_free_space(disk: Path, tmp_path: Path, reply: str) -> None:
    model = scripted_model(NOTE.format(1), reply, SHOW, DONE)

    def listen(moment: dict[str, Any]) -> None:
        if (moment["event"], moment["step"]) == ("thinking", 1):
            fill_disk(disk)

    with open_home(disk / "home") as home:
        bench = RunHarness(tmp_path, home)
        # The first state may still be being saved when the disk is full.
        full = pytest.raises((OutOfDiskError, LedgerUnavailableError), match=r"disk is full|full; make room")
        with full as caught:
            bench.run(model, on_progress=listen)
        assert "\n" not in str(caught.value)
        assert home.history("thread")[0].step >= 1
    (disk / "filler").unlink()
    with open_home(disk / "home") as home:
        bench.home = home
        assert get_shown_lines(bench.resume(model).state) == ["1", "2"]
        assert not list(home.snapshot_directory.glob(".snapshot-*"))
    connection = sqlite3.connect(disk / "home" / "takeover.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["started", "confirmed", "acting"])
def test_a_handoff_continues_once_there_is_room(disk: Path, tmp_path: Path, moment: str) -> None:
    def listen(caught: dict[str, Any]) -> None:
        if caught["event"] == moment:
            fill_disk(disk)

    model = scripted_model(UNDERSTOOD, FIX, TEST, DONE)
    with open_home(disk / "home") as home:
        bench = RunHarness(tmp_path, home)
        found = offer_first_record(bench)
        with pytest.raises(
            (LedgerUnavailableError, OutOfDiskError), match=r"disk is full|full; make room"
        ) as caught:
            deliver_record(
                bench,
                found,
                model,
                on_progress=listen,
                delivery_policy=QUICK.model_copy(update={"rounds": 1}),
            )
        assert "\n" not in str(caught.value)
    (disk / "filler").unlink()
    with open_home(disk / "home") as bench.home:
        done = deliver_record(bench, found, model)
        assert done.handoff.state == "completed"
        assert [each.after for each in handoffs.list_transitions(bench.home.ledger, found.id)][-2:] == [
            "active",
            "completed",
        ]
        assert done.outcome is not None
        assert "n * 2" in done.outcome.patch


@pytest.fixture
def full_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk for the files of sandboxes, accessible to their user."""
    directory = Path(tempfile.mkdtemp(prefix="takeover-full-", dir="/var/tmp"))
    directory.chmod(0o711)
    with mount_small_disk(directory / "disk", "24m") as disk:
        disk.chmod(0o711)
        monkeypatch.setenv(host_directories.ROOT_VARIABLE, str(disk / "home"))
        yield disk
        remove_tree(disk / "home")
    remove_tree(directory)


SAID = r"home/runs/.*: the disk is full \(.* left\); make room, or set TAKEOVER_HOME to a directory on another disk$"


@pytest.fixture(params=["host", "process"])
def spec(request: pytest.FixtureRequest, tmp_path: Path, full_home: Path) -> SandboxSpec:
    if request.param == "host" and (reason := host.unavailable_reason()):
        skip_missing(reason)
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "file").write_text("before\n")
    return SandboxSpec(backend=request.param, directory=tmp_path / "repository", owner="test-full")


def test_no_sandbox_starts_on_a_full_disk(spec: SandboxSpec, full_home: Path, tmp_path: Path) -> None:
    with contextlib.closing(sandbox.start(spec)) as live_sandbox:
        live_sandbox.run("echo work > work", timeout_s=20)
        snapshot = live_sandbox.snapshot(tmp_path / "store").result()
    shutil.copytree(tmp_path / "store", tmp_path / "elsewhere")
    filler = fill_disk(full_home)
    for begin in (
        lambda: sandbox.start(spec),
        lambda: sandbox.restore(snapshot, tmp_path / "store", spec),
        lambda: sandbox.restore(snapshot, tmp_path / "elsewhere", spec),
    ):
        with pytest.raises(OutOfDiskError, match=SAID) as caught:
            begin()
        assert "\n" not in str(caught.value)
    filler.unlink()
    with contextlib.closing(sandbox.restore(snapshot, tmp_path / "elsewhere", spec)) as live_sandbox:
        assert live_sandbox.run("cat work", timeout_s=20).output == "work\n"


def test_a_full_disk_is_no_failure_of_the_agent(spec: SandboxSpec, full_home: Path, tmp_path: Path) -> None:
    with contextlib.closing(sandbox.start(spec)) as live_sandbox:
        filler = fill_disk(full_home)
        for deed in (
            lambda: live_sandbox.run("echo new > new", timeout_s=20),
            lambda: live_sandbox.run("echo > new; exit 3", timeout_s=20),
            lambda: live_sandbox.run("sleep 9", timeout_s=0.5),
            lambda: live_sandbox.write_file("new", b"x" * 100_000),
            lambda: live_sandbox.snapshot(tmp_path / "store").result(),
        ):
            with pytest.raises(OutOfDiskError, match=SAID):
                deed()
        filler.unlink()
    with contextlib.closing(sandbox.start(spec)) as live_sandbox:
        assert live_sandbox.run("echo new > new && cat new", timeout_s=20).output == "new\n"


def test_a_disk_without_free_inodes(
    spec: SandboxSpec, full_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=2000", full_home], check=True)
    sandbox.start(spec).close()
    with contextlib.suppress(OSError):
        for number in range(2000):
            (full_home / f"name-{number}").touch()
    with pytest.raises(OutOfDiskError, match=r"room for 0 files left\); make room"):
        sandbox.start(spec)


@pytest.mark.parametrize("moment", ["thinking", "acting"])
def test_a_run_continues_once_its_sandbox_has_room(full_home: Path, tmp_path: Path, moment: str) -> None:
    def listen(event: dict[str, Any]) -> None:
        if event["event"] == moment and event["step"] == 2:
            fill_disk(full_home)

    model = scripted_model(*NOTES, SHOW, DONE)
    with open_home(tmp_path / "home") as home:
        bench = RunHarness(tmp_path, home)
        with pytest.raises(OutOfDiskError, match="the disk is full"):
            bench.run(model, on_progress=listen)
    (full_home / "filler").unlink()
    with open_home(tmp_path / "home") as bench.home:
        assert get_shown_lines(bench.resume(model).state) == ["1", "2", "3"]


def test_an_unwritable_overlay_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0 or (reason := overlay.unavailable_reason()):
        skip_missing(reason if os.geteuid() == 0 else "only root gives a directory to another user")
    room = overlay.create_layer_directory("test-full-overlay")
    try:
        (room / "lower").mkdir()
        os.chown(room / "work", 0, 0)  # the kernel mounts it read-only then, and reports no error
        with pytest.raises(SandboxUnavailableError, match="the work directory cannot be written to"):
            overlay.NamespaceHolder(room, (room / "lower",))
    finally:
        remove_tree(room.parent)
        ownership.release(room.parent.name)


START = """
import sys
from pathlib import Path
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox import start
try:
    start(SandboxSpec(backend="host", directory=Path(sys.argv[1]), owner="test-closed"))
except SandboxUnavailableError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_home_below_a_closed_directory_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0 or (reason := host.unavailable_reason()):
        skip_missing(reason if os.geteuid() == 0 else "another user's sandboxes run as that user")
    (tmp_path / "repository").mkdir()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        home = Path(directory, "home")
        Path(directory).chmod(0o700)
        own = {**os.environ, "PYTHONPATH": str(Path(sandbox.__file__).parents[2]), "TAKEOVER_HOME": str(home)}
        started, probed = (
            subprocess.run([sys.executable, *argv], env=own, capture_output=True, text=True, timeout=100)
            for argv in (["-c", START, str(tmp_path / "repository")], ["-m", "sandbox", "probe"])
        )
    reason = f"{directory}: closed to user {host_directories.ROOT_UID}, as which sandboxes run (mode 0700)"
    cure = f"set TAKEOVER_HOME to a directory that others can enter, or chmod o+x {directory}"
    assert started.stdout == f"{reason} ({cure})\n"
    for line in (reason, cure):
        assert "".join(line.split()) in "".join(probed.stdout.split())
    assert "ext4" not in probed.stdout
