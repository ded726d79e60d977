"""The settings of a run that follow from others."""

from __future__ import annotations

import pytest

from langgraph_takeover.evals.run.settings.config import RunConfig


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
