"""The limits of a report of changes, and what it does where the runtime itself runs out of something."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sandbox import changes
from sandbox.changes import LayerReport, Mount
from sandbox.layers import Stack
from sandbox.machine import SandboxUnavailable


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name in ("top", "base"):
        (tmp_path / name / "w").mkdir(parents=True)
    return tmp_path / "top" / "w"


@pytest.fixture
def report(top: Path) -> LayerReport:
    return LayerReport(Stack(top.parent, top.parents[1] / "base"), (Mount("w", "/w"),), "/w")


def unhashed(report: LayerReport) -> list[str]:
    return [change.path for change in report.changes() if change.too_large]


def test_bytes_are_bounded_in_the_order_of_names(
    top: Path, report: LayerReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_HASHED", 250)
    for name in ("d", "b", "e", "a", "c"):
        (top / name).write_bytes(b"x" * 100)
    assert unhashed(report) == ["c", "d", "e"]


def test_files_are_bounded(top: Path, report: LayerReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_MOST_FILES", 2)
    for name in ("c", "a", "b"):
        (top / name).write_bytes(b"x")
    assert unhashed(report) == ["c"]


def test_time_is_bounded(top: Path, report: LayerReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LONGEST_LOOK_S", 0.0)
    (top / "a").touch()
    with pytest.raises(SandboxUnavailable, match="too many files"):
        report.changes()


def test_a_lack_of_descriptors_is_no_change(
    top: Path, report: LayerReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    (top / "d").mkdir()
    (top / "d" / "f").touch()
    assert [change.path for change in report.changes()] == ["d/f"]
    open_at = changes.open_at

    def refused(directory: int, name: str, *flags: Any) -> int:
        if name == "d":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_at(directory, name, *flags)

    with monkeypatch.context() as patch:
        patch.setattr(changes, "open_at", refused)
        with pytest.raises(SandboxUnavailable, match="cannot be read: Too many open files"):
            report.changes()
    assert report.changes() == ()
