"""Commands that read foreign files report bad input in one line; they never hang or print a traceback."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import pytest

from ..command_line import call_main
from .conftest import rewrite_rows

_PUBLISHED = Path(__file__).parent / "published"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


KINDS: dict[str, Callable[[Path], object]] = {
    "empty": _text(""),
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "nul": lambda path: path.write_bytes(bytes(5000)),
    "utf-16": lambda path: path.write_bytes('{"a": 1}'.encode("utf-16")),
    "list": _text("[]"),
    "number": _text("5"),
    "string": _text('"x"'),
    "null": _text("null"),
    "object": _text("{}"),
    "lists": _text("[[1], [{}], null]"),
    "nesting": _text("[" * 200_000),
    "objects": _text('{"a":' * 100_000 + "1" + "}" * 100_000),
    "long integer": _text(f'{{"schema_version": 10, "id": 1{"0" * 6000}, "outcome": 1{"0" * 6000}}}'),
    "nan": _text('{"schema_version": 10, "id": NaN, "outcome": Infinity, "limit": -Infinity}'),
    "surrogates": _text(
        '{"id": "\\ud800", "outcome": "\\udfff", "role": "\\ud800", "instance_id": "\\ud800"}'
    ),
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "socket": _socket,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "null device": lambda path: path.symlink_to("/dev/null"),
    "dangling": lambda path: path.symlink_to("/nowhere/at/all"),
    "loop": lambda path: path.symlink_to(path.name),
    "10 GiB": _sparse,
}
NO_ENDPOINT = ("--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1")
UNISOLATED = ("--sandbox", "process", "--allow-unisolated")
READERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "show a trace": ("t.json", "handoff", ("show", "t.json")),
    "show traces": ("t.jsonl", "handoff", ("show", "t.jsonl")),
    "show a record": ("r/record.json", "handoff", ("show", "r")),
    "verify a record": ("r/record.json", "handoff", ("verify", "r")),
    "export a record": ("r/record.json", "handoff", ("export", "r", "r.record")),
    "take a record": ("r/record.json", "handoff", ("take", "r")),
    "list handoffs": ("home/takeover.sqlite", "handoff", ("list", "--home", "home")),
    "detect": ("t.json", "evals.detect", ("t.json",)),
    "detect below": ("d/t.jsonl", "evals.detect", ("d",)),
    "labels": ("l.jsonl", "evals.detect", ("--score", "l.jsonl")),
    "write ATIF": ("t.json", "evals.export", ("t.json", "--out", "out")),
    "write notes": ("t.json", "evals.notes", ("t.json", *NO_ENDPOINT)),
    "report: settings": ("run/config.json", "evals.report", ("run",)),
    "report: rows": ("run/takeovers.jsonl", "evals.report", ("run",)),
    "report: journal": ("run/journal.sqlite", "evals.report", ("run",)),
    "compare": ("run/takeovers.jsonl", "evals.compare", ("run", "run")),
    "publish": ("run/takeovers.jsonl", "evals.publish", ("run", "--out", "out")),
    "poison": ("run/config.json", "evals.poison", ("run",)),
    "resume": ("run/config.json", "evals.takeover", ("--resume", "--out", "run")),
    "earlier run": ("run/config.json", "evals.takeover", ("--from", "run", "--dry-run")),
    "models": ("models.yaml", "evals.takeover", ("--models", "models.yaml", "--dry-run")),
    "tasks in JSON": ("t.json", "evals.takeover", ("--tasks", "t.json", "--dry-run")),
    "tasks in lines": ("t.jsonl", "evals.takeover", ("--tasks", "t.jsonl", "--dry-run")),
    "tasks in parquet": ("t.parquet", "evals.takeover", ("--tasks", "t.parquet", "--dry-run")),
    "ids": ("ids", "evals.takeover", ("--task-ids", "@ids", "--dry-run")),
    "replay": (
        "t.json",
        "evals.takeover",
        ("--model", "replay:t.json", *UNISOLATED, "--limit", "1", "--out", "out"),
    ),
}
"""The file, the command and its arguments, in which paths are relative to the directory."""
_PATH = re.compile(r"^(|@|replay:)((?:t|l)\.\w+|r|r\.record|d|home|run|out|ids)$")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("r", "d", "home"):
        (tmp_path / name).mkdir()
    shutil.copytree(_PUBLISHED, tmp_path / "run")
    return tmp_path


@cache
def _main(module: str) -> Callable[[], None]:
    if module != "handoff":
        return import_module(f"langgraph_takeover.{module}").main  # type: ignore[no-any-return]
    from langgraph_takeover.graph.cli.handoff_cli import app
    from langgraph_takeover.graph.cli.handoff_commands import add_commands

    add_commands(app)
    return partial(app, prog_name="python -m handoff")


def _call_command(
    module: str, arguments: Sequence[str], directory: Path, changed: Mapping[str, str], case: str
) -> None:
    """Call a command on the paths in a directory; check that it prints at most two lines of errors."""
    words = [
        _PATH.sub(lambda found: found[1] + changed.get(found[2], f"{directory}/{found[2]}"), word)
        for word in arguments
    ]
    done = call_main(_main(module), *words)
    assert "Traceback" not in done.stderr, (case, done.stderr[-2000:])
    assert done.returncode in (0, 2, 3), (case, done.returncode, done.stderr)
    assert done.returncode == 0 or done.stderr or done.stdout, case
    is_usage = done.returncode == 2 and done.stderr.startswith("Usage: ")
    assert is_usage or len(done.stderr.splitlines()) <= 2, (case, done.stderr)


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", READERS)
def test_any_file_is_reported_in_lines(directory: Path, reader: str) -> None:
    name, module, arguments = READERS[reader]
    path = directory / name
    for kind, make in KINDS.items():
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        make(path)
        _call_command(module, arguments, directory, {}, f"{reader}: {kind}")
        shutil.rmtree(directory / "out", ignore_errors=True)


@pytest.mark.cases(20)
@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\udcff\udcfe"], ids=["nul", "long", "bytes"])
@pytest.mark.parametrize("reader", READERS)
def test_impossible_paths_are_reported_in_lines(directory: Path, reader: str, name: str) -> None:
    file, module, arguments = READERS[reader]
    _call_command(module, arguments, directory, {file.partition("/")[0]: name}, f"{reader}: {name!r:.20}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("view", "../../../escaped"),
        ("point", "/escaped"),
        ("trace", "../../escaped"),
        ("view", "a\ud800"),
        ("record_id", ".."),
        ("task_id", ["x"]),
        ("events", "many"),
        ("events", 1e999),
        ("prompt_tokens", -1),
        ("seconds", True),
        ("resolved", "yes"),
        ("rediscovery", {"read": "x"}),
        ("patch", 5),
        ("outcome", None),
    ],
)
def test_hostile_rows_are_refused(directory: Path, field: str, value: object) -> None:
    rewrite_rows(directory / "run", lambda row: row | {field: value})
    for module, arguments in (("evals.report", ("run",)), ("evals.publish", ("run", "--out", "out"))):
        _call_command(module, arguments, directory, {}, f"{field}={value!r}")
        words = (str(directory / word) if word in ("run", "out") else word for word in arguments)
        done = call_main(_main(module), *words)
        assert done.returncode == 2
        assert re.search(r"takeovers\.jsonl: row \d+", done.stderr)
    assert not list(directory.rglob("*escaped*"))
