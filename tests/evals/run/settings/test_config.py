"""The settings of a run that follow from others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from langgraph_takeover.evals.run.settings.config import RunConfig, RunUsageError, load_config


@pytest.mark.parametrize(
    ("predecessor", "notes_model", "writer"),
    [
        ("openai:a", None, "openai:a"),  # as in the paper: the predecessor's model writes its notes
        ("replay:run.json", None, "openai:s"),
        ("openai:a", "openai:n", "openai:n"),
    ],
)
def test_the_predecessor_s_model_writes_the_notes(
    predecessor: str, notes_model: str | None, writer: str
) -> None:
    config = RunConfig(
        run_id="r",
        views=("repository", "summary"),
        predecessors=(predecessor,),
        successors=("openai:s",),
        notes_model=notes_model,
        tasks="bundled",
        sandbox="host",
    )
    assert config.choose_writer(predecessor) == writer


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (None, r"schema version 1, which version 0\.1 reads; .* reads only 2 \(start a new run"),
        (3, r"schema version 3, which a newer version wrote; .* reads only 2 \(update the program\)"),
    ],
)
def test_a_run_of_another_version_is_refused_in_one_line(
    tmp_path: Path, version: int | None, says: str
) -> None:
    settings = {"run_id": "a", "views": [], "predecessors": ["a"], "unknown": 1}
    (tmp_path / "config.json").write_text(
        json.dumps(settings | ({} if version is None else {"schema_version": version}))
    )
    with pytest.raises(RunUsageError, match=f"{tmp_path}/config.json: {says}") as caught:
        load_config(tmp_path)
    assert "\n" not in str(caught.value)
