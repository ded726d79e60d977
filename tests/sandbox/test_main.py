"""The sandbox commands: their output and their failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.cli.main import app
from langgraph_takeover.sandbox.gc import CollectionRequest
from langgraph_takeover.sandbox.interface import SandboxSpec, Snapshot

ROOT = Path(__file__).parents[2]


def command(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def invoke(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    done = CliRunner().invoke(app, [*map(str, arguments)], prog_name="python -m sandbox")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture(scope="module")
def snapshot_store(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a snapshot and its JSON."""
    store = tmp_path_factory.mktemp("store")
    spec = SandboxSpec(backend="process", directory=repository, owner="test-main")
    live_sandbox = sandbox.start(spec)
    try:
        live_sandbox.write_file("new.txt", b"carried\n")
        snapshot = live_sandbox.snapshot(store).result()
    finally:
        live_sandbox.close()
        sandbox.remove_stale_resources("process", spec.owner)
    (store / "snapshot.json").write_text(snapshot.model_dump_json())
    (store / "record.json").write_text(
        json.dumps({"task": "x", "snapshot": snapshot.model_dump(mode="json")})
    )
    return store


@pytest.mark.parametrize("name", ["gc", "probe", "export", "import"])
def test_help_has_examples(name: str) -> None:
    done = invoke(name, "--help")
    assert done.exit_code == 0
    assert f"sandbox {name}" in done.stdout.partition("Examples")[2]


def test_probe_reports_components_and_fixes(tmp_path: Path) -> None:
    done = command(
        "probe", "--json", PATH="/no/such", DOCKER_HOST="unix:///no/such", TAKEOVER_HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    facts = {(fact["component"], fact["name"]): fact for fact in json.loads(done.stdout)}
    assert facts["host", "bubblewrap"]["fix"] == "Debian: apt-get install bubblewrap"
    assert "util-linux" in facts["host", "user namespaces"]["fix"]
    assert facts["docker", "daemon"]["status"] == "missing"
    assert "DOCKER_HOST" in facts["docker", "daemon"]["fix"]
    assert facts["default", "backend"]["detail"].startswith("process")
    assert facts["storage", "directory"]["detail"] == str(tmp_path)
    assert all(fact["fix"] for fact in facts.values() if fact["status"] != "ok")


def test_probe_of_this_host() -> None:
    done = command("probe")
    assert done.returncode == 0
    assert f"{sandbox.default_backend(allow_process=True)}: " in done.stdout


def test_probe_of_an_unusable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command("probe", "--json", TAKEOVER_HOME=str(tmp_path / "file"), DOCKER_HOST="unix:///no/such")
    facts = {(fact["component"], fact["name"]): fact for fact in json.loads(done.stdout)}
    assert facts["storage", "directory"]["status"] == "missing"
    assert "TAKEOVER_HOME" in facts["storage", "directory"]["fix"]


@pytest.mark.parametrize("name", ["snapshot.json", "record.json"])
def test_a_snapshot_is_exported_and_imported(
    snapshot_store: Path, tmp_path: Path, repository: Path, name: str
) -> None:
    done = command("export", snapshot_store / name, tmp_path / "carried")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = command("import", f"file://{tmp_path}/carried", tmp_path / "new" / "store")
    assert done.returncode == 0, done.stderr
    snapshot = Snapshot.model_validate_json(done.stdout)
    spec = SandboxSpec(backend="process", directory=repository, owner="test-main")
    live_sandbox = sandbox.restore(snapshot, tmp_path / "new" / "store", spec)
    try:
        assert live_sandbox.read_file("new.txt") == b"carried\n"
    finally:
        live_sandbox.close()
        sandbox.remove_stale_resources("process", spec.owner)


def test_export_and_import_errors(snapshot_store: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no snapshot")
    (tmp_path / "empty.json").write_text('{"snapshot": {}}')
    (tmp_path / "alone.json").write_text((snapshot_store / "snapshot.json").read_text())
    cases = {
        ("export", tmp_path / "none.json", tmp_path / "out"): (2, "SNAPSHOT_JSON"),
        ("export", tmp_path / "text", tmp_path / "out"): (2, "not JSON"),
        ("export", tmp_path / "empty.json", tmp_path / "out"): (2, "backend: Field required"),
        ("export", tmp_path / "alone.json", tmp_path / "out"): (
            3,
            "archive is missing (restore it from a copy)",
        ),
        ("export", snapshot_store / "snapshot.json", "nowhere://x/y"): (3, "nowhere://x/y"),
        ("import", tmp_path / "none", tmp_path / "store"): (3, "file not found"),
        ("import", tmp_path / "text", tmp_path / "store"): (3, "unknown snapshot format"),
        ("import", tmp_path / "text", tmp_path / "text"): (2, "STORE: "),
    }
    for arguments, (code, reason) in cases.items():
        done = invoke(*arguments)
        assert done.exit_code == code, (arguments, done.stderr)
        assert done.stderr.startswith("error: ")
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--owner", "Not/One"), "--owner: not the name of a run: 'Not/One'"),
        (("--owner", "x", "--bases"), "--bases: belongs to no run"),
        (("--store", "/no/such"), "--store: directory not found: /no/such"),
    ],
)
def test_gc_usage_errors(options: tuple[str, ...], reason: str) -> None:
    done = invoke("gc", *options)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {reason}")
    assert done.stderr.count("\n") == 1


def test_suggested_commands_use_the_started_program() -> None:
    started_as_module = command("gc", "--owner", "Not/One")
    assert started_as_module.stderr.rstrip().endswith("(list the names: python -m sandbox gc)")
    assert invoke("gc", "--owner", "Not/One").stderr.rstrip().endswith("(list the names: sandbox gc)")
    request = CollectionRequest("run-1", include_snapshots=True, stores=(Path("/a b"),))
    assert request.command_line("python -m sandbox") == (
        "python -m sandbox gc --owner run-1 --snapshots --store '/a b'"
    )
