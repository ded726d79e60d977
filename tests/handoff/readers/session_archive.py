"""Sessions of replayed runs, stored as differences from those runs.

The recorded runs are real data that is not part of the repository. So the archive holds, for every session, only the
text that its run does not have, and the positions of the rest in the texts of the run.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).parent / "sessions" / "replayed.json.xz"
LABELS = Path(__file__).parent / "sessions" / "labels.jsonl"
_KEY_CHARS = 24
_STRIDE = 8

Delta = list[str | list[int]]
"""Literal texts, and pairs of a position in the run's texts and a length."""


def read_source(run: Path, number: int) -> str:
    """All texts of a recorded run as JSON writes them, once and twice escaped."""
    text = run.read_text()
    document = json.loads(text.splitlines()[number] if run.suffix == ".jsonl" else text)
    once = [json.dumps(value, ensure_ascii=False)[1:-1] for value in _list_texts(document)]
    return "\0".join(once + [json.dumps(value, ensure_ascii=False)[1:-1] for value in once])


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) >= _KEY_CHARS:
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _list_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_texts(inner)


def make_delta(source: str, target: str) -> Delta:
    """Describe a text by the parts of another."""
    index: dict[str, int] = {}
    for position in range(0, len(source) - _KEY_CHARS + 1, _STRIDE):
        index.setdefault(source[position : position + _KEY_CHARS], position)
    delta: Delta = []
    start = position = 0
    while position < len(target):
        found = index.get(target[position : position + _KEY_CHARS])
        if found is None:
            position += 1
            continue
        before = 0
        while (
            position - before > start
            and found > before
            and target[position - before - 1] == source[found - before - 1]
        ):
            before += 1
        after = _KEY_CHARS
        while (
            target[position + after : position + after + 1] == source[found + after : found + after + 1] != ""
        ):
            after += 1
        if position - before > start:
            delta.append(target[start : position - before])
        delta.append([found - before, before + after])
        start = position = position + after
    if start < len(target):
        delta.append(target[start:])
    return delta


def apply_delta(source: str, delta: Delta) -> str:
    """The text that a delta describes."""
    return "".join(part if isinstance(part, str) else source[part[0] : part[0] + part[1]] for part in delta)


def write_archive(sessions: dict[str, tuple[str, Delta]]) -> None:
    """Write the archive: name of a session -> the run's file, and the delta."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    content = json.dumps(sessions, ensure_ascii=False, separators=(",", ":")).encode()
    ARCHIVE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


def unpack(runs: Path, directory: Path) -> list[Path]:
    """Write all sessions into a directory; `runs` is the directory of the recorded runs."""
    files = []
    for name, (run, delta) in json.loads(lzma.decompress(ARCHIVE.read_bytes())).items():
        file, _, number = run.partition("#")
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(apply_delta(read_source(runs / file, int(number or 0)), delta))
        files.append(path)
    return files
