"""The artifact store, on a directory of this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover.evals.cluster.artifacts import ArtifactStore
from langgraph_takeover.sandbox.interface import SandboxUnavailableError, SnapshotCorruptError


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(f"file://{tmp_path}/store/")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with a trace and logs."""
    root = tmp_path / "run"
    (root / "logs" / "deep").mkdir(parents=True)
    (root / "logs" / "deep" / "log").write_text("passed")
    (root / "logs" / "link").symlink_to("deep/log")
    (root / "trace.json").write_text("{}")
    (root / "trace.json").chmod(0o755)
    return root


def test_an_archive_replaces_existing_files(store: ArtifactStore, run: Path, tmp_path: Path) -> None:
    store.put("results/1", run, "trace.json", "logs")
    other = tmp_path / "other"
    (other / "logs" / "old").mkdir(parents=True)
    (other / "trace.json").write_text("old")
    store.fetch("results/1", other, "trace.json", "logs")
    assert sorted(path.name for path in (other / "logs").iterdir()) == ["deep", "link"]
    assert (other / "logs" / "link").read_text() == "passed"
    assert (other / "trace.json").read_text() == "{}"
    assert (other / "trace.json").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in other.iterdir()) == ["logs", "trace.json"]


def test_a_changed_archive_is_refused(store: ArtifactStore, run: Path, tmp_path: Path) -> None:
    store.put("results/1", run, "logs")
    archive = tmp_path / "store" / "results" / "1"
    content = bytearray(archive.read_bytes())
    content[-6] ^= 1  # part of gzip's checksum
    archive.write_bytes(content)
    with pytest.raises(SandboxUnavailableError, match="tar failed"):
        store.fetch("results/1", tmp_path / "other", "logs")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_missing_archive_is_named(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(SnapshotCorruptError, match=r"file not found: .*results/1"):
        store.fetch("results/1", tmp_path / "other", "logs")


def test_values_are_read_counted_and_removed(store: ArtifactStore, tmp_path: Path) -> None:
    assert store.read("rows/1") is None
    store.write("rows/1", {"outcome": "run"})
    store.write("rows/1", {"outcome": "graded"})
    store.write("rows/2", {})
    assert store.read("rows/1") == {"outcome": "graded"}
    assert store.count("rows") == 2
    store.remove()
    store.remove()
    assert not (tmp_path / "store").exists()
