"""A study through one models file: its entries reach every stage, a resumed run, a later study and Ray's settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.run.settings.config import load_config

from ..chat_server import ChatServer
from .conftest import ONE_POINT, RunCommand, assert_refused, isolated_sandbox_options, read_rows

KEY = "canary-0123456789-lab"
SETTINGS = """
worker:
  model: served-worker
  base_url: {url}
  api_key_env: LAB_API_KEY
  temperature: 0.3
  extra_body: {{top_k: 5}}
  max_output_tokens: 700
  window: 50000
  price: {{input: 2, output: 10, cached: 0.5}}
writer:
  model: served-writer
  base_url: {url}
  price: {{input: 1, output: 1}}
unused:
  api_key_env: OTHER_API_KEY
"""
NOTES = '{"work_completed": [{"claim": "It is half done.", "events": ["e1"]}]}'


def answer(request: dict[str, Any]) -> tuple[int, bytes]:
    if request["model"] == "served-writer":
        return ChatServer.reply(NOTES)
    return ChatServer.reply("<finish>It is done.</finish>", prompt_tokens=1000, cached_tokens=600)


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    server = ChatServer()
    server.answer = answer
    yield server
    server.close()


@pytest.fixture(scope="module")
def study(run_main: RunCommand, server: ChatServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of one point, with an entry as successor and another one as writer of notes."""
    directory = tmp_path_factory.mktemp("study")
    models, out = directory / "models.yaml", directory / "out"
    models.write_text(SETTINGS.format(url=server.url))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_API_KEY", KEY)
        done = run_main(
            *("--models", models, "--successor", "worker", "--notes-model", "writer", "--view", "structured"),
            *(*ONE_POINT, *isolated_sandbox_options(), "--out", out),
        )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert f"worker: served-worker at {server.url}, key in LAB_API_KEY" in done.stdout
    assert KEY not in done.stdout + done.stderr
    return directory


@pytest.mark.slow
def test_every_request_has_the_settings_of_its_entry(study: Path, server: ChatServer) -> None:
    by_model = {
        name: [request for request in server.requests if request["model"] == name]
        for name in ("served-worker", "served-writer")
    }
    assert all(by_model.values())
    for request in by_model["served-worker"]:
        assert (request["temperature"], request["top_k"], request["max_completion_tokens"]) == (0.3, 5, 700)
    assert {request["temperature"] for request in by_model["served-writer"]} == {0.0}
    keys = {request["model"]: key for request, key in zip(server.requests, server.keys, strict=True)}
    assert keys == {"served-worker": KEY, "served-writer": "none"}


@pytest.mark.slow
def test_rows_have_costs_and_the_window_of_the_entry(study: Path) -> None:
    rows = {row["view"]: row for row in read_rows(study / "out")}
    for row in rows.values():
        assert (row["successor"], row["window_tokens"], row["uncounted_calls"]) == ("worker", 50_000, 0)
        assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (1000, 600, 10)
        assert row["cost_usd"] == pytest.approx((400 * 2 + 600 * 0.5 + 10 * 10) / 1e6)
    (predecessor,) = read_rows(study / "out", "predecessors")
    assert (predecessor["cost_usd"], predecessor["uncounted_calls"]) == (0.0, 0)  # no LLM
    (notes,) = read_rows(study / "out", "notes")
    assert (notes["model"], notes["llm_calls"], notes["cost_usd"]) == ("writer", 1, pytest.approx(110e-6))
    summary = json.loads((study / "out" / "summary.json").read_text())
    assert summary["costs"]["all"]["cost_usd"] == pytest.approx(2 * 1.2e-3 + 110e-6)
    assert summary["views"]["structured"]["cost_usd"] == pytest.approx(1.2e-3)


@pytest.mark.slow
def test_the_run_keeps_the_entries_that_it_uses_without_a_key(study: Path) -> None:
    config = load_config(study / "out")
    assert list(config.models) == ["worker", "writer"]
    assert config.models["worker"].api_key_env == "LAB_API_KEY"
    files = [path for path in study.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.cases(1)
def test_a_changed_models_file_is_refused_with_the_difference(
    study: Path, run_main: RunCommand, tmp_path: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_API_KEY", KEY)
    out = study / "out"
    text = SETTINGS.format(url=server.url)
    for old, new, difference in (
        ("temperature: 0.3", "temperature: 0.9", "worker: temperature was 0.3, now 0.9"),
        ("window: 50000", "window: 60000", "worker: window was 50000, now 60000"),
        ("writer:", "author:", "it has no entry writer"),
    ):
        changed = tmp_path / "changed.yaml"
        changed.write_text(text.replace(old, new))
        done = run_main("--resume", "--out", out, "--models", changed)
        assert_refused(done, f"--models: not the file of this run: {difference} (omit the option to resume)")
    before = len(server.requests)
    same = run_main("--resume", "--out", out, "--models", study / "models.yaml")
    assert same.returncode == 0, same.stderr
    assert run_main("--resume", "--out", out).returncode == 0
    assert len(server.requests) == before


def test_a_missing_key_is_found_before_work(
    study: Path, run_main: RunCommand, tmp_path: Path, server: ChatServer
) -> None:
    before = len(server.requests)
    arguments = (
        "--models",
        study / "models.yaml",
        "--task-ids",
        "galley__galley-31",
        *isolated_sandbox_options(),
    )
    done = run_main(*arguments, "--model", "worker", "--out", tmp_path / "out")
    assert_refused(
        done, "worker: LAB_API_KEY is not set (its api_key_env in --models; set the variable before the run)"
    )
    assert_refused(run_main("--resume", "--out", study / "out"), "worker: LAB_API_KEY is not set")
    wanted = run_main(*arguments, "--model", "unused", "--dry-run", "--out", tmp_path / "out")
    assert "The run cannot start yet: unused: OTHER_API_KEY is not set" in wanted.stdout
    assert not (tmp_path / "out").exists()
    assert len(server.requests) == before


@pytest.mark.slow
def test_a_later_study_has_the_entries_of_the_one_that_it_reuses(
    study: Path, run_main: RunCommand, tmp_path: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_API_KEY", KEY)
    before = len([request for request in server.requests if request["model"] == "served-writer"])
    arguments = (
        "--from",
        study / "out",
        "--successor",
        "worker",
        "--notes-model",
        "writer",
        "--view",
        "structured",
    )
    out = tmp_path / "later"
    done = run_main(*arguments, *ONE_POINT, *isolated_sandbox_options(), "--repeats", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    assert load_config(out).models == load_config(study / "out").models
    assert [row["cost_usd"] for row in read_rows(out)] == [pytest.approx(1.2e-3)] * 4
    assert len([request for request in server.requests if request["model"] == "served-writer"]) == before


def test_a_predecessor_of_another_entry_is_not_reused(
    study: Path, run_main: RunCommand, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(study / "out", tmp_path / "source"))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"predecessors": ["worker"]}))
    models = tmp_path / "models.yaml"
    models.write_text((study / "models.yaml").read_text().replace("top_k: 5", "top_k: 6"))
    done = run_main(
        *("--from", source, "--models", models, "--predecessor", "worker", "--successor", "builtin:oracle"),
        *(*ONE_POINT, *isolated_sandbox_options(), "--out", tmp_path / "out"),
    )
    assert_refused(done, "ran with another entry worker: extra_body was {'top_k': 5}, now {'top_k': 6}")


BAD = {
    "name": (("--model", "wroker"), "unknown model 'wroker' (use openai:NAME, replay:FILE or builtin:oracle, or an entry"),
    "file": (("/nowhere.yaml",), "--models: /nowhere.yaml: no such file or directory (pass a YAML file"),
    "window": (
        ("--model", "writer", "--condense"),
        "--condense: the context window of writer is unknown (write it as window into its entry of --models, or pass",
    ),
    "no LLM": (
        ("--model", "builtin:oracle", "--condense"),
        "--condense: no model of this run is an LLM, so nothing can be condensed (omit the option)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_is_one_clear_line(study: Path, run_main: RunCommand, name: str, tmp_path: Path) -> None:
    arguments, message = BAD[name]
    done = run_main(
        *(
            *isolated_sandbox_options(),
            "--models",
            *(() if name == "file" else (study / "models.yaml",)),
            *arguments,
            "--out",
            tmp_path / "out",
        )
    )
    assert_refused(done, message)
    assert not (tmp_path / "out").exists()


def test_an_address_with_a_key_is_refused_before_it_is_stored(run_main: RunCommand, tmp_path: Path) -> None:
    name = "openai:m@http://me:pass-word-1@127.0.0.1:9/v1"
    done = run_main("--model", name, *isolated_sandbox_options(), "--limit", "1", "--out", tmp_path / "out")
    assert_refused(done, "openai:m@URL: has a user, a password or a query")
    assert "pass-word-1" not in done.stderr
