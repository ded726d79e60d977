"""Files of others: what is not a regular file is refused by its name, and nothing stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handoff.outside import read_outside


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(IsADirectoryError) as caught:
        read_outside(tmp_path)
    assert caught.value.filename == str(tmp_path)
    assert descriptors() == before


def test_a_fifo_is_refused_by_its_name(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = descriptors()
    with pytest.raises(OSError, match="neither a file nor a directory") as caught:
        read_outside(fifo)
    assert caught.value.filename == str(fifo)
    assert descriptors() == before
