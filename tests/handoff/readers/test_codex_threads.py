"""Threads of Codex in several files: a rewound session is read whole, and says what the user withdrew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.cli.trace_files import find_trace_files
from langgraph_takeover.handoff.agents import codex_rollouts
from langgraph_takeover.handoff.agents.session_files import list_sessions, select_session
from langgraph_takeover.handoff.readers import describe_left_out
from langgraph_takeover.handoff.trace.events import Trace

from .session_rows import LATER, SESSIONS, list_commands, read_one

FILES = sorted((SESSIONS / "codex-rewound").iterdir())
THREAD = "01a22051-8812-7812-a350-ffafc8d0daa4"
FORK = "01a22099-0000-7000-8000-000000000001"
TEST, EDIT, WRONG2 = "python3 -m pytest -q", "apply_patch", "echo 2 > wrong2.py"
Rows = list[dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the recorded thread: a rewind, a rewind in its file, and one to before the first rewind's end."""
    directory = tmp_path / ".codex" / "sessions" / "2026" / "11" / "28"
    directory.mkdir(parents=True)
    for path in FILES:
        shutil.copy(path, directory)
    return tmp_path


def list_files(home: Path) -> list[Path]:
    return sorted(home.rglob("rollout-*.jsonl"), key=lambda path: path.name)


def read(path: Path) -> Trace:
    return read_one(path, workspace="/testbed")


def list_programs(trace: Trace) -> list[str]:
    """The first command of each action."""
    return [text.split(";")[0].split(" <<")[0] for text in list_commands(trace)]


def list_requests(trace: Trace) -> list[str]:
    return trace.task.split(LATER)


def edit_rows(path: Path, edit: Callable[[Rows], Rows]) -> None:
    rows = edit([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def edit_meta(path: Path, **changed: Any) -> None:
    """Change what the first row of a file states; a key with None goes."""

    def change(rows: Rows) -> Rows:
        payload = rows[0]["payload"] | changed
        rows[0]["payload"] = {key: value for key, value in payload.items() if value is not None}
        return rows

    edit_rows(path, change)


def drop_ordinals(rows: Rows) -> Rows:
    return [{key: row[key] for key in row if key != "ordinal"} for row in rows]


@pytest.mark.parametrize(
    ("number", "requests", "commands", "withdrawn"),
    [
        (0, ["Make", "Add"], [TEST, EDIT, "finish"], ()),
        (1, ["Make", "Repair", "Check"], [TEST, EDIT, TEST, "finish"], ("wrong.py",)),
        (2, ["Make", "Repair", "List"], [TEST, EDIT, "ls", "finish"], ("wrong.py",)),
        (3, ["Make", "Try", "Check"], [TEST, WRONG2, TEST, "finish"], ("calc.py", "wrong.py")),
    ],
)
def test_each_file_has_the_history_that_it_continues(
    home: Path, number: int, requests: list[str], commands: list[str], withdrawn: tuple[str, ...]
) -> None:
    trace = read(list_files(home)[number])
    assert [each.split()[0] for each in list_requests(trace)] == requests
    assert list_programs(trace) == commands
    assert trace.id == THREAD
    assert (set(trace.withdrawn_files), trace.withdrawn_actions) == (set(withdrawn), [0, 1, 2, 4][number])
    assert (trace.earlier_session, trace.unknown_forms) == ("", {})


def test_archived_and_copied_files(home: Path, tmp_path: Path) -> None:
    whole = read(list_files(home)[3])
    archive = home / ".codex" / "archived_sessions"
    archive.mkdir()
    list_files(home)[0].rename(archive / list_files(home)[0].name)
    assert read(list_files(home)[3]) == whole
    for path in list_files(home):
        path.rename(home / path.name)
    assert read(home / FILES[3].name) == whole
    link = tmp_path / "link.jsonl"
    link.symlink_to(home / FILES[3].name)
    assert read(link).events == whole.events


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_file_is_named(home: Path, number: int) -> None:
    files = list_files(home)
    name = codex_rollouts.parse_name(files[number])
    files[number].unlink()
    trace = read(files[3])
    assert name is not None
    assert trace.earlier_session == name.segment
    assert trace.unknown_forms == {"history_base without its file": 1}, "no note may say NONE OBSERVED"
    missing = f"of session {name.segment}, which is not found or incomplete (put it beside"
    assert missing in describe_left_out(trace)
    assert list_requests(trace)[-1] == "Check it now. [fail]"


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: [row for row in rows if row["ordinal"] < 20],
        drop_ordinals,
        lambda rows: [],
        lambda rows: [[]],
    ],
)
def test_an_incomplete_file_is_named(home: Path, edit: Callable[[Rows], Rows]) -> None:
    """Without ordinals, the recorded offset decides; it lies behind the end of this shortened file."""
    files = list_files(home)
    edit_rows(files[0], edit)
    assert read(files[1]).earlier_session == THREAD


def test_the_offset_decides_without_ordinals(home: Path) -> None:
    whole = read(list_files(home)[1])
    files = list_files(home)
    lines = files[0].read_bytes().splitlines(keepends=True)
    ordinals = [json.loads(line)["ordinal"] for line in lines]
    edit_rows(files[0], drop_ordinals)
    lines = files[0].read_bytes().splitlines(keepends=True)
    end = sum(len(line) for line, ordinal in zip(lines, ordinals, strict=True) if ordinal < 24)
    base = json.loads(files[1].read_text().splitlines()[0])["payload"]["history_base"]
    edit_meta(files[1], history_base=base | {"end_byte_offset": end})
    assert read(files[1]) == whole


@pytest.mark.parametrize(
    "base", [{"thread_id": THREAD}, {"thread_id": 5}, {"thread_id": "*"}, {"end_ordinal_exclusive": "9"}]
)
def test_a_base_of_wrong_form_is_a_missing_one(home: Path, base: dict[str, Any]) -> None:
    files = list_files(home)
    edit_meta(files[1], history_base=base)
    trace = read(files[1])
    assert trace.earlier_session == str(base.get("thread_id", THREAD))
    assert list_requests(trace)[0] == "Repair add. [edit]"


def test_files_that_continue_each_other_end(home: Path) -> None:
    segment = codex_rollouts.parse_name(FILES[1])
    assert segment is not None
    files = list_files(home)
    edit_meta(files[0], history_base={"thread_id": segment.segment, "end_ordinal_exclusive": 9})
    assert read(files[2]).earlier_session == segment.segment


def test_a_damaged_line_of_an_earlier_file_is_counted(home: Path) -> None:
    files = list_files(home)
    files[0].write_text(files[0].read_text().replace('{"timestamp', "{timestamp", 2))
    assert read(files[3]).skipped_lines == 2


def test_a_rewind_to_the_start_names_nothing(home: Path) -> None:
    """Codex then writes a further file without `history_base`."""
    files = list_files(home)
    edit_meta(files[3], history_base=None)
    trace = read(files[3])
    assert [each.split()[0] for each in list_requests(trace)] == ["Try", "Check"]
    assert (trace.id, trace.withdrawn_actions) == (THREAD, 5)


def test_a_fork_has_the_history_and_not_the_later_work(home: Path) -> None:
    """The thread that was forked goes on; what it did before is withdrawn for the fork only where the fork leaves it out."""
    files = list_files(home)
    fork = files[0].with_name(f"rollout-2026-11-28T04-02-34-{FORK}.jsonl")
    shutil.copy(files[3], fork)
    edit_meta(fork, id=FORK, history_base={"thread_id": THREAD, "end_ordinal_exclusive": 24})
    later = "2026-11-28T04:02:34.000Z"
    edit_rows(fork, lambda rows: [rows[0] | {"timestamp": later}, *rows[1:]])
    trace = read(fork)
    assert [each.split()[0] for each in list_requests(trace)] == ["Make", "Try", "Check"]
    assert (trace.id, trace.withdrawn_actions, trace.earlier_session) == (FORK, 0, "")


def test_a_thread_is_listed_once(home: Path) -> None:
    """Its last file counts, whatever was copied or touched later."""
    files = list_files(home)
    files[1].touch()
    assert [(each.id, each.path) for each in list_sessions("codex", home)] == [(THREAD, files[3])]
    assert select_session(THREAD[:8], home, ("codex",)).path == files[3]
    assert find_trace_files([str(home / ".codex" / "sessions")]) == [files[3]]
    assert find_trace_files([str(files[1])]) == [files[1]]


def test_the_last_file_is_not_the_one_with_the_latest_local_time(home: Path) -> None:
    """The first file may have the time of another zone in its name."""
    first, *_, last = list_files(home)
    first.rename(first.with_name(first.name.replace("2026-11-28T04", "2026-11-28T14")))
    assert [each.path for each in list_sessions("codex", home)] == [last]
