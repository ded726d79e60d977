"""The limits of a report of changes, and its behaviour when the runtime lacks resources."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox.changes import change_report
from langgraph_takeover.sandbox.changes import change_report as changes
from langgraph_takeover.sandbox.changes.change_report import LayerChangeTracker, Mount
from langgraph_takeover.sandbox.changes.layers import TRUSTED_OPAQUE, USER_OPAQUE, LayerStack
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots.differences import list_differences
from langgraph_takeover.sandbox.untrusted_trees import remove_tree


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name in ("top", "base"):
        (tmp_path / name / "w").mkdir(parents=True)
    return tmp_path / "top" / "w"


@pytest.fixture
def report(top: Path) -> LayerChangeTracker:
    return LayerChangeTracker(LayerStack(top.parent, top.parents[1] / "base"), (Mount("w", "/w"),), "/w")


def list_unhashed(report: LayerChangeTracker) -> list[str]:
    return [change.path for change in report.changes() if change.too_large]


def test_bytes_are_bounded_in_the_order_of_names(
    top: Path, report: LayerChangeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_report, "MAX_HASHED_BYTES", 250)
    for name in ("d", "b", "e", "a", "c"):
        (top / name).write_bytes(b"x" * 100)
    assert list_unhashed(report) == ["c", "d", "e"]


def test_files_are_bounded(top: Path, report: LayerChangeTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_report, "_MAX_HASHED_FILES", 2)
    for name in ("c", "a", "b"):
        (top / name).write_bytes(b"x")
    assert list_unhashed(report) == ["c"]


def test_time_is_bounded(top: Path, report: LayerChangeTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_SCAN_S", 0.0)
    (top / "a").touch()
    with pytest.raises(SandboxUnavailableError, match="too many files"):
        report.changes()


def test_running_out_of_descriptors_is_no_change(
    top: Path, report: LayerChangeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (top / "d").mkdir()
    (top / "d" / "f").touch()
    assert [change.path for change in report.changes()] == ["d/f"]
    open_at = changes.open_at

    def refuse_open(directory: int, name: str, *flags: Any) -> int:
        if name == "d":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_at(directory, name, *flags)

    with monkeypatch.context() as patch:
        patch.setattr(changes, "open_at", refuse_open)
        with pytest.raises(SandboxUnavailableError, match="cannot be read: Too many open files"):
            report.changes()
    assert report.changes() == ()


def test_time_is_bounded_after_the_listing(
    top: Path, report: LayerChangeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = top.parents[1] / "base" / "w" / "d"
    base.mkdir()
    for number in range(2000):
        (base / f"f{number}").touch()
    os.mknod(top / "d", 0o020600, 0)
    monkeypatch.setattr(changes, "MAX_SCAN_S", 0.01)
    with pytest.raises(SandboxUnavailableError, match="too many files"):
        report.changes()


@pytest.mark.slow
def test_each_directory_of_many_deep_layers_is_listed_once(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 100)
    for number in range(30):
        (tmp_path / f"{number}" / "w" / deep).mkdir(parents=True)
        for file in range(20):
            (tmp_path / f"{number}" / "w" / deep / f"f{number}-{file}").touch()
    (tmp_path / "top" / "w").mkdir(parents=True)
    layers = (tmp_path / name for name in ("top", *map(str, range(30))))
    report = LayerChangeTracker(LayerStack(*layers), (Mount("w", "/w"),), "/w")
    os.mknod(tmp_path / "top" / "w" / "d", 0o020600, 0)
    calls: Counter[str] = Counter()
    sys.setprofile(lambda _, event, function: calls.update([function.__name__] if event == "c_call" else []))
    try:
        changes = report.changes()
    finally:
        sys.setprofile(None)
    assert len(changes) == 600
    # 30 layers of 100 directories and 20 files each. Opening each directory from the root would need over 150,000 calls.
    assert calls["open"] < 30_000


def test_no_path_exceeds_the_limit_of_a_snapshot(top: Path, report: LayerChangeTracker) -> None:
    code = "import os\nfor n in range(40):\n os.mkdir('n' * 250); os.chdir('n' * 250)\n open('f', 'w')\n"
    try:
        subprocess.run([sys.executable, "-c", code], cwd=top, check=True)
        found = [change.path for change in report.changes()]
        assert len(found) == 15
        assert max(map(len, found)) < 4096
    finally:
        remove_tree(top)


def test_a_directory_hides_others_by_its_back_ends_attribute_only(tmp_path: Path) -> None:
    for name in ("top", "base"):
        (tmp_path / name / "d").mkdir(parents=True)
    (tmp_path / "base" / "d" / "f").touch()
    os.setxattr(tmp_path / "top" / "d", USER_OPAQUE, b"y")
    layers = (tmp_path / "top", tmp_path / "base")
    assert LayerStack(*layers).find("d/f") is None
    assert LayerStack(*layers, opaque_attribute=TRUSTED_OPAQUE).find("d/f") is not None
    base = LayerStack(layers[1], opaque_attribute=TRUSTED_OPAQUE)
    assert [each.kind for each in list_differences(layers[:1], base)] == ["directory"]
    report = LayerChangeTracker(LayerStack(*layers, opaque_attribute=TRUSTED_OPAQUE), (Mount("", "/"),), "/")
    os.setxattr(tmp_path / "top", USER_OPAQUE, b"y")
    assert report.changes() == ()
    assert report.sha256("d/f") is not None
