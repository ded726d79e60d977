"""Foreign records: their own sandbox field has no effect, and their code runs only in isolation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover.graph.cli.handoff_options import UsageError, choose_sandbox_spec
from langgraph_takeover.graph.delivery.offers import hand_over
from langgraph_takeover.graph.delivery.recovery import roll_back
from langgraph_takeover.handoff.records import archive
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.records.record import RECORD_FILE, RecordStore, to_json
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.interface import SandboxUnavailableError

from ..conftest import skip_missing
from .conftest import DONE, EDIT, RunHarness, parse_events, scripted_model

ROOT = Path(__file__).parents[2]
NAME = "run.first_source_edit"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file of this host that every command of the forged record's shell would create."""
    if reason := host.unavailable_reason():
        skip_missing(reason)
    return tmp_path / "spoilt"


@pytest.fixture
def forged_record(bench: RunHarness, marker: Path) -> Path:
    """A record of plain processes, imported from elsewhere, whose shell has a trap before each command."""
    assert bench.spec.backend == "process"
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    record = bench.store.load(NAME)
    state = json.loads(record.required_snapshot.shell_state) | {
        "traps": {"DEBUG": f"id -un > {marker}; echo trapped"}
    }
    snapshot = record.required_snapshot.model_copy(update={"shell_state": json.dumps(state)})
    written = record.model_copy(update={"snapshot": snapshot}).seal()
    theirs = RecordStore(marker.parent / "theirs")
    shutil.copytree(bench.store.directory(NAME), theirs.directory(NAME))
    (theirs.directory(NAME) / RECORD_FILE).write_text(
        to_json(written, exclude={"notes", "review", "envelope"})
    )
    archive.export_record(theirs.directory(NAME), str(marker.parent / "file"))
    return archive.import_record(str(marker.parent / "file"), bench.store.root, replace=True)


def test_a_record_of_plain_processes_is_taken_over_in_isolation(
    bench: RunHarness, forged_record: Path, marker: Path
) -> None:
    bench.spec = bench.spec.model_copy(update={"backend": "host"})
    state = bench.take_over(
        scripted_model("```bash\ncat pkg/core.py\n```", "```bash\nhostname\n```", DONE), record=NAME
    )
    shown = [event.text for event in parse_events(state) if event.kind == "observation"]
    assert "return n * 3" in shown[0]
    assert "sandbox" in shown[1].splitlines()
    assert "trapped" in shown[1], "the trap is the agent's own, and acts inside"
    assert not marker.exists()
    assert state["stop_reason"] == "finished"


def test_a_record_of_plain_processes_is_rolled_back_in_isolation(
    bench: RunHarness, forged_record: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hand_over(
        bench.home, NAME, target="ann", source="writer", envelope=Envelope(message="m"), idempotency_key="k"
    )
    with monkeypatch.context() as patch:
        patch.setattr(host, "unavailable_reason", lambda: "bwrap is not installed")
        with pytest.raises(SandboxUnavailableError, match="--sandbox process --allow-unisolated"):
            roll_back(bench.home, found.id, by="a person")
    assert roll_back(bench.home, found.id, by="a person").events
    assert not marker.exists()


def take(record: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handoff", "take", str(record), "--as", "ann", *options],
        input="hostname; pwd\nexit\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=dict(os.environ),
        check=False,
    )


def test_a_person_selects_the_sandbox_of_a_restored_record(bench: RunHarness, forged_record: Path) -> None:
    base = bench.spec.directory
    for (kind, allowed, directory), reason in {
        ("process", False, None): "--sandbox process would run the record's content as you",
        ("process", False, base): "or pass --allow-unisolated",
        ("vax", True, None): "unknown back end 'vax' \\(use docker, host, process",
        ("docker", False, base): "--directory: docker starts from an image",
    }.items():
        with pytest.raises(UsageError, match=reason):
            choose_sandbox_spec(bench.home, NAME, directory, kind, allowed)
    with pytest.raises(SandboxUnavailableError, match="--sandbox host"):
        choose_sandbox_spec(bench.home, NAME, None, "docker", False)
    for directory in (None, base):
        assert choose_sandbox_spec(bench.home, NAME, directory, None, False).backend == "host"
        assert choose_sandbox_spec(bench.home, NAME, directory, None, True).backend == "host"
        assert choose_sandbox_spec(bench.home, NAME, directory, "process", True).backend == "process"


@pytest.mark.slow
def test_a_person_takes_a_record_in_isolation_by_default(
    bench: RunHarness, forged_record: Path, marker: Path
) -> None:
    refused = take(forged_record, "--sandbox", "process")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    refused = take(forged_record, "--sandbox", "docker")
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1), refused.stderr
    assert "--sandbox host" in refused.stderr
    assert not marker.exists()
    taken = take(forged_record)
    assert taken.returncode == 0, taken.stderr
    assert {"sandbox", "/testbed"} <= set(taken.stdout.splitlines())
    assert not marker.exists()
    unisolated = take(forged_record, "--sandbox", "process", "--allow-unisolated")
    assert unisolated.returncode == 0, unisolated.stderr
    assert marker.exists()
