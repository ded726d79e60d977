"""Comparison of the versions of two hosts."""

from __future__ import annotations

from pathlib import Path

from langgraph_takeover.evals.cluster.artifacts import collect_versions, find_difference
from langgraph_takeover.evals.run.settings.config import RunConfig


def test_the_first_difference_is_named_with_both_versions() -> None:
    ours = {"Python": "3.11.7", "ray": "2.60.0", "langgraph": "1.2.22"}
    assert find_difference(ours, ours) == ""
    assert find_difference(ours | {"more": "1"}, ours) == ""
    assert find_difference(ours | {"ray": "2.50.0"}, ours) == "ray is 2.50.0, but 2.60.0 is required"
    assert find_difference(ours | {"ray": ""}, ours) == "ray is not installed, but 2.60.0 is required"


def test_a_recorded_trajectory_is_compared_by_its_content(tmp_path: Path) -> None:
    trajectory = tmp_path / "runs.jsonl"
    trajectory.write_text("one")
    model = f"replay:{trajectory}"
    config = RunConfig(
        run_id="r", views=(), predecessors=(model,), successors=(model,), tasks="bundled", sandbox="process"
    )
    before = collect_versions(config, ())
    assert find_difference(before, collect_versions(config, ())) == ""
    trajectory.write_text("other")
    assert find_difference(collect_versions(config, ()), before).startswith(f"{trajectory} is ")
