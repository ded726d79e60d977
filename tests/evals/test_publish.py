from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.publish import main
from langgraph_takeover.evals.reports.collection import collect_report_data
from langgraph_takeover.evals.reports.summary import summarize
from langgraph_takeover.evals.reports.tables.table_files import OTHER_FIELDS, format_page
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.rows import STAGES

from ..command_line import call_main
from .conftest import ROOT, RunCommand, assert_refused, read_rows, rewrite_rows

SCHEMAS = ("takeovers", "predecessors", "labels", "notes")


def publish(rows: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return call_main(main, rows, "--out", out, "--no-trajectories")


def test_datasets_have_one_schema_whatever_their_rows_contain(published_rows: Path, tmp_path: Path) -> None:
    from pyarrow.parquet import read_schema

    empty = Path(shutil.copytree(published_rows, tmp_path / "empty"))
    for name in SCHEMAS:
        model = STAGES[name]
        keys = (
            *model.key_fields,
            *model.result_fields,
            "outcome",
            "predecessor",
            "point",
            "patch",
            "seconds",
        )
        rewrite_rows(empty, lambda row, keys=keys: {key: row[key] for key in keys if key in row}, name)
    rewrite_rows(
        published_rows, lambda row: row | {"agent": "codex", "node": "a1b2", "tries": 2, "mine": [1]}
    )
    for rows, out in ((published_rows, "one"), (empty, "two")):
        done = publish(rows, tmp_path / out)
        assert done.returncode == 0, done.stderr
    for name in SCHEMAS:
        one, two = (read_schema(tmp_path / out / "data" / f"{name}.parquet") for out in ("one", "two"))
        assert one.equals(two)
        assert one.names == [*STAGES[name].list_columns(), OTHER_FIELDS]
        assert "null" not in {str(field.type) for field in one}
        assert (str(one.field("node").type), str(one.field("tries").type)) == ("string", "int64")


def test_tables_keep_every_field(published_rows: Path, tmp_path: Path) -> None:
    from pyarrow.parquet import read_table

    rewrite_rows(published_rows, lambda row: row | {"mine": [1]})
    assert publish(published_rows, tmp_path / "data").returncode == 0
    rows = load_results([published_rows]).takeovers
    for row, stored in zip(
        rows, read_table(tmp_path / "data/data/takeovers.parquet").to_pylist(), strict=True
    ):
        assert json.loads(stored[OTHER_FIELDS])["mine"] == [1]
        assert [stored[name] for name in ("events", "resolved", "patch")] == [
            getattr(row, name) for name in ("events", "resolved", "patch")
        ]


def test_the_card_counts_as_the_report_does(published_rows: Path, tmp_path: Path) -> None:
    failed = {"outcome": "infrastructure_failure"}
    point = "one__one-1.first_validation"
    rewrite_rows(published_rows, lambda row: row | (failed if row["record_id"] == point else {}), "notes")
    assert publish(published_rows, tmp_path / "data").returncode == 0
    results = load_results([published_rows])
    summary = summarize(results)
    counted = len(collect_report_data(results).takeovers)
    failures = sum(view["infrastructure_failures"] for view in summary["views"].values())
    excluded = len(results.takeovers) - counted - failures
    assert counted < len(results.takeovers)
    assert (failures, excluded) == (1, 8)
    card = (tmp_path / "data" / "README.md").read_text()
    assert f": {counted} takeovers from " in card
    assert "also have 1 infrastructure failure and 8 takeovers at incomplete points" in card
    assert "trajectories" not in card
    assert "Excluded handoff points without notes" in card
    predictions = (tmp_path / "data" / "predictions").glob("*/all_preds.jsonl")
    assert sum(len(file.read_text().splitlines()) for file in predictions) == counted


@pytest.mark.parametrize("field", ["point", "patch", "predecessor"])
@pytest.mark.parametrize("value", ["absent", None])
def test_a_row_without_a_field_is_named_and_nothing_is_written(
    published_rows: Path, tmp_path: Path, field: str, value: str | None
) -> None:
    out = tmp_path / "data"

    def change(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, field: None} if value is None else {k: v for k, v in row.items() if k != field}

    rewrite_rows(published_rows, change)
    done = publish(published_rows, out)
    assert_refused(done, f"is graded, but has no {field!r}")
    assert f"{published_rows}: takeovers row " in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["published"]


@pytest.mark.parametrize(
    ("stage", "field"), [(stage, field) for stage, model in STAGES.items() for field in model.result_fields]
)
@pytest.mark.parametrize("value", ["absent", None])
def test_a_result_without_a_field_of_all_results_is_named(
    published_rows: Path, tmp_path: Path, run_report: RunCommand, stage: str, field: str, value: str | None
) -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, field: None} if value is None else {k: v for k, v in row.items() if k != field}

    rewrite_rows(published_rows, change, stage)
    for done in (publish(published_rows, tmp_path / "data"), run_report(published_rows)):
        assert_refused(done, f"{published_rows / stage}.jsonl: row ")
        assert f"({stage}) has no field {field!r}" in done.stderr


def test_a_fraction_in_a_count_is_named(published_rows: Path, tmp_path: Path) -> None:
    rewrite_rows(published_rows, lambda row: row | {"steps": 1.5})
    done = publish(published_rows, tmp_path / "data")
    assert_refused(done, "row 1 (takeovers) has the field 'steps' 1.5: input should be a valid integer")
    assert not (tmp_path / "data").exists()


def test_the_page_of_columns_matches_the_code() -> None:
    page = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    assert format_page() == page, (
        "python -m langgraph_takeover.evals.reports.tables.table_files >docs/columns.md"
    )


@pytest.fixture(scope="module")
def dataset(complete_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "dataset"
    done = call_main(main, complete_run, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "4 tables, 21 prediction files, 37 trajectories" in done.stdout
    return out


@pytest.mark.slow
def test_the_folder_loads_as_a_dataset(dataset: Path, complete_run: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    for name in ("takeovers", "predecessors", "labels", "notes"):
        table = load_dataset(str(dataset), name, split="train", cache_dir=str(tmp_path))
        assert len(table) == len(read_rows(complete_run, name))
    loaded = load_dataset(str(dataset), "takeovers", split="train", cache_dir=str(tmp_path))
    key = ("record_id", "view", "successor", "repeat")
    (first,) = [row for row in read_rows(complete_run) if all(row[name] == loaded[0][name] for name in key)]
    assert loaded[0]["patch"] == first["patch"]
    assert json.loads(loaded[0]["rediscovery"]) == first["rediscovery"]
    assert set(loaded["other_fields"]) == {None}


@pytest.mark.slow
def test_swebench_reads_the_predictions(dataset: Path, complete_run: Path) -> None:
    from swebench.harness.utils import get_predictions_from_file

    files = sorted((dataset / "predictions").glob("*/all_preds.jsonl"))
    taken = {row["task_id"] for row in read_rows(complete_run)}
    for file in files:
        predictions = get_predictions_from_file(str(file), "none", "test")
        ids = [one["instance_id"] for one in predictions]
        assert len(set(ids)) == len(ids)
        assert set(ids) <= taken
        assert all(one["model_patch"].startswith("diff --git") for one in predictions)


@pytest.mark.slow
def test_trajectories_link_a_predecessor_with_its_takeovers(dataset: Path) -> None:
    documents = {path.stem: json.loads(path.read_text()) for path in (dataset / "trajectories").iterdir()}
    assert json.dumps(documents["galley__galley-31"]).count("galley__galley-31.first_source_edit.trace") >= 1


@pytest.mark.slow
def test_the_card_names_data_without_an_llm(dataset: Path) -> None:
    card = (dataset / "README.md").read_text()
    assert "35 takeovers from 5 handoff" in card
    assert "No LLM: builtin:oracle" in card


@pytest.mark.slow
def test_usage_errors(complete_run: Path, dataset: Path, tmp_path: Path) -> None:
    assert_refused(call_main(main, complete_run, "--out", dataset), "already exists (use a new directory)")
    assert_refused(
        call_main(main, tmp_path, "--out", tmp_path / "new"),
        "not the directory of a run: config.json not found",
    )
    unfinished = tmp_path / "begun"
    unfinished.mkdir()
    shutil.copy(complete_run / "config.json", unfinished)
    (unfinished / "takeovers.jsonl").touch()
    assert_refused(call_main(main, unfinished, "--out", tmp_path / "new"), "no completed row to publish")
    assert not (tmp_path / "new").exists()
