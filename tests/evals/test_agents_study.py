"""Runs with real agents: the study `agents`, and the built-in model inside agents with a shell of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.events import Trace

from ..agent_programs import find_test_command
from .conftest import RunCommand, isolated_sandbox_options, read_rows

CODEX, BUILT_IN = "codex:builtin:oracle", "builtin:oracle"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_agent_takes_over_from_each(takeover: RunCommand, tmp_path: Path) -> None:
    sandbox, program = isolated_sandbox_options(), f"codex={find_test_command(ADAPTERS['codex'])}"
    done = takeover(
        *("--study", "agents", "--predecessor", CODEX, "--successor", BUILT_IN, "--agent-program", program),
        *("--task-ids", "ledger__ledger-12", "--points", "first_source_edit", "--view", "transcript"),
        *(*sandbox, "--out", tmp_path, "--report"),
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    rows = {(row["predecessor"], row["successor"], row["view"]): row for row in read_rows(tmp_path)}
    assert set(rows) == {
        *((one, other, view) for one in (CODEX, BUILT_IN) for other in (CODEX, BUILT_IN) for view in ("repository", "transcript")),
        (CODEX, CODEX, "continuation"),
        (BUILT_IN, BUILT_IN, "continuation"),
    }  # fmt: skip
    assert all(row["resolved"] for row in rows.values())
    predecessors = {row["predecessor"]: row for row in read_rows(tmp_path, "predecessors")}
    for name in (CODEX, BUILT_IN):
        own = rows[name, name, "continuation"]
        # The agent does exactly what its own run did after the point.
        assert own["events"] == predecessors[name]["remainders"][own["record_id"]]["events"]
        assert own["first_prompt_tokens"] > rows[name, name, "repository"]["first_prompt_tokens"]
        assert rows[name, name, "transcript"]["events"] >= own["events"]
    converted = rows[BUILT_IN, CODEX, "transcript"]
    assert (converted["agent"], converted["session_account"]) == ("codex", {"converted": 12})
    assert converted["agent_version"]
    assert rows[CODEX, BUILT_IN, "transcript"]["agent"] is None
    (trace,) = read_traces(tmp_path / "traces" / f"{converted['trace']}.json")
    assert isinstance(trace, Trace)
    assert (trace.agent, trace.agent_version) == ("codex", converted["agent_version"])
    table = (tmp_path / "tables" / "table18_agents.md").read_text()
    assert "No LLM: " in table
    assert "| codex:builtin:oracle | codex:builtin:oracle | continuation | 1 | 0 | – | 100.0 |" in table
    assert (tmp_path / "plots" / "agents.png").is_file()
    page = (tmp_path / "report.html").read_text()
    assert "Cost of a switch by predecessor, successor and view" in page
    assert "Extra events of a takeover" in page


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["qwen-code", "opencode"])
def test_built_in_model_solves_a_task_inside(name: str, takeover: RunCommand, tmp_path: Path) -> None:
    """opencode does not show exit codes to its model: the runtime reads them from its output."""
    program = f"{name}={find_test_command(ADAPTERS[name])}"
    done = takeover(
        *("--predecessor", f"{name}:builtin:oracle", "--agent-program", program, "--stages", "predecessors"),
        *("--task-ids", "ledger__ledger-12", *isolated_sandbox_options(), "--out", tmp_path),
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    (row,) = read_rows(tmp_path, "predecessors")
    assert row["resolved"]
    (trace,) = read_traces(next((tmp_path / "traces").iterdir()))
    assert isinstance(trace, Trace)
    observations = [event for event in trace.events if event.kind == "observation" and event.tool == "shell"]
    codes = [event.exit_code for event in observations]
    assert codes[-1] == 0
    assert None not in codes
    assert set(codes) != {0}, "the reproduction failed before the fix"
