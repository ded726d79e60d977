"""Leftovers of killed runs are listed and then removed, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox import gc, ownership, untrusted_trees
from langgraph_takeover.sandbox import ownership as host_directories
from langgraph_takeover.sandbox.gc import CollectionRequest
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError, Snapshot

from ..conftest import skip_missing

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
from langgraph_takeover import sandbox

owner, directory, image, store, *backends = sys.argv[1:]
started = []
for backend in backends:
    base = {"image": image} if backend == "docker" else {"directory": Path(directory)}
    live_sandbox = sandbox.start(sandbox.SandboxSpec(backend=backend, owner=owner, snapshots="commit", **base))
    live_sandbox.run("echo kept > file; (setsid sleep 4242 >/dev/null 2>&1 &)", timeout_s=20)
    snapshot = live_sandbox.snapshot(Path(store, backend)).result()
    Path(store).mkdir(parents=True, exist_ok=True)
    Path(store, backend + ".json").write_text(snapshot.model_dump_json())
    started.append(live_sandbox)
print("ready", flush=True)
for line in sys.stdin:
    outputs = [live_sandbox.run("cat file", timeout_s=20).output.strip() for live_sandbox in started]
    print(*outputs, flush=True)
    if line == "end\\n":
        for live_sandbox in started:
            live_sandbox.close()
        for backend in backends:
            sandbox.remove_stale_resources(backend, owner)
"""


class GcHarness:
    """A separate home for runs of this test, and the commands on it."""

    def __init__(self, home: Path, directory: Path, commands: subprocess.Popen[str]) -> None:
        self.home = home
        self.commands = commands
        self.directory = directory
        self.no_docker = {"DOCKER_HOST": "unix:///no/such/socket"}
        self.runs: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        own = {"TAKEOVER_HOME": str(self.home), "TMPDIR": str(self.home.parent), "COLUMNS": "200"}
        return os.environ | own | more

    def run(self, owner: str, *backends: str, image: str = "") -> subprocess.Popen[str]:
        store = self.home.parent / f"store-{owner}"
        argv = [sys.executable, "-c", RUN, owner, str(self.directory), image, str(store), *backends]
        run = subprocess.Popen(
            argv, cwd=ROOT, env=self.environment(), stdin=-1, stdout=-1, text=True, start_new_session=True
        )
        self.runs.append(run)
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        return run

    def gc(self, *options: str, docker: bool = False) -> tuple[int, dict[str, Any]]:
        code, output, complaint = self.command("gc", "--json", *options, docker=docker)
        assert "Traceback" not in complaint, complaint
        return code, json.loads(output)

    def command(self, *arguments: str, docker: bool = False) -> tuple[int, str, str]:
        """The exit code, the output and the errors of a separate process."""
        env = self.environment(**({} if docker else self.no_docker))
        assert self.commands.stdin is not None
        assert self.commands.stdout is not None
        self.commands.stdin.write(json.dumps([env, arguments]) + "\n")
        self.commands.stdin.flush()
        code, output, complaint = json.loads(self.commands.stdout.readline())
        return code, output, complaint


COMMANDS = """
import json, os, sys, tempfile
import docker
from langgraph_takeover.sandbox.cli import terminal as listing
from langgraph_takeover.sandbox import gc as collector
from langgraph_takeover.sandbox.cli.main import app, gc

for line in sys.stdin:
    env, arguments = json.loads(line)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.environ.clear()
            os.environ.update(env)
            tempfile.tempdir = None
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            app(arguments, prog_name="python -m sandbox")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        print(json.dumps([code, out.read(), err.read()]), flush=True)
"""


@pytest.fixture(scope="module")
def commands() -> Iterator[subprocess.Popen[str]]:
    """Runs each command in a forked process, which avoids repeated imports."""
    argv = [sys.executable, "-c", COMMANDS]
    with subprocess.Popen(argv, cwd=ROOT, stdin=-1, stdout=-1, text=True) as server:
        yield server
        server.communicate()


@pytest.fixture
def harness(repository: Path, commands: subprocess.Popen[str]) -> Iterator[GcHarness]:
    # Sandboxes run as a user without access to the directories of pytest.
    parent = Path(tempfile.mkdtemp(prefix="gc-", dir="/var/tmp"))
    parent.chmod(0o755)
    (parent / "home").mkdir(mode=0o755)
    found = GcHarness(parent / "home", repository, commands)
    yield found
    for run in found.runs:
        run.kill()
        run.communicate()
    for process in sleepers(found.home):
        process.kill()
    untrusted_trees.remove_tree(parent)


def kill_run(run: subprocess.Popen[str]) -> None:
    os.kill(run.pid, signal.SIGKILL)
    run.wait()


def answer(run: subprocess.Popen[str], line: str = "") -> str:
    assert run.stdin is not None
    assert run.stdout is not None
    run.stdin.write(f"{line}\n")
    run.stdin.flush()
    return run.stdout.readline()


def new_owner() -> str:
    return f"test-{secrets.token_hex(4)}"


def by_status(report: dict[str, Any], status: str, owner: str | None = None) -> list[str]:
    """The kinds of the resources with this status."""
    resources = report["resources"]
    return sorted(f["kind"] for f in resources if f["status"] == status and owner in (None, f["owner"]))


def everything(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def sleepers(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:2] == ["sleep", "4242"] and process.status() != psutil.STATUS_ZOMBIE:
                found += [process] if process.environ().get("TMPDIR", "").startswith(str(home)) else []
    return found


def list_embedded_programs() -> list[str]:
    from langgraph_takeover.sandbox.backends.host import unavailable_reason

    return ["process"] if unavailable_reason() else ["process", "host"]


@pytest.mark.slow
def test_leftovers_of_a_killed_run_are_listed_and_then_removed(harness: GcHarness) -> None:
    dead, living = new_owner(), new_owner()
    doomed, beside = (
        harness.run(dead, *list_embedded_programs()),
        harness.run(living, *list_embedded_programs()),
    )
    foreign = harness.home / "runs" / "Somebody's"
    foreign.mkdir()
    kill_run(doomed)
    before = everything(harness.home)
    assert len(sleepers(harness.home)) == 2

    code, report = harness.gc()
    assert code == 0
    assert by_status(report, "removable") == ["process", "run"]
    assert by_status(report, "kept", living) == ["run"]
    assert everything(harness.home) == before
    assert len(sleepers(harness.home)) == 2

    code, report = harness.gc("--remove")
    assert code == 0
    assert by_status(report, "removed") == ["process", "run"]
    left = everything(harness.home)
    assert not [path for path in left if dead in path]
    assert [path for path in left if dead not in path] == [path for path in before if dead not in path]
    assert len(sleepers(harness.home)) == 1
    assert set(answer(beside).split()) == {"kept"}
    assert by_status(harness.gc("--remove")[1], "removed") == []
    assert foreign.is_dir()


@pytest.mark.slow
def test_bases_are_removed_only_on_request_and_without_a_live_run(harness: GcHarness) -> None:
    run = harness.run(new_owner(), "process")
    half_done = harness.home / "bases" / "0123456789ab.partial"
    half_done.mkdir()
    code, report = harness.gc("--bases", "--remove")
    assert (code, by_status(report, "removed")) == (0, [])
    assert answer(run) == "kept\n"
    kill_run(run)
    report = harness.gc("--remove")[1]
    assert by_status(report, "removed") == ["partial", "process", "run"]
    assert by_status(report, "kept") == ["base"]
    assert by_status(harness.gc("--bases", "--remove")[1], "removed") == ["base"]
    assert everything(harness.home / "bases") == []
    assert answer(harness.run(new_owner(), "process")) == "kept\n"


@pytest.mark.slow
def test_one_owner_by_name_and_the_rest_by_two_collectors_at_once(harness: GcHarness) -> None:
    named, *others = (new_owner() for _ in range(3))
    for owner in (named, *others):
        kill_run(harness.run(owner, "process"))
    assert by_status(harness.gc("--owner", named, "--remove")[1], "removed") == ["process", "run"]
    argv = [sys.executable, "-m", "sandbox", "gc", "--remove", "--json"]
    env = harness.environment(**harness.no_docker)
    both = [subprocess.Popen(argv, cwd=ROOT, env=env, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    seen = set()
    for one in both:
        output, complaint = one.communicate(timeout=60)
        assert complaint == ""
        assert json.loads(output)["errors"] == []
        seen |= {f["owner"] for f in json.loads(output)["resources"]}
    assert seen >= set(others)
    assert named not in seen
    assert by_status(harness.gc()[1], "removable") == []
    assert everything(harness.home / "runs") == everything(harness.home / "locks")[1:] == []
    assert sleepers(harness.home) == []


_NEWCOMER = """
import os, sys, time
from langgraph_takeover.sandbox.snapshots import bases; from langgraph_takeover.sandbox.backends import overlay

lost = 0
for number in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        room = overlay.create_layer_directory("again")
        base = bases.bases_directory() / "0123456789abcdef01234567"
        base.mkdir(exist_ok=True)
        (room / "file").write_text("kept")
        time.sleep(0.004)
        os._exit(0 if (room / "file").exists() and base.is_dir() else 1)
    lost += os.waitpid(child, 0)[1] != 0
print(lost)
"""
_COLLECTOR = """
import os, sys
from langgraph_takeover.sandbox import gc
from langgraph_takeover.sandbox.gc import CollectionRequest

ended = 0
while not os.path.exists(sys.argv[1]):
    for found in list(gc.list_stored_resources(CollectionRequest(include_bases=True))):
        ended += found.is_stale and gc.remove_resource(found) is None
print(ended)
"""


_DEAD_OWNER_COLLECTOR = """
import os, re, sys
from langgraph_takeover.sandbox import gc, ownership

ended, run = 0, ownership.runs_directory() / "again"
while not os.path.exists(sys.argv[1]):
    existed = run.exists()
    gc.remove_dead_owners("process", re.compile("again"))
    ended += existed and not run.exists()
print(ended)
"""


@pytest.mark.slow
@pytest.mark.parametrize("collector", [_COLLECTOR, _DEAD_OWNER_COLLECTOR], ids=["all", "dead owners"])
def test_a_run_that_starts_during_collection_keeps_its_files(
    harness: GcHarness, tmp_path: Path, collector: str
) -> None:
    env, end = harness.environment(), tmp_path / "end"

    def begin(*argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", *argv], cwd=ROOT, env=env, stdout=-1, text=True)

    collectors = [begin(collector, str(end)) for _ in range(2)]
    newcomers = [begin(_NEWCOMER, "100") for _ in range(2)]
    try:
        lost = [int(one.communicate(timeout=60)[0]) for one in newcomers]
    finally:
        end.touch()
    assert lost == [0, 0]
    assert sum(int(one.communicate(timeout=60)[0]) for one in collectors) > 5


def waits_for_lock(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


def test_a_run_waits_while_its_old_files_are_removed(
    harness: GcHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKEOVER_HOME", str(harness.home))
    (host_directories.runs_directory() / "again" / "old").mkdir(
        parents=True
    )  # without a mark, as just before a run's first
    begin = (
        "from langgraph_takeover.sandbox.backends import overlay; import sys; "
        "print(overlay.create_layer_directory('again').is_dir(), flush=True); sys.stdin.read()"
    )
    with ownership.claim("again") as alone:
        assert alone
        newcomer = subprocess.Popen(
            [sys.executable, "-c", begin], cwd=ROOT, env=harness.environment(), stdin=-1, stdout=-1, text=True
        )
        while not waits_for_lock(newcomer.pid):
            assert newcomer.poll() is None
            time.sleep(0.01)
        assert [path.name for path in (host_directories.runs_directory() / "again").iterdir()] == ["old"]
        untrusted_trees.remove_tree(untrusted_trees.set_aside(host_directories.runs_directory() / "again"))
    assert newcomer.stdout is not None
    assert newcomer.stdout.readline() == "True\n"
    with ownership.claim("again") as alone:
        assert not alone
    assert ownership.list_holders("again") == [newcomer.pid]
    newcomer.communicate("")


def test_sandboxes_that_start_during_collection_work(harness: GcHarness) -> None:
    env = harness.environment()
    gc = subprocess.Popen([sys.executable, "-c", _COLLECTOR], cwd=ROOT, env=env, stdout=-1, text=True)
    owner = new_owner()
    while gc.poll() is None:
        run = harness.run(owner, *list_embedded_programs())
        assert set(answer(run).split()) == {"kept"}
        kill_run(run)
    gc.communicate()


@pytest.mark.parametrize("wrong", ["home", "runs", "locks", "bases"])
def test_a_file_where_a_directory_should_be_is_reported(harness: GcHarness, wrong: str) -> None:
    path = harness.home if wrong == "home" else harness.home / wrong
    if wrong == "home":
        path.rmdir()
    else:
        (harness.home / "runs" / "x").mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    path.write_text("")
    code, _, complaint = harness.command("gc", "--remove")
    assert code == 3
    assert "Not a directory" in complaint or "File exists" in complaint
    assert complaint.startswith(f"error: {path}")
    assert complaint.count("\n") == 1


def test_foreign_names_are_reported_and_left(harness: GcHarness) -> None:
    runs, locks = harness.home / "runs", harness.home / "locks"
    for path in (runs / "Nobody", locks / "a-directory", harness.home / "bases" / "mine"):
        path.mkdir(parents=True)
    os.mkdir(os.fsencode(runs) + b"/\xff\x1b[31m")  # noqa: PTH102
    (runs / "elsewhere").symlink_to("/var/tmp")
    (runs / "a-file").write_text("")
    before = everything(harness.home)
    for options in ((), ("--remove", "--bases")):
        code, output, complaint = harness.command("gc", *options)
        assert (code, complaint) == (0, "")
        assert "\x1b[31m" not in output
        assert "No stale resources" in output
    assert everything(harness.home) == before


def test_only_directories_of_dead_processes_are_removed(harness: GcHarness) -> None:
    store = harness.home.parent / "store"
    old, new = store / "in" / ".importing-0123456789abcdef", harness.home.parent / "takeover-image-abcdefgh"
    old.parent.mkdir(parents=True)
    old.write_text("part")
    new.mkdir()
    other = harness.home.parent / "takeover-images"
    other.mkdir()
    import zstandard  # so that this process may use the new one

    assert zstandard
    time.sleep(0.01)
    os.utime(old, (1, 1))
    assert by_status(harness.gc("--store", str(store), "--remove")[1], "removed") == ["temporary"]
    assert not old.exists()
    assert new.is_dir()
    os.utime(new, (1, 1))
    assert by_status(harness.gc("--remove")[1], "removed") == ["temporary"]
    assert not new.exists()
    assert other.is_dir()


def test_hostile_directories_are_removed(harness: GcHarness) -> None:
    run = harness.home / "runs" / "hard"
    outside = harness.home / "outside"
    (run / "a" / "locked").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("")
    (run / "a" / "link").symlink_to(outside)
    (run / "a" / "locked" / "file").write_text("")
    (run / "a" / "locked").chmod(0)
    deep = os.open(run / "a", os.O_RDONLY)
    for _ in range(3000):  # deeper than Python's recursion limit, and longer than a path may be
        os.mkdir("deep" * 10, dir_fd=deep)
        inner = os.open("deep" * 10, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    code, report = harness.gc("--remove")
    assert (code, by_status(report, "removed")) == (0, ["run"])
    assert everything(harness.home / "runs") == []
    assert (outside / "file").is_file()


def test_the_next_collector_finishes_after_a_kill(harness: GcHarness) -> None:
    kill_run(harness.run(new_owner(), "process"))
    programs = harness.home.parent / "bin"
    programs.mkdir()
    (programs / "rm").write_text("#!/bin/sh\nkill -9 $PPID\n")
    (programs / "rm").chmod(0o755)
    harness.no_docker["PATH"] = f"{programs}:{os.environ['PATH']}"
    assert harness.command("gc", "--bases", "--remove")[0] == -signal.SIGKILL
    del harness.no_docker["PATH"]
    reasons = {one["kind"]: one["reason"] for one in harness.gc()[1]["resources"]}
    assert reasons.pop("base").startswith("the next run starts from it")
    assert reasons == {"run": "its removal was interrupted"}
    assert by_status(harness.gc("--bases", "--remove")[1], "removed") == ["base", "run"]
    assert everything(harness.home / "runs") == everything(harness.home / "bases") == []
    assert answer(harness.run(new_owner(), "process")) == "kept\n"


def test_a_link_instead_of_a_stale_directory_is_not_followed(
    harness: GcHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKEOVER_HOME", str(harness.home))
    run, outside = harness.home / "runs" / "stale", harness.home / "outside"
    run.mkdir(parents=True)
    outside.mkdir(mode=0o500)
    (outside / "file").write_text("")
    (found,) = gc.list_stored_resources(CollectionRequest())
    run.rmdir()
    run.symlink_to(outside)
    assert found.is_stale
    assert gc.remove_resource(found) is None
    assert everything(harness.home / "runs") == []
    assert (outside / "file").is_file()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_host_without_docker_or_anything(harness: GcHarness) -> None:
    harness.home.rmdir()
    code, output, _ = harness.command("gc", "--remove")
    assert code == 0
    assert output.startswith("Docker was not inspected: no Docker daemon answers")
    assert "No stale resources" in output
    assert not harness.home.exists()


@pytest.fixture
def image(testbed_image: Callable[[], contextlib.AbstractContextManager[str]]) -> Iterator[str]:
    with testbed_image() as tag:
        yield tag


def daemon() -> Any:
    from langgraph_takeover.sandbox.docker_client import client

    try:
        return client()
    except SandboxUnavailableError as error:
        skip_missing(str(error))


def list_containers(owner: str) -> list[Any]:
    label = f"{ownership.OWNER_LABEL}={owner}"
    return list(daemon().containers.list(all=True, filters={"label": label}))


GRADING = """
import sys
from langgraph_takeover.sandbox.docker_client import OwnedClient

client = OwnedClient(sys.argv[1], network=False)
container = client.containers.create(image=sys.argv[2], user="root", detach=True, command="tail -f /dev/null")
container.start()
print(container.exec_run("echo works").output.decode().strip(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_container_ends_with_its_owner(harness: GcHarness, image: str) -> None:
    """Killed without a chance to clean up, an agent's sandbox and a grading container end all the same."""
    agent, grading = new_owner(), new_owner()
    sandbox_run = harness.run(agent, "docker", image=image)
    grading_run = subprocess.Popen(
        [sys.executable, "-c", GRADING, grading, image],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert grading_run.stdout is not None
        assert grading_run.stdout.readline() == "works\n"
        for owner, process in ((agent, sandbox_run), (grading, grading_run)):
            (container,) = list_containers(owner)
            assert container.status == "running"
            kill_run(process)
            deadline = time.monotonic() + 60
            while any(each.status == "running" for each in list_containers(owner)):
                assert time.monotonic() < deadline, owner
                time.sleep(0.05)
        assert list_containers(agent) == []
        # What its state was saved in is enough to continue.
        store = harness.home.parent / f"store-{agent}"
        saved = Snapshot.model_validate_json((store / "docker.json").read_text())
        spec = SandboxSpec(backend="docker", image=image, owner=agent, snapshots="commit")
        with contextlib.closing(sandbox.restore(saved, store / "docker", spec)) as restored:
            assert restored.run("cat file", timeout_s=20).output == "kept\n"
    finally:
        for process in (sandbox_run, grading_run):
            process.kill()
            process.communicate()
        sandbox.remove_stale_resources("docker", agent, grading)


@pytest.mark.slow
def test_the_main_process_of_a_container_reaps_orphans(image: str) -> None:
    spec = SandboxSpec(backend="docker", image=image, owner=new_owner(), pids=64)
    with contextlib.closing(sandbox.start(spec)) as live:
        orphans = "for number in {1..50}; do (setsid sleep 0.01 >/dev/null 2>&1 &); done; sleep 0.5"
        for _ in range(4):
            assert live.run(f"{orphans}; echo done", timeout_s=60).output == "done\n"


@pytest.mark.slow
def test_containers_and_images(harness: GcHarness, image: str) -> None:
    """Remove only this run by name: others use this daemon as well."""
    dead, living = new_owner(), new_owner()
    doomed = harness.run(dead, "docker", image=image)
    beside = harness.run(living, "docker", image=image)
    frozen = json.loads((harness.home.parent / f"store-{dead}" / "docker.json").read_text())["location"]
    foreign = daemon().containers.create(image, ["true"])
    inherits = daemon().containers.create(frozen, ["true"])
    try:
        # A paused container cannot end with its owner.
        (container,) = [each for each in list_containers(dead) if each.status == "running"]
        container.pause()
        kill_run(doomed)
        report = harness.gc(docker=True)[1]
        assert by_status(report, "removable", dead) == ["container", "run"]
        assert by_status(report, "kept", dead) == ["image"]
        assert by_status(report, "kept", living) == ["container", "image", "run"]
        assert foreign.id not in str(report)
        assert inherits.id not in str(report)

        report = harness.gc("--owner", dead, "--remove", docker=True)[1]
        assert by_status(report, "removed") == ["container", "run"]
        assert harness.gc("--owner", living, "--snapshots", "--remove", docker=True)[1]["resources"]
        assert answer(beside) == "kept\n"

        def of_dead(*options: str) -> list[tuple[str, str]]:
            report = harness.gc("--owner", dead, "--snapshots", *options, docker=True)[1]
            return [(one["status"], one["reason"]) for one in report["resources"]]

        assert of_dead("--remove") == [("kept", f"container {inherits.id[:12]} uses it")]
        daemon().images.get(frozen).tag("takeover/mine", dead)
        inherits.remove()
        assert of_dead("--remove") == [("kept", f"also called takeover/mine:{dead}")]
        daemon().images.remove(f"takeover/mine:{dead}")
        assert of_dead("--remove") == [("removed", "its run is dead")]
        assert of_dead() == []
        foreign.reload()
        assert answer(beside, "end") == "kept\n"
    finally:
        for container in (foreign, inherits):
            with contextlib.suppress(Exception):
                container.remove(force=True)
        kill_run(beside)
        for owner in (dead, living):
            sandbox.remove_stale_resources("docker", owner)


@pytest.mark.slow
def test_resources_of_possibly_live_processes_are_kept(
    monkeypatch: pytest.MonkeyPatch, harness: GcHarness
) -> None:
    monkeypatch.setenv("TAKEOVER_HOME", str(harness.home))
    mine = ownership.make_labels("test-labels")
    boot, space, pid, start = mine[ownership.PROCESS_LABEL].split("/")

    def state(process: str, **more: str) -> str:
        return ownership.creator_state(mine | {ownership.PROCESS_LABEL: process} | more)

    assert ownership.creator_state(mine) == "alive"
    assert state(f"{boot}/{space}/{pid}/{int(start) - 1}") == "dead"
    assert state(f"{boot}/{space}/{2**22 + 1}/{start}") == "dead"
    assert state(f"other/{space}/{pid}/{start}") == "earlier"
    for doubtful in (
        f"{boot}/1/{pid}/{start}",
        f"{boot}/{space}/0/",
        f"{boot}/{space}/-1/1",
        f"{'9' * 30}",
        "",
    ):
        assert state(doubtful) == "unknown"
    assert state(f"{boot}/{space}/{'9' * 30}/1") == "unknown"
    assert ownership.origin(mine) == "here"
    elsewhere = mine | {ownership.HOST_LABEL: "another"}
    assert (ownership.creator_state(elsewhere), ownership.origin(elsewhere)) == ("unknown", "elsewhere")
    assert ownership.origin({ownership.OWNER_LABEL: "test-labels"}) == "unknown"
    monkeypatch.setenv("TAKEOVER_HOME", "/elsewhere")
    assert ownership.origin(mine) == "elsewhere"
