"""Takeovers in real containers: a bundled task, and a real SWE-bench Verified task from its trajectory."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.run.execution.jobs import list_stale_resources, open_run_directory
from langgraph_takeover.evals.run.journal import JournalError
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks
from langgraph_takeover.sandbox import remove_stale_resources

from ..conftest import skip_missing
from .conftest import ROOT, RunCommand, read_rows

SYMPY = "sympy__sympy-23534"


@pytest.fixture(scope="module")
def images() -> Any:
    """The script that builds images without a registry; needs a daemon."""
    from langgraph_takeover.sandbox.docker_client import client
    from langgraph_takeover.sandbox.interface import SandboxUnavailableError

    try:
        client()
    except SandboxUnavailableError as error:
        skip_missing(str(error))
    import importlib.util

    found = importlib.util.spec_from_file_location("offline_images", ROOT / "examples" / "offline_images.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def only_snapshots_left(out: Path) -> None:
    """Check that a finished run leaves only its records with their snapshots, no container and no image."""
    from langgraph_takeover.sandbox.gc import CollectionRequest, list_docker_resources

    run_id = json.loads((out / "config.json").read_text())["run_id"]
    assert list_docker_resources(CollectionRequest(run_id)) == []
    records = [path.parent for path in (out / "records").glob("*/record.json")]
    assert records
    for record in records:
        snapshot = json.loads((record / "record.json").read_text())["snapshot"]
        assert (record / snapshot["location"]).is_file()
        assert {path.name for path in record.iterdir()} <= {"record.json", "notes.json", snapshot["location"]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bundled_task_in_docker(images: Any, takeover: RunCommand, tmp_path: Path) -> None:
    suite = ROOT / "evals" / "tasks" / "suite" / "tasks"
    images.build_suite(suite, images.build_base())
    out = tmp_path / "out"
    chosen = ("--task-ids", "ledger__ledger-12", "--view", "structured", "--points", "first_validation")
    done = takeover("--sandbox", "docker", *chosen, "--out", out)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert [row["resolved"] for row in read_rows(out)] == [True, True]
    assert [row["handoff_state"] for row in read_rows(out, "labels")] == ["needs_completion"]
    only_snapshots_left(out)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("sandbox", "view", "takeovers"),
    [("docker", "repository", 1), pytest.param("host", "trace", 2, marks=pytest.mark.slow)],
)
def test_a_real_task_from_its_trajectory(
    images: Any,
    takeover: RunCommand,
    real_data: Path,
    tmp_path: Path,
    sandbox: str,
    view: str,
    takeovers: int,
) -> None:
    import pyarrow.parquet

    source = real_data / "data" / "swebench_verified_v5.parquet"
    table = pyarrow.parquet.read_table(source, filters=[("instance_id", "=", SYMPY)])
    images.build_instance(table.to_pylist()[0], images.build_base())
    replay = f"replay:{real_data / 'trajectories' / 'mini-swe-agent-v1' / SYMPY}.traj.json"
    out = tmp_path / "out"
    chosen = ("--tasks", source, "--task-ids", SYMPY, "--predecessor", replay, "--successor", replay)
    done = takeover(
        *chosen, "--sandbox", sandbox, "--view", view, "--points", "first_source_edit", "--out", out
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    (record,) = (out / "records").glob("*/record.json")
    point = json.loads(record.read_text())["point"]
    # The trajectory's eighth action is the `sed -i` that fixes the call; an action is two events.
    assert (point["kind"], point["event_index"]) == ("first_source_edit", 15)
    assert "sympy/core/symbol.py" in point["detail"]
    assert [row["resolved"] for row in read_rows(out)] == [True] * takeovers
    assert "+            result.append(symbols(name, cls=cls, **args))" in read_rows(out)[0]["patch"]
    only_snapshots_left(out)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("network", [False, True])
def test_only_the_official_tests_get_network_and_only_on_request(
    images: Any, tmp_path: Path, network: bool
) -> None:
    from langgraph_takeover import sandbox
    from langgraph_takeover.evals.tasks.grading import grade

    name = "ledger__ledger-12"
    images.build_suite(ROOT / "evals" / "tasks" / "suite" / "tasks", images.build_base())
    (task,) = load_tasks("bundled", [name])
    spec = task.build_spec("docker", "test-grading-network", tmp_path)
    agent = sandbox.start(spec)
    try:
        assert agent.inspect("ls /sys/class/net").output.split() == ["lo"]
    finally:
        agent.close()
    # The tests run the patch, which prints the container's interfaces.
    line = "import os; print('interfaces', sorted(os.listdir('/sys/class/net')))"
    path = "tests/test_interfaces.py"
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n"
    grade(task, f"{head}+{line}\n", spec, tmp_path / "logs", "name", network=network)
    (log,) = (tmp_path / "logs").rglob("test_output.txt")
    printed = set(re.findall(r"interfaces (\[.*?\])", log.read_text()))
    assert printed == {"['eth0', 'lo']" if network else "['lo']"}


@pytest.mark.slow
def test_grading_leaves_no_volume(images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness removes its container, but none of the volumes that an image declares."""
    from langgraph_takeover.evals.tasks.grading import grade
    from langgraph_takeover.sandbox.docker_client import OwnedClient, client

    images.build_suite(ROOT / "evals" / "tasks" / "suite" / "tasks", images.build_base())
    (task,) = load_tasks("bundled", ["ledger__ledger-12"])
    tag = f"takeover/graded-volumes-{secrets.token_hex(4)}"
    container = client().containers.create(task.instance["image"], ["true"])
    container.commit(tag, changes="VOLUME /testbed")
    container.remove(force=True)
    task = task.model_copy(update={"instance": {**task.instance, "image": tag}})
    mounts, create = [], OwnedClient.create

    def record(self: OwnedClient, **options: Any) -> Any:
        created = create(self, **options)
        mounts.append(created.attrs["Mounts"])
        return created

    monkeypatch.setattr(OwnedClient, "create", record)
    owner = "test-grading-volumes"
    try:
        spec = task.build_spec("docker", owner, tmp_path)
        assert grade(task, task.gold_patch, spec, tmp_path / "logs", "name", network=False).resolved
    finally:
        remove_stale_resources("docker", owner)
        client().images.remove(tag, force=True)
    assert mounts == [[]]


LEAVE_CONTAINER = """
import os, signal, sys
from langgraph_takeover.sandbox.backends.docker import client
from langgraph_takeover.sandbox.ownership import make_labels

container = client().containers.create(sys.argv[1], "sleep 600", labels=make_labels(sys.argv[2]))
container.start()
print(container.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_container_that_a_killed_run_left_is_named(
    base_image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one whose daemon did not see the end of the run."""
    config = RunConfig(
        run_id=f"test-{secrets.token_hex(4)}",
        predecessors=("builtin:oracle",),
        successors=("builtin:oracle",),
        views=("trace",),
        tasks=BUNDLED,
        sandbox="docker",
    )
    command = [sys.executable, "-c", LEAVE_CONTAINER, base_image, config.run_id]
    name = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    assert name
    line = f"container {name} (its process is dead)"
    gc = [sys.executable, "-m", "sandbox", "gc", "--owner", config.run_id]
    try:
        with RunPaths(tmp_path).home() as home:
            assert list_stale_resources(config, home) == [line]
        assert name in subprocess.run(gc, capture_output=True, text=True, check=True).stdout
        # What is left is removed first, so that no journal is needed here.
        with pytest.raises(JournalError), open_run_directory(config, tmp_path):
            pass
        with RunPaths(tmp_path).home() as home:
            assert f"removed from the interrupted run: {line}\n" in capsys.readouterr().out
            assert list_stale_resources(config, home) == []
    finally:
        subprocess.run([*gc, "--remove"], capture_output=True, check=True)
