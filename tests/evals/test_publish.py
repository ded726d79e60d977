from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from langgraph_takeover.evals.publish import main

from .conftest import assert_refused, call_main, read_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(complete_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "dataset"
    done = call_main(main, complete_run, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "4 tables, 21 prediction files, 37 trajectories" in done.stdout
    return out


def test_the_folder_loads_as_a_dataset(dataset: Path, complete_run: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    for name in ("takeovers", "predecessors", "labels", "notes"):
        table = load_dataset(str(dataset), name, split="train", cache_dir=str(tmp_path))
        assert len(table) == len(read_rows(complete_run, name))
    loaded = load_dataset(str(dataset), "takeovers", split="train", cache_dir=str(tmp_path))
    first = read_rows(complete_run)[0]
    assert loaded[0]["patch"] == first["patch"]
    assert json.loads(loaded[0]["rediscovery"]) == first["rediscovery"]


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


def test_trajectories_link_a_predecessor_with_its_takeovers(dataset: Path) -> None:
    documents = {path.stem: json.loads(path.read_text()) for path in (dataset / "trajectories").iterdir()}
    assert json.dumps(documents["galley__galley-31"]).count("galley__galley-31.first_source_edit.trace") >= 1


def test_the_card_names_data_without_an_llm(dataset: Path) -> None:
    card = (dataset / "README.md").read_text()
    assert "35 takeovers from 5 handoff" in card
    assert "No LLM: builtin:oracle" in card


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
