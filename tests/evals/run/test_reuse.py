"""Which settings of an earlier run a later one must share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.models import ORACLE, ModelEntry
from langgraph_takeover.evals.run.journal import JOURNAL_FILE
from langgraph_takeover.evals.run.reuse import check_source
from langgraph_takeover.evals.run.settings.config import RunConfig, RunUsageError
from langgraph_takeover.evals.tasks import BUNDLED


@pytest.mark.parametrize(
    ("predecessor", "changed", "difference"),
    [
        (ORACLE, {"condense": True, "window_tokens": 9000}, ""),
        ("openai:m", {}, ""),
        ("openai:m", {"condense": True}, "ran with --condense False, this run has True"),
        ("openai:m", {"window_tokens": 9000}, "ran with --window-tokens None, this run has 9000"),
        ("known", {"window_tokens": 9000}, ""),
        ("known", {"condense": True}, "ran with --condense False"),
    ],
)
def test_the_window_matters_to_the_conversations_of_llms(
    predecessor: str, changed: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    config = RunConfig(
        run_id="a",
        views=("repository",),
        predecessors=(predecessor,),
        successors=("openai:m",),
        tasks=BUNDLED,
        models={"known": ModelEntry(model="m", window=5000)},
        sandbox="host",
    )
    config.save(tmp_path)
    (tmp_path / JOURNAL_FILE).touch()
    later = config.model_copy(update={"records_of": str(tmp_path), **changed})
    if not difference:
        check_source(later)
        return
    with pytest.raises(RunUsageError) as raised:
        check_source(later)
    assert difference in str(raised.value)
