"""Snapshot archives: imported whole, or refused with the reason."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import (
    OutOfDiskError,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.snapshots import archive_writer, transfer
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.testing.sandboxes import Kit, check_output

from ...conftest import skip_missing

BASE = "sha256:" + "b" * 64
MAGIC = b"takeover snapshot 1\n"

both = pytest.mark.parametrize("kit", ["host", "docker"], indirect=True)
docker = pytest.mark.parametrize("kit", ["docker"], indirect=True)


@pytest.fixture
def stored_snapshot(tmp_path: Path) -> tuple[Snapshot, Path]:
    """A snapshot of some random files, and its store."""
    layer, base, store = (tmp_path / name for name in ("layer", "base", "store"))
    for directory in (layer, base, store):
        directory.mkdir()
    for number in range(4):
        (layer / f"f{number}").write_bytes(os.urandom(100_000))
    digest = archive_writer.write_to_store((layer,), LayerStack(base), store, base_digest=BASE)
    state = "cd /testbed; x=$'\\377'"
    return snapshot_of(digest, archive_name(digest), state), store


def snapshot_of(digest: str, location: str, state: str = "") -> Snapshot:
    return Snapshot(
        backend="host", base=BASE, location=location, digest=digest, workspace="/testbed", shell_state=state
    )


@pytest.fixture
def exported_file(stored_snapshot: tuple[Snapshot, Path], tmp_path: Path) -> Path:
    snapshot, store = stored_snapshot
    path = tmp_path / "out" / "deep" / "snapshot.takeover"
    transfer.export_snapshot(snapshot, store, str(path))
    return path


@pytest.fixture
def small() -> Iterator[Path]:
    """A file system with too little room for the snapshot."""
    if os.geteuid() != 0:
        skip_missing("only root can mount a small file system")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", directory], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


def expect_refusal(url: str, store: Path, reason: str) -> None:
    with pytest.raises(SnapshotCorruptError, match=reason) as found:
        transfer.import_snapshot(url, store)
    assert "\n" not in str(found.value)
    assert list(store.iterdir()) == []


def test_a_snapshot_survives_a_round_trip(
    stored_snapshot: tuple[Snapshot, Path], exported_file: Path, tmp_path: Path
) -> None:
    snapshot, store = stored_snapshot
    assert list(exported_file.parent.iterdir()) == [exported_file]
    found = transfer.import_snapshot(str(exported_file), tmp_path / "new" / "store")
    assert found == snapshot.model_copy(update={"location": found.location})
    copy = tmp_path / "new" / "store" / found.location
    assert copy.read_bytes() == (store / snapshot.location).read_bytes()


def test_a_store_with_an_fsspec_url(stored_snapshot: tuple[Snapshot, Path], tmp_path: Path) -> None:
    snapshot, store = stored_snapshot
    url = f"memory://exported/{tmp_path.name}"
    transfer.export_snapshot(snapshot, store, url)
    assert transfer.import_snapshot(url, tmp_path / "new").digest == snapshot.digest
    with pytest.raises(SandboxUnavailableError, match="nosuch"):
        transfer.export_snapshot(snapshot, store, "nosuch://place")
    with pytest.raises(SnapshotCorruptError, match="file not found"):
        transfer.import_snapshot(f"{url}-other", tmp_path / "new")


def test_many_at_once_to_one_store(stored_snapshot: tuple[Snapshot, Path], tmp_path: Path) -> None:
    snapshot, store = stored_snapshot
    urls = [f"memory://many/{tmp_path.name}/{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda url: transfer.export_snapshot(snapshot, store, url), urls))
        found = list(pool.map(lambda url: transfer.import_snapshot(url, tmp_path / "new"), urls))
    assert {one.digest for one in found} == {snapshot.digest}
    assert [path.name for path in (tmp_path / "new").iterdir()] == [found[0].location]


def test_a_truncated_archive_is_refused(exported_file: Path, tmp_path: Path) -> None:
    content, cut = exported_file.read_bytes(), tmp_path / "cut"
    store = tmp_path / "new"
    for length in (*range(0, 120, 7), *range(120, len(content), len(content) // 40), len(content) - 1):
        cut.write_bytes(content[:length])
        expect_refusal(str(cut), store, "truncated|unknown snapshot format")


def test_every_flipped_bit_is_refused(exported_file: Path, tmp_path: Path) -> None:
    content, flipped = exported_file.read_bytes(), tmp_path / "flipped"
    store = tmp_path / "new"
    for position in (*range(0, 60, 3), *range(60, len(content), len(content) // 40), len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        flipped.write_bytes(changed)
        expect_refusal(str(flipped), store, "checksum|format|larger than|truncated|continues after")


def test_other_files_are_refused(exported_file: Path, tmp_path: Path) -> None:
    content, other, store = exported_file.read_bytes(), tmp_path / "other", tmp_path / "new"
    huge = MAGIC + struct.pack(">QQ", 1 << 40, 1)
    for changed, reason in (
        (b"", "unknown snapshot format"),
        (b"\x1f\x8b" + bytes(1000), "unknown snapshot format"),
        (MAGIC.replace(b"1", b"2") + content[len(MAGIC) :], "unknown snapshot format"),
        (content + b"\0", "continues after its end"),
        (huge, "larger than"),
        (sign_file(b"[]", b""), "invalid snapshot header"),
        (sign_file(b"{" * 100_000, b""), "invalid snapshot header"),
    ):
        other.write_bytes(changed)
        expect_refusal(str(other), store, reason)


def test_a_header_that_does_not_match_its_archive(
    stored_snapshot: tuple[Snapshot, Path], tmp_path: Path
) -> None:
    snapshot, store = stored_snapshot
    content = (store / snapshot.location).read_bytes()
    for more, reason in (
        ({"digest": "0" * 64}, "but the snapshot says"),
        ({"digest": "x"}, "invalid digest in the snapshot header"),
        ({"digest": "../../x"}, "invalid snapshot header"),
        ({"digest": "../" + "0" * 64}, "invalid snapshot header"),
        ({"base": "sha256:" + "c" * 64}, "made for base"),
    ):
        header = f'{{"snapshot":{snapshot.model_copy(update=more).model_dump_json()}}}'.encode()
        path = tmp_path / "other"
        path.write_bytes(sign_file(header, content))
        expect_refusal(str(path), tmp_path / "new", reason)


def sign_file(header: bytes, content: bytes) -> bytes:
    """An archive with the correct checksum."""
    whole = MAGIC + struct.pack(">QQ", len(header), len(content)) + header + content
    return whole + hashlib.sha256(whole).digest()


def test_a_changed_snapshot_is_not_exported(stored_snapshot: tuple[Snapshot, Path], tmp_path: Path) -> None:
    snapshot, store = stored_snapshot
    path = tmp_path / "out" / "file"
    with pytest.raises(SnapshotCorruptError, match="but the snapshot says"):
        transfer.export_snapshot(snapshot.model_copy(update={"digest": "0" * 64}), store, str(path))
    (store / snapshot.location).unlink()
    with pytest.raises(SnapshotCorruptError, match="archive is missing"):
        transfer.export_snapshot(snapshot, store, str(path))
    assert not path.parent.exists()


def test_a_full_disk(stored_snapshot: tuple[Snapshot, Path], exported_file: Path, small: Path) -> None:
    snapshot, store = stored_snapshot
    with pytest.raises(OutOfDiskError, match="disk is full"):
        transfer.export_snapshot(snapshot, store, str(small / "file"))
    assert list(small.iterdir()) == []
    with pytest.raises(OutOfDiskError, match="disk is full"):
        transfer.import_snapshot(str(exported_file), small)
    assert list(small.iterdir()) == []


def test_an_unwritable_target(
    stored_snapshot: tuple[Snapshot, Path], exported_file: Path, small: Path
) -> None:
    snapshot, store = stored_snapshot
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    for deed in (
        lambda: transfer.export_snapshot(snapshot, store, str(small / "file")),
        lambda: transfer.export_snapshot(snapshot, store, str(small / "deep" / "file")),
        lambda: transfer.import_snapshot(str(exported_file), small),
        lambda: transfer.import_snapshot(str(exported_file), small / "deep"),
        lambda: transfer.import_snapshot(str(exported_file), exported_file),
    ):
        with pytest.raises(SandboxUnavailableError):
            deed()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_an_interrupted_export_leaves_nothing(tmp_path: Path, kind: str) -> None:
    layer, base, store, out = (tmp_path / name for name in ("layer", "base", "store", "out"))
    for directory in (layer, base, store, out):
        directory.mkdir()
    (layer / "big").write_bytes(os.urandom(8 << 20))
    digest = archive_writer.write((layer,), LayerStack(base), store / "archive", base_digest=BASE)
    snapshot = snapshot_of(digest, "archive")
    url = f"{out}/file" if kind == "file" else f"memory://interrupted/{tmp_path.name}/file"
    system = fsspec.core.url_to_fs(url)[0]
    began = time.process_time()
    transfer.export_snapshot(snapshot, store, url)
    whole, size = time.process_time() - began, system.size(url)
    interruptions = 0
    for part in range(1, 16):
        system.rm(url)
        with interrupt_after(whole * part / 15) as interrupted:
            transfer.export_snapshot(snapshot, store, url)
        interruptions += interrupted.is_set()
        left = [system.size(path) for path in system.find(url.rpartition("/")[0])]
        assert left in ([], [size])
        assert left or interrupted.is_set()
        if not left:
            transfer.export_snapshot(snapshot, store, url)
    assert interruptions


@contextlib.contextmanager
def interrupt_after(seconds: float) -> Iterator[threading.Event]:
    """Raise KeyboardInterrupt inside after the given CPU time; return whether it came through."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    came_through = threading.Event()
    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield came_through
        signal.setitimer(signal.ITIMER_PROF, 0)
    except KeyboardInterrupt:
        came_through.set()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


NASTY = """
mkdir -p a/deep "$HOME/kept" && echo 1 > a/deep/f && mv a/deep a/moved && ln a/moved/f a/hard
mv pkg/mod.py pkg/renamed.py; mv docs papers; rm tools/run.sh; rm -r tools; mkdir tools; echo new > tools/only
rm README.txt; mkdir README.txt; echo in > README.txt/file; rm data.bin; ln -s /nowhere data.bin
ln -s ../../outside dangling; python3 -c 'import os; os.mkfifo("fifo", 0o640)'
truncate -s 3M sparse; printf end >> sparse; cp /bin/true setuid; chmod 4755 setuid; chmod 1777 a; chmod 000 a/hard
echo b > $'caf\\xe9'; echo n > $'new\\nline'; echo gone > made; rm made; mkdir -p was/here; rm -r was
touch "$(printf 'x%.0s' $(seq 200))"; echo h > "$HOME/kept/h"; rm -f /etc/passwd-
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
"""
SHOWN = r"""find . "$HOME" -name .git -prune -o ! -type s -printf '%p %y %m %s %l %n\n' | sort; sha256sum sparse; cat papers/*"""


@pytest.mark.cases(1)
@both
def test_a_sandbox_survives_a_round_trip(kit: Kit, tmp_path: Path) -> None:
    """Round trip through a file into an empty store."""
    with kit.close_started():
        live_sandbox = kit.start()
        check_output(live_sandbox, NASTY)
        shown = check_output(live_sandbox, SHOWN)
        snapshot = live_sandbox.snapshot(tmp_path / "store").result()
    url = str(tmp_path / "file")
    transfer.export_snapshot(snapshot, tmp_path / "store", url)
    with kit.close_started():
        found = transfer.import_snapshot(url, tmp_path / "new")
        again = kit.restore(found, tmp_path / "new", owner=f"{kit.owner}-other")
        assert check_output(again, SHOWN) == shown
        assert again.snapshot(tmp_path / "second").result().digest == snapshot.digest
    sandbox.remove_stale_resources(kit.backend, f"{kit.owner}-other")


@pytest.mark.slow
@docker
def test_layers_and_commits_have_the_same_digest(kit: Kit, tmp_path: Path) -> None:
    found = {}
    with kit.close_started():
        for way in ("layer", "commit"):
            live_sandbox = kit.start(snapshots=way)
            check_output(live_sandbox, NASTY)
            found[way] = live_sandbox.snapshot(tmp_path / way).result()
            check_output(live_sandbox, "echo more > more")
            found[f"{way}, again"] = live_sandbox.snapshot(tmp_path / way).result()
        assert found["layer"].digest == found["commit"].digest
        assert found["layer, again"].digest == found["commit, again"].digest
        assert found["layer"].digest != found["layer, again"].digest
        assert [one.location.startswith("sha256:") for one in found.values()] == [False, False, True, True]
        thawed = kit.restore(found["layer"], tmp_path / "layer", snapshots="commit")
        assert thawed.snapshot(tmp_path / "third").result().digest == found["layer"].digest


@pytest.mark.slow
@docker
def test_a_committed_sandbox_outlives_its_image(kit: Kit, tmp_path: Path) -> None:
    from langgraph_takeover.sandbox.docker_client import client

    with kit.close_started():
        live_sandbox = kit.start(snapshots="commit")
        check_output(live_sandbox, NASTY)
        shown = check_output(live_sandbox, SHOWN)
        snapshot = live_sandbox.snapshot(tmp_path / "store").result()
        url = f"memory://committed/{tmp_path.name}"
        transfer.export_snapshot(snapshot, tmp_path / "store", url)
        client().images.remove(snapshot.location, force=True)
        with pytest.raises(SnapshotCorruptError, match="not on this daemon"):
            kit.restore(snapshot, tmp_path / "store")
        with pytest.raises(SnapshotCorruptError, match="not on this daemon"):
            transfer.export_snapshot(snapshot, tmp_path / "store", url)
        assert (
            check_output(
                kit.restore(transfer.import_snapshot(url, tmp_path / "new"), tmp_path / "new"), SHOWN
            )
            == shown
        )


@docker
def test_a_missing_base(kit: Kit, tmp_path: Path) -> None:
    with kit.close_started():
        live_sandbox = kit.start()
        check_output(live_sandbox, "echo x > x")
        snapshot = live_sandbox.snapshot(tmp_path).result()
        missing_base = "sha256:" + "0" * 64
        with pytest.raises(
            SandboxUnavailableError, match=r"base sha256:0+.* is not on this daemon; pull or build"
        ):
            kit.restore(snapshot.model_copy(update={"base": missing_base}), tmp_path)


UNPRIVILEGED = """
import contextlib, sys
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.snapshots import transfer
from langgraph_takeover.sandbox.interface import SandboxSpec
place, spec = Path(sys.argv[1]), SandboxSpec.model_validate_json(sys.argv[2])
with contextlib.closing(sandbox.start(spec)) as live_sandbox:
    assert live_sandbox.run(sys.argv[3], timeout_s=20).exit_code == 0
    assert "pkg/renamed.py" in {change.path for change in live_sandbox.changes()}
    snapshot = live_sandbox.snapshot(place / "store").result()
with contextlib.closing(sandbox.restore(snapshot, place / "store", spec)) as live_sandbox:
    assert live_sandbox.run("cat tools/only", timeout_s=20).output == "new\\n"
transfer.export_snapshot(snapshot, place / "store", str(place / "file"))
try:
    sandbox.start(spec.model_copy(update={"snapshots": "layer"}))
except sandbox.SandboxUnavailableError as error:
    print(error)
"""
DARK = (
    "mkdir -p dark/in; echo s > dark/in/s; rm tools/*; echo new > tools/only; chmod 000 tools dark/in/s dark"
)


@pytest.mark.slow
@docker
def test_users_who_cannot_read_layers_snapshot_by_commit(kit: Kit, tmp_path: Path) -> None:
    """A user in the daemon's group exports the same content that root finds in the layers."""
    socket = Path("/var/run/docker.sock")
    if os.geteuid() != 0 or os.environ.get("DOCKER_HOST") or not socket.is_socket():
        skip_missing("only root can become a user that a local daemon's socket is open to")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        group = socket.stat().st_gid
        os.chown(directory, 12345, group)
        become = ["setpriv", "--reuid=12345", f"--regid={group}", "--clear-groups", sys.executable, "-c"]
        package = str(Path(sandbox.__file__).parents[2])
        own = {**os.environ, "HOME": directory, "TAKEOVER_HOME": f"{directory}/depot", "PYTHONPATH": package}
        if subprocess.run(
            [*become, "import docker, langgraph_takeover.sandbox"], env=own, capture_output=True
        ).returncode:
            skip_missing("this Python is not open to other users")
        done = subprocess.run(
            [*become, UNPRIVILEGED, directory, kit.spec().model_dump_json(), f"{NASTY}{DARK}"],
            env=own,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.stdout == "the daemon's layers cannot be read from here (use snapshots by commit)\n", done
        found = transfer.import_snapshot(f"{directory}/file", tmp_path)
    with kit.close_started():
        again = kit.restore(found, tmp_path, snapshots="layer")
        assert check_output(again, "stat -c %a dark dark/in/s tools").split() == ["0"] * 3
        assert again.snapshot(tmp_path).result().digest == found.digest


THAW = """
import sys
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.snapshots import transfer
from langgraph_takeover.sandbox.interface import SandboxSpec
store, url, spec = Path(sys.argv[1]), sys.argv[2], SandboxSpec.model_validate_json(sys.argv[3])
live_sandbox = sandbox.restore(transfer.import_snapshot(url, store), store, spec)
print(live_sandbox.run("cat x", timeout_s=20).output, end="")
live_sandbox.close()
"""


@pytest.mark.slow
@both
def test_processes_restore_one_snapshot_at_once(kit: Kit, tmp_path: Path) -> None:
    with kit.close_started():
        live_sandbox = kit.start()
        check_output(live_sandbox, "echo thawed > x; head -c 3000000 /dev/urandom > random")
        snapshot = live_sandbox.snapshot(tmp_path / "store").result()
    url = str(tmp_path / "file")
    transfer.export_snapshot(snapshot, tmp_path / "store", url)
    argv = [sys.executable, "-c", THAW, str(tmp_path / "new"), url, kit.spec().model_dump_json()]
    started = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    ended = [process.communicate(timeout=60) for process in started]
    assert ended == [("thawed\n", "")] * 3


def test_an_error_in_clean_up_keeps_its_cause(tmp_path: Path) -> None:
    def write() -> None:
        with transfer.open_atomically(str(tmp_path / "file")) as out:
            part = Path(out.name)
            part.unlink()
            part.mkdir()  # its removal fails
            raise ValueError("cause")

    with pytest.raises(ValueError, match="cause") as caught:
        write()
    assert caught.value.__notes__[0].startswith("clean-up failed, too")
