"""Estimated costs of a plan."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from langgraph_takeover.evals.models import ModelEntry, ModelPrice
from langgraph_takeover.evals.run.execution.jobs import RunJobs
from langgraph_takeover.evals.run.journal import get_journals, open_journal
from langgraph_takeover.evals.run.plan import RECORDED_COSTS, Costs, estimate_usd, make_plan
from langgraph_takeover.evals.run.rows import PredecessorRow
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks

from ..conftest import RunCommand

MODELS = """
a: {base_url: "http://127.0.0.1:1/v1", price: {input: 1, output: 10}}
b: {base_url: "http://127.0.0.1:1/v1", price: {input: 2, output: 20}}
c: {base_url: "http://127.0.0.1:1/v1"}
"""


def test_a_run_costs_its_tokens_at_their_prices() -> None:
    price = ModelPrice(input=1.0, output=10.0, cached=0.1)
    assert estimate_usd(price, RECORDED_COSTS) == pytest.approx(0.421 + 0.076)
    cached = Costs(36, 1_000_000, 0, 1, cached_tokens=900_000)
    assert estimate_usd(price, cached) == pytest.approx(0.1 + 0.09)
    assert math.isnan(estimate_usd(ModelEntry(model="m").price, RECORDED_COSTS))


def test_rows_without_counted_tokens_are_no_basis_of_an_estimate(tmp_path: Path) -> None:
    config = RunConfig(
        run_id="a",
        views=("repository",),
        predecessors=("m",),
        successors=("m",),
        tasks=BUNDLED,
        models={"m": ModelEntry(model="m", price=ModelPrice(input=1.0, output=10.0))},
        points=("first_source_edit",),
        sandbox="host",
    )
    tasks = {task.id: task for task in load_tasks(BUNDLED, limit=2)}
    row = {"task_id": next(iter(tasks)), "predecessor": "m", "outcome": "run", "records": []}
    with open_journal(tmp_path) as database:
        journals = get_journals(database, "a")
        counts = {"llm_calls": 3, "prompt_tokens": None, "seconds": 9.0}
        journals.predecessors.append(PredecessorRow.model_validate(row | counts))
        plan = make_plan(RunJobs(config, tmp_path, tasks, journals))
    assert plan.lines[0].high == RECORDED_COSTS._replace(usd=pytest.approx(0.497))
    assert plan.basis.startswith("medians of 60 recorded public runs")


def parse_dollars(output: str) -> dict[str, str]:
    """The US dollars of each stage in the table of a plan."""
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in output.splitlines()
        if line.startswith("│")
    ]
    return {line[0]: line[-2] for line in lines}


def test_a_dry_run_estimates_dollars(run_main: RunCommand, tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(MODELS)
    plan = (
        "--models",
        models,
        "--limit",
        "2",
        "--view",
        "structured",
        "--dry-run",
        "--out",
        tmp_path / "out",
    )
    done = run_main(*plan, "--predecessor", "a", "--successor", "a", "--successor", "b")
    assert done.returncode == 0, done.stderr
    dollars = parse_dollars(done.stdout)
    # Two runs at 0.421 + 0.076; the mean price of two successors is 1.5 times that.
    assert dollars["predecessors"] == "0.99"
    assert dollars["labels"] == "0.00"
    points = 5  # of two tasks, at the paper's rates
    low, high = (float(part) for part in dollars["takeovers"].split("–"))
    whole = points * 2 * 2 * 1.5 * 0.497
    assert (low, high) == (
        pytest.approx(whole * (1 - 0.5 * 0.63), abs=0.01),
        pytest.approx(whole * (1 - 0.5 * 0.42), abs=0.01),
    )
    assert "US dollars at the prices of --models." in done.stdout
    unknown = run_main(*plan, "--predecessor", "builtin:oracle", "--successor", "c", "--notes-model", "a")
    dollars = parse_dollars(unknown.stdout)
    assert (dollars["predecessors"], dollars["takeovers"], dollars["all"]) == ("0.00", "–", "–")
    assert "–" in dollars["notes"]  # a range
    assert float(dollars["notes"].split("–")[0]) > 0
    assert "Unknown prices (–): c (write price into their entries of --models)." in unknown.stdout
