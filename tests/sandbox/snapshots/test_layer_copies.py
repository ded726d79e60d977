"""Snapshots that copy what has changed: after any changes, in idle and busy sandboxes, merged or not."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox.backends import file_trees, overlay
from langgraph_takeover.sandbox.backends.base import BackendSandbox
from langgraph_takeover.sandbox.backends.processes import has_mapped_files
from langgraph_takeover.sandbox.changes import saved_files
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.changes.saved_files import SavedFiles, read_top_layer
from langgraph_takeover.sandbox.interface import OutOfDiskError, Sandbox
from langgraph_takeover.sandbox.snapshots import layer_copies
from langgraph_takeover.testing.sandboxes import Kit, check_output

from ...conftest import skip_missing
from ..conftest import open_kit

LISTING = r"""
find . -path ./.git -prune -o ! -name .hidden -printf '%p %y %m %U:%G %l %T@ ' \
    \( -type f -printf "%s\n" -o -printf '\n' \) | sort
find . -path ./.git -prune -o -type f ! -name .hidden -print0 | sort -z | xargs -0 sha256sum
"""
NAMES = ("a", "b", "pkg", "docs", "pkg/mod.py", "pkg/a", "docs/b", "docs/sub", "docs/sub/c", "é x", ".wh.odd")
COMMANDS = (
    "echo {number} > {one}",
    "printf {number} >> {one}",
    "rm -rf {one}",
    "rm -rf {one}; mkdir -p {one}",
    "mkdir -p {one}; echo {number} > {one}/new",
    "mv -T {one} {other}",
    "cp -a {one} {other}",
    "ln -f {one} {other}",
    "ln -sfn {one} {other}",
    "chmod {mode} {one}",
    "touch -d @{number} {one}",
    "rm -f {one}; mkfifo {one}",
    "truncate -s 70M {one}",
    "cp -p {one} x; printf x | dd of={one} conv=notrunc status=none; touch -r x {one}; rm x",
    "true",
)


@pytest.fixture(scope="module")
def host(repository: Path) -> Iterator[Kit]:
    with open_kit("host", repository, None) as kit:
        if reason := overlay.unavailable_reason():
            skip_missing(reason)
        yield kit


@pytest.fixture(params=["idle", "busy"])
def live_sandbox(host: Kit, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with host.close_started():
        found = host.start()
        if request.param == "busy":
            check_output(found, "(while sleep .01; do echo beat >.hidden; done) >/dev/null 2>&1 &")
        yield found


def change_files(sandbox: Sandbox, chooser: random.Random) -> None:
    for _ in range(chooser.randrange(1, 5)):
        one, other = chooser.sample(NAMES, 2)
        command = chooser.choice(COMMANDS).format(
            one=f"'{one}'",
            other=f"'{other}'",
            number=chooser.randrange(10**6),
            mode=chooser.choice(("700", "755", "644", "600", "000")),
        )
        sandbox.run(command, timeout_s=20)


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 3), *(pytest.param(seed, 8, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_restored_files_equal_the_live_ones(
    host: Kit, live_sandbox: Sandbox, tmp_path: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = random.Random(seed)
    monkeypatch.setattr(file_trees, "_MAX_COPIES", 3)
    monkeypatch.setattr(overlay, "MAX_LAYERS", 7)
    for number in range(steps):
        change_files(live_sandbox, chooser)
        if chooser.random() < 0.15:  # too many for a copy
            check_output(live_sandbox, f"mkdir -p many; for i in {{1..99}}; do echo {number} > many/$i; done")
        expected = check_output(live_sandbox, LISTING)
        store = tmp_path / f"store {number}"
        snapshot = live_sandbox.snapshot(store).result()
        assert check_output(live_sandbox, LISTING) == expected
        for place in (store, shutil.copytree(store, tmp_path / f"moved {number}")):
            with host.restore(snapshot, place) as restored:
                assert check_output(restored, LISTING) == expected, (number, place)


def test_few_changes_keep_the_shells(host: Kit, live_sandbox: Sandbox, tmp_path: Path) -> None:
    pid = check_output(live_sandbox, "echo $$ $BASHPID; echo 1 > first")
    for number in range(3):
        check_output(live_sandbox, f"echo {number} > file")
        live_sandbox.snapshot(tmp_path).result()
    assert check_output(live_sandbox, "echo $$ $BASHPID") == pid
    assert not live_sandbox.has_unsaved_changes() or "beat" in check_output(live_sandbox, "cat .hidden")


def test_a_file_that_is_written_through_memory_is_copied(host: Kit, tmp_path: Path) -> None:
    """Such a file keeps its times while its pages wait to be written back."""
    program = (
        "import mmap, sys\nfile = open('mapped', 'r+b')\nmemory = mmap.mmap(file.fileno(), 0)\n"
        "for line in sys.stdin:\n memory[:6] = line.encode()[:6]\n print('written', flush=True)"
    )
    with host.close_started():
        sandbox = host.start()
        check_output(sandbox, "echo before > mapped; mkfifo in out")
        sandbox.write_file("program.py", program.encode())
        check_output(sandbox, "(python3 program.py <in >out &) ; exec 6>in 7<out")
        for text in ("first!", "second", "third!"):
            check_output(sandbox, f"echo {text} >&6; read -r answer <&7")
            snapshot = sandbox.snapshot(tmp_path / text).result()
            assert sandbox.has_unsaved_changes()
            assert check_output(host.restore(snapshot, tmp_path / text), "head -c 6 mapped") == text
        check_output(sandbox, "echo fourth >&6; read -r answer <&7; exec 6>&- 7<&-; sleep .2")
        snapshot = sandbox.snapshot(tmp_path / "last").result()
        assert check_output(host.restore(snapshot, tmp_path / "last"), "head -c 6 mapped") == "fourth"


def test_mappings_are_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    assert not has_mapped_files(os.getpid())
    with (tmp_path / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert has_mapped_files(os.getpid())


def test_a_full_disk_while_changes_are_copied(
    host: Kit, live_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_output(live_sandbox, "echo kept > file")

    def fill_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(layer_copies, "_set_owner_and_times", fill_disk)
        with pytest.raises(OutOfDiskError):
            live_sandbox.snapshot(tmp_path / "full").result()
    assert live_sandbox.has_unsaved_changes()
    snapshot = live_sandbox.snapshot(tmp_path / "store").result()
    assert check_output(host.restore(snapshot, tmp_path / "store"), "cat file") == "kept\n"


def test_a_failed_archive_leaves_the_changes_unsaved(host: Kit, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a directory")
    with host.close_started():
        sandbox = host.start()
        check_output(sandbox, "echo kept > file")
        with pytest.raises(Exception, match="store"):
            sandbox.snapshot(tmp_path / "store").result()
        assert sandbox.has_unsaved_changes()
        snapshot = sandbox.snapshot(tmp_path / "other").result()
        assert check_output(host.restore(snapshot, tmp_path / "other"), "cat file") == "kept\n"


def test_coarse_times_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a coarse clock, a file can change after its snapshot and keep its times."""
    layer = tmp_path / "layer"
    layer.mkdir()
    monkeypatch.setattr(saved_files, "_has_fine_times", lambda _: False)
    stack, saved = LayerStack(layer), SavedFiles(())
    (layer / "file").write_text("x")
    saved.remember(stack)
    assert saved.have_changed(stack)
    saved.remember(stack, waits=True)
    assert not saved.have_changed(stack)
    (layer / "file").write_text("y")
    assert saved.have_changed(stack)


def test_merged_layers_hide_the_same(tmp_path: Path) -> None:
    """A directory that replaced a deleted one hides the old content in the merged layer, too."""
    old, middle, new, merged = (tmp_path / name for name in ("old", "middle", "new", "merged"))
    for each in (old, middle, new, merged):
        each.mkdir()
    (old / "kept").write_text("old")
    os.mknod(middle / "gone", stat.S_IFCHR, 0)
    (new / "gone").mkdir()
    (new / "gone" / "file").write_text("new")
    layer_copies.merge_layers((new, middle, old), merged)
    found = read_top_layer(LayerStack(merged))
    assert found is not None
    assert found["gone"].is_opaque
    assert sorted(found) == ["gone", "gone/file", "kept"]
    assert (merged / "kept").samefile(old / "kept")


def test_the_files_of_the_last_snapshot_can_be_read(host: Kit, tmp_path: Path) -> None:
    with host.close_started():
        sandbox = host.start()
        assert isinstance(sandbox, BackendSandbox)
        check_output(sandbox, "echo one > file")
        sandbox.snapshot(tmp_path).result()
        check_output(sandbox, "echo two > file")
        assert sandbox.read_layers(["file"], 99, earlier=True)["file"].content == b"one\n"
        assert sandbox.read_layers(["file"], 99)["file"].content == b"two\n"


def test_an_early_snapshot_is_restored_without_its_archive(host: Kit, tmp_path: Path) -> None:
    """Later snapshots link its archive, which changes the time of the inode."""
    with host.close_started():
        sandbox = host.start()
        check_output(sandbox, "head -c 300000 /dev/urandom > large")
        first = sandbox.snapshot(tmp_path / "first").result()
        for number in range(2):
            check_output(sandbox, f"echo {number} > small")
            sandbox.snapshot(tmp_path / str(number)).result()
        assert (tmp_path / "first" / first.location).stat().st_nlink > 1
        layers = file_trees._find_cached_layers(host.owner, first.digest, tmp_path / "first" / first.location)
        assert layers is not None
        assert (layers[0] / "workspace" / "large").stat().st_size == 300_000
