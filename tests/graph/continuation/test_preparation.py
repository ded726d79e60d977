"""A continuation writes a checkout and a session, replaces no file, and can be undone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.agents import (
    ContinuationError,
    PreparedContinuation,
    discard_record,
    prepare_continuation,
    undo_continuations,
)
from langgraph_takeover.graph.continuation import continue_record, undo
from langgraph_takeover.graph.continuation.known_records import list_manifests, load_manifest
from langgraph_takeover.graph.continuation.terminal_start import read_model_provider
from langgraph_takeover.graph.continuation.undo import list_rebased
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.session_files import STORAGES
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.records.archive import export_record, import_record
from langgraph_takeover.handoff.records.record import RecordError, RecordStore
from langgraph_takeover.handoff.trace.events import Trace
from langgraph_takeover.handoff.views import UnknownViewError
from langgraph_takeover.sandbox import OutOfDiskError

from ...agent_sessions import (
    SECRET,
    TASK,
    describe_tree,
    make_repository,
    run_git,
    write_claude_session,
)
from ...conftest import mount_small_disk
from .conftest import Workplace

ROOT = Path(__file__).parents[3]
Prepare = Callable[..., PreparedContinuation]


@pytest.fixture
def record(workplace: Workplace) -> str:
    return workplace.capture().record.id


@pytest.fixture
def prepare(workplace: Workplace, program: Path, record: str) -> Prepare:
    def prepare_record(
        agent: str = "claude-code", record_id: str = record, **options: Any
    ) -> PreparedContinuation:
        return prepare_continuation(
            options.pop("home", workplace.home),
            record_id,
            agent=agent,
            program=program,
            user_home=workplace.user_home,
            **options,
        )

    return prepare_record


def read_session(path: Path) -> Trace:
    (trace,) = read_traces(path)
    assert isinstance(trace, Trace)
    return trace


def test_the_checkout_equals_the_repository(workplace: Workplace, prepare: Prepare) -> None:
    done = prepare()
    assert done.directory == workplace.root / "shop-continued"
    found = describe_tree(done.directory)
    notes = {name: value for name, value in found.items() if not name.startswith(".git/takeover")}
    assert notes == describe_tree(workplace.repository)
    assert set(found) - set(notes) == {".git/takeover", ".git/takeover/prompt.md"}
    assert run_git(done.directory, "status", "--short") == "M shop/price.py\n?? notes.txt"
    assert run_git(done.directory, "log", "--format=%s") == "Start"
    assert (done.directory / ".git/takeover/prompt.md").read_text() == done.prompt
    assert done.prompt.rstrip().endswith(TASK)


def test_the_command_starts_the_agent_in_the_checkout(prepare: Prepare, program: Path) -> None:
    done = prepare("codex")
    assert done.command[0] == str(program)
    shown = subprocess.run(done.command, cwd=done.directory, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == [
        str(done.directory),
        "Read the file .git/takeover/prompt.md completely. It describes unfinished work in this repository and ends "
        "with your task.",
    ]


@pytest.mark.cases(3)
@pytest.mark.parametrize("agent", ["codex", "claude-code", "qwen-code"])
@pytest.mark.parametrize("view", ["transcript", "payload"])
def test_a_native_session_has_the_work_with_the_paths_of_the_checkout(
    prepare: Prepare, workplace: Workplace, agent: str, view: str
) -> None:
    done = prepare(agent, view=view)
    (path,) = done.session_files
    assert path.is_relative_to(workplace.user_home / STORAGES[agent].directory)
    assert done.session_id in done.command
    trace = read_session(path)
    assert trace.workspace == str(done.directory)
    commands = [event.arguments.get("command", "") for event in trace.events if event.kind == "action"]
    assert any(f"cat {done.directory}/shop/price.py .env" in command for command in commands)
    assert str(workplace.repository) + "/" not in path.read_text()
    assert SECRET not in path.read_text()
    assert sum(done.account.values()) == 6
    assert path.stat().st_mode & 0o077 == 0


def test_the_events_that_a_view_points_to(prepare: Prepare) -> None:
    done = prepare(view="cited")
    events = done.directory / ".git/takeover/events"
    assert sorted(path.name for path in events.iterdir()) == [f"e{number}.txt" for number in range(6)]
    assert str(events) in done.prompt
    assert "AssertionError: 2 != 3" in (events / "e5.txt").read_text()


@pytest.mark.cases(1)
@pytest.mark.parametrize("view", ["structured", "transcript", "cited"])
def test_undo_leaves_everything_as_it_was(workplace: Workplace, prepare: Prepare, view: str) -> None:
    before = workplace.list_everything(), describe_tree(workplace.repository)
    first, second = prepare(view=view), prepare(view=view, directory=workplace.root / "second")
    run_git(first.directory, "status")
    assert undo_continuations(workplace.home, first.record).left == ()
    assert (workplace.list_everything(), describe_tree(workplace.repository)) == before
    assert not second.directory.exists()
    with pytest.raises(ContinuationError, match="nothing to undo"):
        undo_continuations(workplace.home, first.record)


def test_undo_leaves_what_has_changed(workplace: Workplace, prepare: Prepare) -> None:
    done = prepare(view="transcript")
    (session,) = done.session_files
    (done.directory / "shop/price.py").write_text("changed\n")
    with session.open("a") as file:
        file.write("{}\n")
    undone = undo_continuations(workplace.home, done.record)
    assert undone.removed == ()
    assert [line.split()[0] for line in undone.left] == [str(done.directory), str(session)]
    assert (done.directory / "shop/price.py").read_text() == "changed\n"
    subprocess.run(["rm", "-rf", done.directory], check=True)
    session.unlink()
    assert undo_continuations(workplace.home, done.record) == undone.model_copy(update={"left": ()})
    assert list_manifests(workplace.home, done.record) == []


def test_an_empty_directory_is_used_and_left(workplace: Workplace, prepare: Prepare) -> None:
    target = workplace.root / "mine"
    target.mkdir()
    prepare(directory=target)
    assert (target / "shop/price.py").is_file()
    undo_continuations(workplace.home, RecordStore(workplace.home / "records").list_ids()[0])
    assert list(target.iterdir()) == []


def test_directories_that_are_refused(workplace: Workplace, prepare: Prepare, record: str) -> None:
    before = workplace.list_everything()
    link = workplace.root / "link"
    link.symlink_to(workplace.root / "elsewhere")
    with pytest.raises(ContinuationError, match="exists already"):
        prepare(directory=link)
    link.unlink()
    with pytest.raises(ContinuationError, match="exists already"):
        prepare(directory=workplace.user_home)
    with pytest.raises(ContinuationError, match="inside the captured repository"):
        prepare(directory=workplace.repository / "copy")
    with pytest.raises(ContinuationError, match="directory not found"):
        prepare(directory=workplace.root / "missing" / "copy")
    assert workplace.list_everything() == before
    assert list_manifests(workplace.home, record) == []


def test_requests_that_are_refused(
    workplace: Workplace, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = workplace.list_everything()
    with pytest.raises(UnknownViewError):
        prepare(view="unknown")
    with pytest.raises(RecordError, match="record not found"):
        prepare(record_id="unknown")
    with pytest.raises(ContinuationError, match=r"cannot resume a session .*--view structured"):
        prepare("opencode", view="transcript")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ContinuationError, match=r"codex is not on PATH .*npm install"):
        prepare_continuation(
            workplace.home, RecordStore(workplace.home / "records").list_ids()[0], agent="codex"
        )
    assert workplace.list_everything() == before


def test_a_session_never_replaces_a_file(
    workplace: Workplace, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file takes the session's name after the check: the continuation fails, and the file stays."""
    create = continue_record.create_file
    taken: list[Path] = []

    def create_late(path: Path, text: str) -> None:
        if path.suffix == ".jsonl":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
            taken.append(path)
        create(path, text)

    monkeypatch.setattr(continue_record, "create_file", create_late)
    with pytest.raises(ContinuationError, match="exists already"):
        prepare(view="transcript")
    assert taken[0].read_text() == "mine"
    assert not (workplace.root / "shop-continued").exists()


def test_two_continuations_at_once(workplace: Workplace, prepare: Prepare) -> None:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(prepare(view="transcript"))
        except ContinuationError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (done,) = (each for each in results if isinstance(each, PreparedContinuation))
    assert sum(isinstance(each, ContinuationError) for each in results) == 1
    assert len(list(workplace.user_home.rglob("*.jsonl"))) == 2
    assert list_manifests(workplace.home, done.record) == [done.manifest]
    assert list(workplace.root.glob(".*.partial")) == []


@pytest.mark.cases(1)
@pytest.mark.parametrize("stop", ["write_checkout", "_write_prompt", "_move_into_place"])
def test_an_interruption_leaves_nothing(
    workplace: Workplace, prepare: Prepare, record: str, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    before = workplace.list_everything()
    work = getattr(continue_record, stop)

    def interrupt(*arguments: Any) -> None:
        work(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(continue_record, stop, interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(view="transcript")
    assert workplace.list_everything() == before
    assert list_manifests(workplace.home, record) == []


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["write_checkout", "_write_prompt", "_move_into_place", "create_file"])
def test_undo_after_a_kill(workplace: Workplace, record: str, program: Path, stop: str) -> None:
    before = workplace.list_everything()
    script = f"""
import os, signal
from pathlib import Path
from langgraph_takeover.graph.continuation import continue_record as preparation, undo
work = preparation.{stop}
def kill(*arguments):
    work(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
preparation.{stop} = kill
preparation.prepare_continuation(Path({str(workplace.home)!r}), {record!r}, agent="codex", view="transcript",
    program=Path({str(program)!r}), user_home=Path({str(workplace.user_home)!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert workplace.list_everything() != before
    assert undo_continuations(workplace.home, record).left == ()
    assert workplace.list_everything() == before


def test_a_full_disk_leaves_nothing(workplace: Workplace, prepare: Prepare) -> None:
    (workplace.repository / "large").write_bytes(os.urandom(3 << 20))
    large = workplace.capture().record.id
    with mount_small_disk(workplace.root / "disk", "2m") as disk:
        with pytest.raises(OutOfDiskError):
            prepare(record_id=large, directory=disk / "shop")
        assert list(disk.iterdir()) == []
    assert list_manifests(workplace.home, large) == []


def test_a_record_from_elsewhere_needs_a_decision(
    workplace: Workplace, prepare: Prepare, record: str
) -> None:
    archive = workplace.root / "one.record"
    export_record(RecordStore(workplace.home / "records").directory(record), str(archive))
    other = workplace.root / "other-home"
    import_record(str(archive), other / "records")
    with pytest.raises(ContinuationError, match=r"was not captured here.*--sandbox host"):
        prepare(home=other, directory=workplace.root / "copy")
    done = prepare(home=other, directory=workplace.root / "copy", allow_unisolated=True)
    assert (done.directory / "notes.txt").read_text() == "mine\n"
    with pytest.raises(ContinuationError, match="--in: name the new directory"):
        prepare(home=other, allow_unisolated=True)


def test_a_damaged_snapshot_leaves_nothing(workplace: Workplace, prepare: Prepare, record: str) -> None:
    before = workplace.list_everything()
    (archive,) = RecordStore(workplace.home / "records").directory(record).glob("*.zst")
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    with pytest.raises(Exception, match="snapshot"):
        prepare()
    assert workplace.list_everything() == before


def test_a_continued_session_keeps_the_first_task(workplace: Workplace, prepare: Prepare) -> None:
    first = prepare("claude-code", view="transcript")
    manifest = load_manifest(first.manifest)
    assert manifest is not None
    later = f"{first.command[-1]}"
    write_claude_session(
        workplace.user_home, str(first.directory), [("true", "", 0)], prompt=later, session_id="c" * 8
    )
    again = workplace.capture("claude-code", repository=first.directory, session="c" * 8)
    assert again.record.task.prompt == TASK
    third = prepare("codex", record_id=again.record.id, directory=workplace.root / "third")
    assert third.prompt.rstrip().endswith(TASK)


def test_images_of_the_session_are_files_of_every_successor(workplace: Workplace, prepare: Prepare) -> None:
    content = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\2\x80\0\0\1\xe0" + bytes(40_976)
    data = base64.b64encode(content).decode()
    prompt: Any = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "bm8gaW1hZ2U="}},
        {"type": "text", "text": TASK},
    ]
    directory, home = workplace.repository, workplace.user_home
    for number in range(2):
        write_claude_session(
            home, str(directory), [("true", "", 0)], prompt=prompt, session_id=f"{number}" * 8
        )
        captured = workplace.capture("claude-code", repository=directory, session=f"{number}" * 8)
        (named, other, *rest) = captured.record.task.prompt.split("\n")
        assert (other, rest) == ("[image: PNG, 8 bytes]", [TASK])
        name = named.removeprefix("[image: PNG, 640x480, 41 kB: ").removesuffix("]")
        done = prepare(
            "codex", record_id=captured.record.id, directory=workplace.root / f"continued-{number}"
        )
        assert (done.directory / name).read_bytes() == content
        assert name in done.prompt
        assert "images" not in run_git(done.directory, "status", "--short")
        directory, prompt = done.directory, done.command[-1]
    assert not (workplace.repository / ".git/takeover").exists()


def test_notes_never_leave_the_checkout(workplace: Workplace, prepare: Prepare, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "images").mkdir(parents=True)
    (outside / "prompt.md").write_text("mine\n")
    (workplace.repository / ".git/takeover").symlink_to(outside)
    done = prepare(record_id=workplace.capture().record.id)
    assert (outside / "prompt.md").read_text() == "mine\n"
    assert (done.directory / ".git/takeover/prompt.md").read_text() == done.prompt


def test_discard_removes_a_record(workplace: Workplace, prepare: Prepare, record: str) -> None:
    prepare()
    with pytest.raises(ContinuationError, match="--undo"):
        discard_record(workplace.home, record)
    undo_continuations(workplace.home, record)
    discard_record(workplace.home, record)
    assert not workplace.home.exists()


def test_the_prompt_names_what_ran_in_the_background(workplace: Workplace, prepare: Prepare) -> None:
    server = f"python3 {workplace.repository}/serve.py --token={SECRET} &"
    steps = [(server, "", 0), ("cat .env", f"SHOP_API_TOKEN={SECRET}\n", 0)]
    write_claude_session(workplace.user_home, str(workplace.repository), steps)
    captured = workplace.capture("claude-code").record
    assert captured.external is not None
    assert captured.external.running == ("python3 /testbed/serve.py --token=[redacted] &",)
    for view in ("structured", "transcript"):
        done = prepare("codex", record_id=captured.id, view=view, directory=workplace.root / view)
        assert "They do not run here." in done.prompt
        assert f"python3 {done.directory}/serve.py --token=[redacted] &" in done.prompt


@pytest.mark.parametrize("stop", ["_remove_staging", "_undo_file"])
def test_undo_after_a_killed_undo(
    workplace: Workplace, prepare: Prepare, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    before = workplace.list_everything()
    done = prepare(view="transcript")

    def kill(*arguments: Any) -> bool:
        if stop == "_undo_file" or not done.directory.exists():
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch:
        patch.setattr(undo, stop, kill)
        with pytest.raises(KeyboardInterrupt):
            undo_continuations(workplace.home, done.record)
    assert not done.directory.exists()
    assert workplace.list_everything() != before
    assert undo_continuations(workplace.home, done.record).left == ()
    assert workplace.list_everything() == before


def test_undo_after_looking_into_a_submodule(workplace: Workplace, prepare: Prepare) -> None:
    library = make_repository(workplace.root / "library")
    run_git(
        workplace.repository,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        str(library),
        "lib",
    )
    done = prepare(record_id=workplace.capture().record.id)
    assert "lib" in run_git(done.directory, "submodule", "status")
    os.utime(done.directory / "lib/test_price.py")
    run_git(done.directory / "lib", "status", "--short")
    assert undo_continuations(workplace.home, done.record).left == ()
    assert not done.directory.exists()


def test_only_records_in_an_image_belong_to_their_origin(workplace: Workplace, record: str) -> None:
    """A record of a continuation in that image is work of its own."""
    store = workplace.home / "records"
    names = [f"{record}-on-0123abcd", f"{record}-on-0123abcd.codex-11.first_source_edit", f"{record}-on-x"]
    for name in names:
        (store / name).mkdir()
        (store / name / "record.json").write_text("{}")
    assert list_rebased(workplace.home, record) == names[:1]


@pytest.mark.parametrize(
    ("settings", "provider"),
    [
        (None, "openai"),
        ('model_provider = "acme"\n', "acme"),
        ('profile = "work"\nmodel_provider = "acme"\n[profiles.work]\nmodel_provider = "local"\n', "local"),
        ('profile = "work"\nmodel_provider = "acme"\n[profiles.work]\nmodel = "x"\n', "acme"),
        ("model_provider = 7\nprofiles = 1\n", "openai"),
        ("not toml", "openai"),
    ],
)
def test_codex_finds_its_provider_in_the_users_settings(
    tmp_path: Path, settings: str | None, provider: str
) -> None:
    if settings is not None:
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex/config.toml").write_text(settings)
    assert read_model_provider("codex", tmp_path) == provider


def test_a_session_of_codex_has_the_users_provider(prepare: Prepare, workplace: Workplace) -> None:
    (workplace.user_home / ".codex/config.toml").write_text('model_provider = "acme"\n')
    (path,) = prepare("codex", view="transcript").session_files
    meta = json.loads(path.read_text().split("\n")[0])
    assert meta["payload"]["model_provider"] == "acme"


def test_an_untested_version_warns_by_name(workplace: Workplace, tmp_path: Path) -> None:
    (session,) = workplace.user_home.rglob("rollout-*.jsonl")
    session.write_text(session.read_text().replace('"0.169.0"', '"0.180.0"'))
    captured = workplace.capture()
    assert captured.version_warning.startswith(
        f"codex 0.180.0 is newer than the tested {ADAPTERS['codex'].program.newest}: "
    )
    program = shutil.copy(shutil.which("bash") or "bash", tmp_path / "codex")
    done = prepare_continuation(
        workplace.home,
        captured.record.id,
        agent="codex",
        program=Path(program),
        user_home=workplace.user_home,
    )
    assert done.warning.startswith("codex 5.")
    assert " is newer than the tested " in done.warning


def test_a_checkout_needs_neither_database_nor_graph() -> None:
    """They would take half of the command's time."""
    code = (
        "import sys; import langgraph_takeover.graph.continuation.continue_record; "
        "print({'docker', 'langgraph', 'sqlalchemy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
