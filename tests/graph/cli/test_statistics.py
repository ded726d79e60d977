"""`handoff stats`: a table for people, JSON for programs, one line for an empty or missing home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from langgraph_takeover import hand_over, open_home
from langgraph_takeover.graph.cli import handoff_cli
from langgraph_takeover.graph.cli.handoff_commands import add_commands
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.records.record import RECORD_FILE

from ..conftest import DONE, EDIT, FIX, RunHarness, scripted_model
from ..delivery.test_delivery import QUICK, UNDERSTOOD, deliver_record, offer_first_record

add_commands(handoff_cli.app)


def call_stats(*argv: str) -> Result:
    return CliRunner().invoke(handoff_cli.app, ["stats", *argv])


@pytest.mark.slow
def test_statistics_of_real_deliveries(bench: RunHarness) -> None:
    first = offer_first_record(bench, envelope=Envelope(view="trace"))
    deliver_record(bench, first, scripted_model(UNDERSTOOD, FIX, DONE))
    bench.run(
        scripted_model(EDIT, DONE), thread="two", run_id="two", points=("first_source_edit",), policy="stop"
    )
    second = hand_over(bench.home, "two.first_source_edit", target="[red]zoe", source="writer")
    file = bench.home.records.directory("two.first_source_edit") / RECORD_FILE
    file.write_text(file.read_text()[:100])
    deliver_record(
        bench, second, scripted_model(DONE), agent_name="[red]zoe", on_blocked=lambda _: None,
        delivery_policy=QUICK.model_copy(update={"resends": 0, "rounds": 1}),
    )  # fmt: skip
    home = str(bench.home.directory)
    found = json.loads(call_stats("--home", home, "--json").stdout)
    assert (found["handoffs"], found["completed"], found["success_rate"]) == (2, 1, 0.5)
    assert found["refusals"] == {"checksum": 1}
    assert found["by_target"]["tester"]["success_rate"] == 1.0
    assert set(found["by_view"]) == {"default", "trace"}
    assert 0 < found["time_to_acceptance"]["median_s"] <= found["time_to_acceptance"]["max_s"] < 60
    shown = call_stats("--home", home)
    assert shown.exit_code == 0
    assert "[red]zoe" in shown.stdout, "a name is data"
    rows = {tuple(line.split()[:2]): line for line in shown.stdout.splitlines()}
    assert ("source", "writer") in rows
    assert "50%" in rows["source", "writer"]
    assert "checksum 1" in rows["view", "default"]


def test_an_empty_home_is_one_line(tmp_path: Path) -> None:
    with open_home(tmp_path / "home"):
        pass
    done = call_stats("--home", str(tmp_path / "home"))
    assert (done.exit_code, done.stdout) == (0, f"no handoffs in {tmp_path / 'home'}\n")
    assert json.loads(call_stats("--home", str(tmp_path / "home"), "--json").stdout)["handoffs"] == 0


@pytest.mark.parametrize("create", [False, True])
def test_a_missing_home_is_a_usage_error(tmp_path: Path, create: bool) -> None:
    home = tmp_path / "home"
    if create:
        home.mkdir()
    done = call_stats("--home", str(home))
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--home: " in done.stderr
    assert not list(home.glob("*"))


def test_the_help_has_an_example() -> None:
    assert "handoff stats --home work" in call_stats("--help").stdout
