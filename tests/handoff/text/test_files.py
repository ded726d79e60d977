"""Foreign files: only regular files are read, others are refused by name, and no file stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from langgraph_takeover.base.untrusted_input import check_values, read_untrusted_file
from langgraph_takeover.handoff.readers import TraceError, read_traces


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(IsADirectoryError) as caught:
        read_untrusted_file(tmp_path)
    assert caught.value.filename == str(tmp_path)
    assert descriptors() == before


def test_a_fifo_is_refused_by_its_name(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = descriptors()
    with pytest.raises(OSError, match="neither a file nor a directory") as caught:
        read_untrusted_file(fifo)
    assert caught.value.filename == str(fifo)
    assert descriptors() == before


def test_lines_of_too_many_values_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "langgraph_takeover.handoff.readers.check_values", lambda text: check_values(text, 1000)
    )
    file = tmp_path / "runs.jsonl"
    file.write_text('{"a": [1, 2, 3]}\n' * 500)
    with pytest.raises(TraceError, match="more than 1,000 values \\(split the file\\)"):
        list(read_traces(file))
