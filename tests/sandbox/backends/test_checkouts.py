"""Snapshots of whole repositories, and checkouts of snapshots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox import (
    SandboxSpec,
    SnapshotCorruptError,
    default_backend,
    ownership,
    restore,
    start,
)
from langgraph_takeover.sandbox.backends import checkouts, host
from langgraph_takeover.sandbox.backends.base import make_restore_spec
from langgraph_takeover.sandbox.interface import BackendName, SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots import archive_writer
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

from ...agent_sessions import describe_tree, make_repository
from ...conftest import skip_missing


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    directory = make_repository(tmp_path / "shop")
    (directory / "shop/link").symlink_to("price.py")
    (directory / "empty").mkdir(mode=0o750)
    (directory / "notes.txt").chmod(0o600)
    (directory / "name\udce9 with\nbreak").write_text("x")
    os.truncate(directory / "notes.txt", 3 << 20)
    (directory / "second").hardlink_to(directory / "notes.txt")
    return directory


@pytest.mark.parametrize("backend", ["host", "process"])
def test_a_checkout_equals_the_repository(shop: Path, tmp_path: Path, backend: BackendName) -> None:
    before = describe_tree(shop)
    store = tmp_path / "store"
    store.mkdir()
    snapshot = checkouts.snapshot_directory(shop, store, backend=backend, owner="test")
    assert describe_tree(shop) == before
    assert (store / snapshot.location).stat().st_size < 1 << 20
    checkouts.write_checkout(snapshot, store, tmp_path / "copy")
    assert describe_tree(tmp_path / "copy") == before
    assert (tmp_path / "copy/notes.txt").stat().st_mtime_ns == (shop / "notes.txt").stat().st_mtime_ns
    assert (tmp_path / "copy").stat().st_uid == os.geteuid()
    with pytest.raises(FileExistsError):
        checkouts.write_checkout(snapshot, store, tmp_path / "copy")


@pytest.mark.parametrize("backend", ["host", "process"])
def test_a_snapshot_needs_no_base_of_this_host(shop: Path, tmp_path: Path, backend: BackendName) -> None:
    if backend == "host" and (reason := host.unavailable_reason()):
        skip_missing(reason)
    store = tmp_path / "store"
    store.mkdir()
    snapshot = checkouts.snapshot_directory(shop, store, backend=backend, owner="test")
    remove_tree(ownership.root() / "bases")
    remove_tree(shop)
    sandbox = restore(snapshot, store, make_restore_spec(snapshot, backend))
    try:
        assert sandbox.run("git status --short shop", timeout_s=20).output == (
            " M shop/price.py\n?? shop/link\n"
        )
        assert sandbox.cwd() == sandbox.workspace
    finally:
        sandbox.close()


def test_a_checkout_of_a_snapshot_over_a_base(shop: Path, tmp_path: Path) -> None:
    """The checkout merges the changes of a sandbox, removed files included, with what it started from."""
    sandbox = start(SandboxSpec(backend=default_backend(allow_process=True), directory=shop))
    try:
        sandbox.run("rm -r shop; echo new >made.txt; mkdir shop; echo y >shop/other.py", timeout_s=20)
        snapshot = sandbox.snapshot(tmp_path / "store").result()
    finally:
        sandbox.close()
    checkouts.write_checkout(snapshot, tmp_path / "store", tmp_path / "copy")
    found = describe_tree(tmp_path / "copy")
    assert {name for name in found if name.startswith("shop/")} == {"shop/other.py"}
    assert (tmp_path / "copy/made.txt").read_text() == "new\n"
    assert found["notes.txt"] == describe_tree(shop)["notes.txt"]


def test_nothing_is_left_behind(shop: Path, tmp_path: Path) -> None:
    snapshot = checkouts.snapshot_directory(shop, tmp_path, backend="host", owner="leftover")
    checkouts.write_checkout(snapshot, tmp_path, tmp_path / "copy")
    root = ownership.root()
    assert [path.name for path in root.glob("*/leftover-*")] == []
    assert [path.name for path in root.glob("*/checkout-*")] == []


def test_a_repository_that_changes_meanwhile(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = archive_writer.write_differences_to_store

    def change_after(*arguments: Any, **options: Any) -> archive_writer.WrittenArchive:
        written = write(*arguments, **options)
        (shop / "notes.txt").write_text("changed")
        return written

    monkeypatch.setattr(archive_writer, "write_differences_to_store", change_after)
    with pytest.raises(
        SandboxUnavailableError,
        match=r"changed while it was read: 'notes.txt', 'second' .*let the agent finish",
    ):
        checkouts.snapshot_directory(shop, tmp_path, backend="host", owner="test")
    assert list(tmp_path.glob("*.zst*")) == []


def test_a_damaged_archive_writes_nothing(shop: Path, tmp_path: Path) -> None:
    snapshot = checkouts.snapshot_directory(shop, tmp_path, backend="host", owner="test")
    archive = tmp_path / snapshot.location
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(SnapshotCorruptError):
        checkouts.write_checkout(snapshot, tmp_path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["host", "docker"])
def test_a_snapshot_moves_to_an_image(
    shop: Path, tmp_path: Path, testbed_image: Any, backend: BackendName
) -> None:
    """The image has other files at the repository's place: these are hidden."""
    if backend == "host" and (reason := host.unavailable_reason()):
        skip_missing(reason)
    stores = tmp_path / "store", tmp_path / "rebased"
    for store in stores:
        store.mkdir()
    with (shop / "disk.img").open("wb") as disk:
        disk.truncate(100 << 20)
        disk.seek(90 << 20)
        disk.write(b"data")
    first = checkouts.snapshot_directory(shop, stores[0], backend="process", owner="test")
    with testbed_image() as image:
        moved = checkouts.rebase_snapshot(first, stores[0], image, stores[1])
        sandbox = restore(moved, stores[1], make_restore_spec(moved, backend))
        try:
            assert sandbox.workspace == "/testbed"
            read = "stat -c %s disk.img; tail -c +$(((90 << 20) + 1)) disk.img | head -c 4"
            assert sandbox.run(read, timeout_s=60).output == f"{100 << 20}\ndata"
            shown = sandbox.run(
                "git status --short shop; stat -c '%u %a' notes.txt; ls -A", timeout_s=60
            ).output
            assert shown.startswith(" M shop/price.py\n?? shop/link\n0 600\n")
            assert set(shown.splitlines()[3:]) >= {".env", ".git", "shop", "second"}
            inside = sandbox.run("find . -path ./.git -prune -o -type f -print | wc -l", timeout_s=60).output
            here = [
                path
                for path in shop.rglob("*")
                if ".git" not in path.parts and path.is_file() and not path.is_symlink()
            ]
            assert int(inside) in (len(here), len(here) + 1)  # a name with a line break
        finally:
            sandbox.close()
        checkouts.write_checkout(moved, stores[1], tmp_path / "copy")
    assert describe_tree(tmp_path / "copy") == describe_tree(shop)
