"""The record commands: their output and their failures."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from rich.filesize import decimal
from typer.testing import CliRunner, Result

from langgraph_takeover.graph.cli.handoff_cli import app
from langgraph_takeover.graph.cli.handoff_commands import add_commands
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.records.record import NOTES_FILE, RecordStore, to_json
from langgraph_takeover.handoff.text.fence import neutralize
from langgraph_takeover.sandbox.repository import LeftOut

from ..graph.conftest import DONE, RunHarness, scripted_model
from .conftest import NAME
from .records.test_record import NOTES, RECORD

ROOT = Path(__file__).parents[2]
if not any(each.name == "capture" for each in app.registered_commands):
    add_commands(app)
HOSTILE = "\x1b]0;owned\x07 caf\xe9 \u202e \udce9\tend"


def invoke(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, [*map(str, arguments)], prog_name="python -m handoff")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def command(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "handoff", *map(str, arguments)],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def save_record(root: Path, **update: object) -> Path:
    """A record without a run."""
    store = RecordStore(root)
    store.create(RECORD.id, lambda _: RECORD.model_copy(update=update))
    return store.directory(RECORD.id)


def test_show_names_what_the_patch_lacks(tmp_path: Path) -> None:
    left_out = (LeftOut(path="big\n\x1b[31m.bin", reason="larger than 16 MiB"),)
    record = save_record(tmp_path, left_out=left_out, left_out_count=3)
    shown = " ".join(invoke("show", record).stdout.split())
    assert "not in the patch big" in shown
    assert ".bin (larger than 16 MiB) not in the patch 2 more" in shown
    assert "\x1b[31m.bin" not in shown
    assert json.loads(invoke("show", record, "--json").stdout)["left_out"][1] == "2 more"
    failed = save_record(tmp_path / "failed", patch="", patch_error="git in the sandbox: failed")
    assert "patch none: git in the sandbox: failed" in " ".join(invoke("show", failed).stdout.split())


@pytest.mark.parametrize("name", ["show", "verify", "export", "import", "capture", "continue", "discard"])
def test_help_has_examples(name: str) -> None:
    done = invoke(name, "--help")
    assert done.exit_code == 0
    assert f"handoff {name}" in done.stdout.partition("Examples")[2]


@pytest.mark.parametrize("view", ["repository", "trace", "structured"])
def test_a_view_is_exactly_what_a_successor_gets(copy_harness: RunHarness, record: Path, view: str) -> None:
    model = scripted_model(DONE)
    copy_harness.take_over(model, view, NAME)
    _, first = model.seen[0]
    done = invoke("show", record, "--view", view)
    assert done.stdout_bytes == first.text.encode()
    size = len(first.text)
    assert done.stderr == (
        f"1 message, {size:,} characters, about {-(-size // 4):,} tokens (estimated at four characters each)\n"
    )
    report = json.loads(invoke("show", record / "record.json", "--view", view, "--json").stdout)
    assert report == [{"role": "user", "content": first.text}]


def test_without_a_view_all_are_listed(record: Path) -> None:
    done = invoke("show", record)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "four characters each" in done.stdout
    for part in (
        *views.VIEWS,
        NAME,
        "scripted",
        "after event 5",
        "process, ",
        "by m",
        "view trace",
    ):
        assert part in done.stdout
    whole = json.loads(invoke("show", record, "--json").stdout)
    assert whole["record"] == NAME
    size = len(invoke("show", record, "--view", "trace").stdout)
    assert whole["views"]["trace"] == {"messages": 1, "characters": size, "tokens": -(-size // 4)}
    assert f"{size:,}" in done.stdout


def test_several_messages_are_shown_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"name": "shell", "args": {"command": "ls"}, "id": "call_1"}
    messages = [
        HumanMessage("Go."),
        AIMessage("", tool_calls=[call]),
        ToolMessage("a\n", tool_call_id="call_1"),
    ]
    monkeypatch.setitem(views.VIEWS, "chat", lambda *_: messages)
    directory = save_record(tmp_path)
    done = invoke("show", directory, "--view", "chat")
    assert done.stdout == (
        '--- user\nGo.\n--- assistant\n[call shell {"command": "ls"}]\n--- tool to call_1\na\n\n'
    )
    assert done.stderr.startswith("3 messages, 12 characters")
    first, second, third = json.loads(invoke("show", directory, "--view", "chat", "--json").stdout)
    assert first == {"role": "user", "content": "Go."}
    assert second["role"] == "assistant"
    function = {"name": "shell", "arguments": '{"command": "ls"}'}
    assert second["tool_calls"] == [{"type": "function", "id": "call_1", "function": function}]
    assert third == {"role": "tool", "content": "a\n", "tool_call_id": "call_1"}


@pytest.mark.slow
def test_a_pipe_gets_all_text_and_a_terminal_no_control_characters(tmp_path: Path) -> None:
    task = RECORD.task.model_copy(update={"prompt": HOSTILE})
    point = RECORD.point.model_copy(update={"detail": HOSTILE})
    directory = save_record(tmp_path, task=task, point=point, predecessor=HOSTILE, created_at="[bold]")
    exact = neutralize(HOSTILE).encode()
    assert command("show", directory, "--view", "trace").stdout.endswith(exact)
    for arguments in ((), ("--view", "trace"), ("--view", "trace", "--json")):
        shown = on_a_terminal("show", directory, *arguments)
        assert "]0;owned" in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown
        assert "\x1b]" not in shown
    assert "[bold]" in on_a_terminal("show", directory)
    assert "\tend" in on_a_terminal("show", directory, "--view", "trace")


def on_a_terminal(*arguments: str | Path) -> str:
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        [sys.executable, "-m", "handoff", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm"},
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # the reader closed the pipe
        pass
    os.close(ours)
    started.communicate(timeout=60)
    assert started.returncode == 0
    return shown.decode()


def test_verify_reports_notes_without_a_digest(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.create(RECORD.id, lambda _: RECORD.model_copy(update={"snapshot": None}))
    store.add_notes(RECORD.id, NOTES)
    done = invoke("verify", store.directory(RECORD.id))
    assert (done.exit_code, done.stdout) == (0, f"{RECORD.id}: whole; it has no snapshot\n")
    (store.directory(RECORD.id) / NOTES_FILE).write_text(to_json(NOTES))
    done = invoke("verify", store.directory(RECORD.id))
    assert done.exit_code == 3
    assert "notes.json does not match its digest" in " ".join(done.stdout.split())


def test_verify_reports_each_record(copy_harness: RunHarness, record: Path, tmp_path: Path) -> None:
    broken = save_record(tmp_path)
    every = [copy_harness.store.directory(name) for name in copy_harness.store.list_ids()]
    done = invoke("verify", *every)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [f"{name}: whole" for name in copy_harness.store.list_ids()]
    done = invoke("verify", broken, record)
    assert done.exit_code == 3
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{RECORD.id}: ")
    assert "archive is missing (restore it from a copy)" in first
    assert second == f"{NAME}: whole"
    (tmp_path / "nothing").mkdir()
    done = invoke("verify", tmp_path / "nothing", record)
    assert done.exit_code == 3
    first, second = done.stdout.splitlines()
    assert first.startswith("nothing: ")
    assert "record not found" in first
    assert second == f"{NAME}: whole"


def test_a_record_is_exported_and_imported(record: Path, tmp_path: Path) -> None:
    done = invoke("export", record, tmp_path / "file")
    size = decimal((tmp_path / "file").stat().st_size)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{tmp_path / 'file'}: {size}\n", "")
    done = invoke("import", tmp_path / "file", tmp_path / "new" / "records")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'new' / 'records' / NAME}\n"
    assert invoke("verify", done.stdout.strip()).exit_code == 0
    done = invoke("import", tmp_path / "file", tmp_path / "new" / "records")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "exists already (--replace replaces it)" in done.stderr
    assert invoke("import", tmp_path / "file", tmp_path / "new" / "records", "--replace").exit_code == 0


def test_errors_are_one_line(record: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no record\x1b")
    torn = save_record(tmp_path / "torn")
    (torn / "record.json").write_text("{\x1b")
    gone = save_record(tmp_path / "gone")
    (tmp_path / "run" / "records").mkdir(parents=True)
    cases = {
        ("show", tmp_path / "none"): (2, "RECORD: "),
        ("show", text): (2, "RECORD: "),
        ("show", tmp_path): (2, "RECORD: "),
        ("show", tmp_path / ("x" * 300)): (2, "file name too long"),
        ("show", record, "--view", "n\x1bne"): (2, "--view: unknown view"),
        ("show", torn): (3, "torn"),
        ("verify", record, tmp_path / "none"): (2, "RECORD: "),
        ("export", tmp_path / "none", tmp_path / "out"): (2, "RECORD: "),
        ("export", torn, tmp_path / "out"): (3, "torn"),
        ("export", gone, tmp_path / "out"): (3, "archive is missing (restore it from a copy)"),
        ("export", record, "nowhere://x/y"): (3, "nowhere://x/y"),
        ("import", tmp_path / "none", tmp_path / "store"): (3, "file not found"),
        ("import", text, tmp_path / "store"): (3, "unknown record format"),
        ("import", text, text): (2, "DIRECTORY: "),
        ("import", text, tmp_path / "run"): (2, f"the records are in {tmp_path / 'run' / 'records'}"),
    }
    for arguments, (code, reason) in cases.items():
        done = invoke(*arguments)
        assert done.exit_code == code, (arguments, done.stderr)
        assert done.stderr.startswith("error: ")
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
        assert "\x1b" not in done.stderr
        assert done.stdout == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_full_disk_is_one_line(record: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        for arguments in (("show", record), ("show", record, "--view", "trace"), ("verify", record)):
            done = command(*arguments, stdout=full.fileno())
            assert done.returncode == 4
            assert done.stderr.decode() == "error: standard output: no space left\n"


def recording(directory: Path) -> Path:
    """A run of mini-swe-agent: it looks, writes a reproduction, fixes the bug and runs the reproduction."""
    entries = [
        ("cat pkg/core.py", "def f():\n    return 1\n" * 500),
        ("cat <<'E' > repro.py\nfrom pkg.core import f\nassert f() == 2\nE", ""),
        ("sed -i s/1/2/ pkg/core.py", ""),
        ("python3 repro.py", "all is well"),
        ("git status", "modified: pkg/core.py"),
    ]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "Mend f."}]
    for command, output in entries:
        messages.append({"role": "assistant", "content": f"So.\n\n```bash\n{command}\n```"})
        shown = f"<returncode>0</returncode>\n<output>\n{output}\n</output>"
        messages.append({"role": "user", "content": shown})
    info = {"config": {"environment": {"cwd": "/testbed"}}}
    directory.write_text(
        json.dumps({"trajectory_format": "mini-swe-agent-1", "info": info, "messages": messages})
    )
    return directory


def test_a_recorded_run_is_shown_as_a_successor_would_have_seen_it(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.traj.json")
    done = invoke("show", run, "--point", "first_validation", "--view", "cited")
    assert done.exit_code == 0
    assert "**Changed source files:**\n- pkg/core.py [e5]\n" in done.stdout
    assert "- `cat <<… > repro.py` → exit code 0 [e3]\n" in done.stdout
    assert "**Files already read:**\n- pkg/core.py [e1]\n" in done.stdout
    assert (
        "**Latest validation command:** reproduction, passed [e7]\n```\npython3 repro.py\n```" in done.stdout
    )
    table = json.loads(invoke("show", run, "--json").stdout)
    assert table["point"].startswith("requested, after event ")
    assert table["snapshot"] == "none"
    assert set(table["views"]) == set(views.VIEWS)
    native = json.loads(invoke("show", run, "--view", "transcript", "--protocol", "native", "--json").stdout)
    assert {message["role"] for message in native} == {"user", "assistant", "tool"}
    small = json.loads(invoke("show", run, "--json", "--window-tokens", 4000).stdout)["views"]
    assert small["transcript"]["characters"] < table["views"]["transcript"]["characters"]
    refused = invoke("show", run, "--point", "nowhere")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert (
        "does not reach nowhere (its points: first_source_edit, first_validation, requested)"
        in refused.stderr
    )
