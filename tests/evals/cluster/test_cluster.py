"""Runs on a real Ray cluster: three processes of this host that share nothing but the artifact store."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from langgraph_takeover.evals.run.rows import STAGES
from langgraph_takeover.graph.runs.stop_requests import WAITING
from langgraph_takeover.sandbox import ownership

from ...chat_server import ChatServer
from ...conftest import skip_missing
from ..conftest import (
    ONE_POINT,
    RunCommand,
    assert_refused,
    assert_terminated,
    comparable_rows,
    delete_stage_rows,
    isolated_sandbox_options,
    kill_process,
    read_journal_rows,
    read_rows,
    start_takeover,
    wait_for,
)

SMALL = (*ONE_POINT, "--view", "summary", "--repeats", "2")
ITS_ROWS = 4  # one point under two views, twice
_RAY = Path(sys.executable).with_name("ray")
_LITTLE = (
    "--num-cpus=1",
    "--object-store-memory=80000000",
    "--disable-usage-stats",
    "--node-ip-address=127.0.0.1",
)

# By default Ray's workers have a low priority: other tests would hold them up.
_SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}


class Started(NamedTuple):
    """A node's processes and its own directory."""

    processes: subprocess.Popen[str]
    own: Path

    def kill(self) -> None:
        # Its daemons are in the process group of the command that started them.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes.pid, signal.SIGKILL)

    def list_jobs(self) -> list[int]:
        """The processes that run its jobs, by Ray's titles."""
        jobs = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.processes.pid and process.cmdline()[:1] == ["ray::run_job"]:
                    jobs.append(process.pid)
        return jobs

    def is_at_work(self, store: Path) -> bool:
        """Whether it has started a job whose row is not in the artifact store yet."""
        names = {path.name.rpartition("-")[2] for path in self.directories()}
        started_jobs = [json.loads(path.read_text()) for path in store.glob("*/attempts/*/[!.]*")]
        done = [json.loads(path.read_text())[0] for path in store.glob("*/rows/[!.]*")]
        return sum(name in names for name in started_jobs) > sum(name in names for name in done)

    def directories(self) -> list[Path]:
        return list(self.own.glob("takeover-*"))


def are_suspended_at_work(store: Path, *nodes: Started) -> bool:
    """Suspend the jobs of nodes that are all at work, so that none ends before it is killed."""
    if not all(node.is_at_work(store) for node in nodes):
        return False
    jobs = [job for node in nodes for job in node.list_jobs()]
    for job in jobs:
        os.kill(job, signal.SIGSTOP)
    if all(node.is_at_work(store) for node in nodes):
        return True
    for job in jobs:
        os.kill(job, signal.SIGCONT)
    return False


class Ray:
    """A Ray cluster on this host to which tests add nodes."""

    def __init__(self, directory: Path, ray_directory: str) -> None:
        self._directory, self._ray_directory = directory, ray_directory
        self._started: list[Started] = []
        self.address = ""

    def head(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.address.partition(":")[2]
        self.start(
            "head",
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            f"--temp-dir={self._ray_directory}",
        )

    def node(self, name: str, *prefix: str, **env: str) -> Started:
        return self.start(
            name, f"--address={self.address}", '--resources={"sandbox": 1}', prefix=prefix, env=env
        )

    def start(
        self, name: str, *options: str, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> Started:
        own = self._directory / name
        own.mkdir()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
        # Start one after another, because two at once choose the same ports; also those of another worker's cluster.
        with Path(tempfile.gettempdir(), "takeover-tests-ray.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen(
                [*prefix, str(_RAY), "start", *options, *_LITTLE],
                env={**clean, **_SETTINGS, "TMPDIR": str(own), **(env or {})},
                cwd=own,
                stdout=subprocess.DEVNULL,
                stderr=(own / "stderr").open("w"),
                text=True,
                start_new_session=True,
            )
            self._started.append(Started(process, own))
            assert process.wait(120) == 0, (own / "stderr").read_text()
        return self._started[-1]

    def stop(self) -> None:
        for each in reversed(self._started):
            each.kill()
            each.processes.wait()

    def arguments(self, *depot: str | Path) -> tuple[str | Path, ...]:
        return ("--executor", "ray", "--address", self.address, *depot)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    """A cluster whose only nodes with sandboxes are those that a test adds."""
    if not _RAY.is_file():
        skip_missing("the command `ray` is not installed")
    directory = tmp_path_factory.mktemp("ray")
    ray_directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths must be short
    ray = Ray(directory, ray_directory)
    try:
        ray.head()
        yield ray
    finally:
        ray.stop()
        shutil.rmtree(ray_directory, ignore_errors=True)


@pytest.fixture(scope="module")
def two(head: Ray) -> tuple[Started, Started]:
    """Two nodes of the cluster that run one job at a time each."""
    return head.node("a"), head.node("b")


@pytest.fixture(scope="module")
def local(takeover: RunCommand, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without a cluster."""
    out = tmp_path_factory.mktemp("local") / "out"
    done = takeover(*SMALL, *isolated_sandbox_options(), "--workers", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def like(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by key without cluster-only fields; fails on a duplicate key."""
    return {
        key: {name: value for name, value in row.items() if name not in ("node", "tries")}
        for key, row in comparable_rows(out).items()
    }


def traces(out: Path) -> dict[str, int]:
    return {path.name: len(json.loads(path.read_text())["events"]) for path in (out / "traces").iterdir()}


def nothing_left(out: Path, *nodes: Started) -> None:
    """Check that a successful run leaves only its results on every node."""
    assert [directory for each in nodes for directory in each.directories()] == []
    assert not (out / "depot").exists()
    run_id = json.loads((out / "config.json").read_text())["run_id"]
    sandboxes = {path.name for path in ownership.runs_directory().glob(f"{run_id}*")}
    assert not sandboxes


@pytest.mark.slow
def test_a_cluster_without_nodes_reports_how_to_start_some(
    head: Ray, run_main: RunCommand, tmp_path: Path
) -> None:
    head_alone = run_main(*ONE_POINT, *head.arguments(), "--out", tmp_path / "out")
    assert_refused(head_alone, "no node of the cluster offers 'sandbox'")
    assert "--resources='{\"sandbox\": 4}'" in head_alone.stderr


@pytest.mark.slow
def test_the_rows_equal_those_of_one_host(
    head: Ray, two: tuple[Started, Started], local: Path, takeover: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = takeover(*SMALL, *isolated_sandbox_options(), *head.arguments(), "--out", out)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""
    found = like(out)
    assert len(found) == ITS_ROWS
    assert found == like(local)
    assert len({row["node"] for row in read_rows(out)}) == 2
    assert {row["tries"] for row in read_rows(out)} == {1}
    assert traces(out) == traces(local)
    assert [path.name for path in (out / "grading").glob("predecessor.*/test_output.txt")]
    nothing_left(out, *two)
    again = takeover("--resume", "--out", out)  # all artifacts exist, so there is nothing to do
    assert again.returncode == 0, again.stderr
    assert like(out) == found


class Eventful(NamedTuple):
    """A run on three nodes that loses one of them, beside three unusable nodes."""

    out: Path
    code: int
    errors: list[str]
    bad: list[Started]
    store: Path


@pytest.fixture(scope="module")
def eventful(head: Ray, two: tuple[Started, Started], tmp_path_factory: pytest.TempPathFactory) -> Eventful:
    directory = tmp_path_factory.mktemp("eventful")
    out, store = directory / "out", directory / "store"
    store.mkdir()
    third = head.node("third")
    bad = [
        head.node("poor", PATH=_path_without("bwrap", directory / "bin")),
        head.node("other", PYTHONPATH=_another_version_of("langgraph", directory / "packages")),
        head.node("apart", *_with_nothing_at(store)),
    ]
    try:
        process = start_takeover(
            *SMALL,
            *isolated_sandbox_options(),
            *head.arguments("--artifact-store", f"file://{store}"),
            "--out",
            out,
        )
        # Only takeovers follow, at first one per node, and they take long enough to be interrupted.
        wait_for(lambda: read_journal_rows(out, "notes") != [], process)
        wait_for(lambda: are_suspended_at_work(store, two[0], third), process)
        jobs = two[0].list_jobs() + third.list_jobs()
        third.kill()
        for job in jobs:  # a suspended process does not notice the loss of its node
            os.kill(job, signal.SIGKILL)
        _, errors = process.communicate(timeout=400)
    finally:
        for each in (third, *bad):
            each.kill()
    return Eventful(out, process.returncode, errors.splitlines(), bad, store)


@pytest.mark.slow
def test_a_run_outlives_a_node(eventful: Eventful, two: tuple[Started, Started], local: Path) -> None:
    assert eventful.code == 0, eventful.errors
    assert like(eventful.out) == like(local)
    assert sum(row["tries"] - 1 for stage in STAGES for row in read_rows(eventful.out, stage)) == 2
    assert list(eventful.store.iterdir()) == []
    assert not [directory for each in two for directory in each.directories()]


@pytest.mark.slow
def test_an_incompatible_node_is_excluded(eventful: Eventful) -> None:
    lines = eventful.errors
    assert len(lines) == 3, lines
    assert all(line.startswith("excluded: node ") for line in lines)
    reasons = ("bwrap is not installed", "langgraph is 0.0.1, but", "does not share the artifact store")
    for reason in reasons:
        assert len([line for line in lines if reason in line]) == 1, lines
    left_out = {line.split()[2] for line in lines}
    assert len(left_out) == 3
    assert left_out.isdisjoint(row["node"] for row in read_rows(eventful.out))
    assert not any(each.directories() for each in eventful.bad)


@pytest.mark.slow
def test_an_interrupted_run_resumes(
    head: Ray, two: tuple[Started, Started], local: Path, takeover: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("--resume", "--out", out, *head.arguments())
    process = start_takeover(*SMALL, *isolated_sandbox_options(), *head.arguments(), "--out", out)
    wait_for(lambda: bool(read_journal_rows(out, "predecessors")), process)
    kill_process(process)
    assert any(each.directories() for each in two)

    process = start_takeover(*arguments)
    wait_for(lambda: bool(read_journal_rows(out, "notes")), process)
    process.send_signal(signal.SIGTERM)
    assert_terminated(process)
    assert [each.list_jobs() for each in two] == [[], []]
    assert all(each.directories() for each in two)

    process = start_takeover(*arguments)
    wait_for(lambda: bool(read_journal_rows(out, "takeovers")), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert len([line for line in err.splitlines() if line and line != WAITING]) == 1, err
    assert f"--executor ray --address {head.address}" in err
    assert len(read_journal_rows(out, "takeovers")) < ITS_ROWS
    assert [each.list_jobs() for each in two] == [[], []]
    assert all(each.directories() for each in two)

    finished = read_rows(out)
    delete_stage_rows(out, "takeovers")  # as if the coordinator had been killed before it journaled them
    done = takeover(*arguments)
    assert done.returncode == 0, done.stderr
    assert [row for row in finished if row not in read_rows(out)] == []  # none ran again
    assert like(out) == like(local)
    nothing_left(out, *two)


@pytest.mark.slow
def test_a_key_that_the_nodes_lack_is_not_sent_to_them(
    head: Ray, two: tuple[Started, Started], takeover: RunCommand, tmp_path: Path
) -> None:
    out, key = tmp_path / "out", "sk-0123456789abcdefghijklmnop"
    done = takeover(
        *("--model", "openai:some", *ONE_POINT, *isolated_sandbox_options(), *head.arguments()),
        "--out",
        out,
        OPENAI_API_KEY=key,
    )
    assert done.returncode == 2, (done.stdout, done.stderr)
    *lines, last = done.stderr.splitlines()
    warnings = [line for line in lines if "OPENAI_API_KEY is not set" in line and "`ray start`" in line]
    assert len(warnings) == 2, lines
    assert last.startswith("error: --executor ray: none of the")
    assert not (out / "config.json").exists()
    assert key not in done.stderr


@pytest.mark.slow
def test_nodes_use_the_entries_of_the_models_file(
    head: Ray, two: tuple[Started, Started], takeover: RunCommand, chat_server: ChatServer, tmp_path: Path
) -> None:
    chat_server.answer = lambda request: chat_server.reply("<finish>Done.</finish>", prompt_tokens=1000)
    models, out = tmp_path / "models.yaml", tmp_path / "out"
    price = "price: {input: 2, output: 10}"
    models.write_text(
        f"mine: {{model: served, base_url: '{chat_server.url}', {price}, extra_body: {{top_k: 3}}}}\n"
    )
    done = takeover(
        *("--models", models, "--successor", "mine", "--view", "trace", *ONE_POINT),
        *(*isolated_sandbox_options(), *head.arguments(), "--out", out),
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert [row["cost_usd"] for row in read_rows(out)] == [pytest.approx(2.1e-3)] * 2
    assert {(request["model"], request["top_k"]) for request in chat_server.requests} == {("served", 3)}


@pytest.mark.slow
def test_an_address_without_a_server(run_main: RunCommand, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        done = run_main(*ONE_POINT, "--executor", "ray", "--address", nobody, "--out", tmp_path / "out")
    assert_refused(done, f"--address: no Ray cluster answers at {nobody}")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_address_of_a_different_service(run_main: RunCommand, tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as server:  # Ray replaces `127.0.0.1` by this host's address

        def speak() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        threading.Thread(target=speak, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = run_main(*ONE_POINT, "--executor", "ray", "--address", address, "--out", tmp_path / "out")
    assert_refused(done, "the listener is not a Ray head")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--executor", "slurm"), "--executor: unknown executor 'slurm'"),
        (("--executor", "ray", "--workers", "2"), "--workers: not for --executor ray"),
        (("--artifact-store", "file:///x"), "--artifact-store: requires --executor ray"),
        (("--node-dir", "/x"), "--node-dir: requires --executor ray"),
        (("--executor", "ray", "--node-dir", "x"), "not an absolute path"),
        (
            ("--executor", "ray", "--artifact-store", "s3://user:pa55w0rd-long@there/x"),
            "--artifact-store: the URL contains a secret",
        ),
    ],
)
def test_usage_errors(run_main: RunCommand, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    assert_refused(run_main(*ONE_POINT, *options, "--out", tmp_path / "out"), message)


def _path_without(program: str, target: Path) -> str:
    """This PATH without one program."""
    target.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for path in Path(directory).glob("*"):
            with contextlib.suppress(FileExistsError):
                if path.name != program:
                    (target / path.name).symlink_to(path)
    return str(target)


def _another_version_of(package: str, directory: Path) -> str:
    """A path entry that makes Python see another version of a package."""
    about = directory / f"{package}-0.0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.1\n")
    return str(directory)


def _with_nothing_at(directory: Path) -> tuple[str, ...]:
    """A command prefix that mounts an empty file system at this directory."""
    command = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs {directory} && exec "$@"', "sh")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        skip_missing("cannot mount file systems (requires root)")
    return command
