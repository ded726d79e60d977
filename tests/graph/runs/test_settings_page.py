"""The published table of settings is that of the code, and complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

from langgraph_takeover.graph.runs.api import AgentRunOptions, DeliveryOptions, TeamRunOptions
from langgraph_takeover.graph.runs.settings_page import format_page

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
ROWS = [row.split(" | ") for row in re.findall(r"^\| (`\w+` \| .*) \|$", PAGE, re.MULTILINE)]


def test_the_page_matches_the_code() -> None:
    assert format_page() == PAGE, "python -m langgraph_takeover.graph.runs.settings_page >docs/settings.md"


def test_every_keyword_argument_is_listed() -> None:
    listed = {row[0].strip("`") for row in ROWS}
    for options in (AgentRunOptions, DeliveryOptions, TeamRunOptions):
        assert get_type_hints(options).keys() <= listed


def test_every_setting_has_type_unit_default_and_meaning() -> None:
    assert len(ROWS) > 60
    for name, kind, unit, default, meaning in ROWS:
        is_number = kind.startswith(("integer", "number"))
        assert is_number == (unit != "–"), name
        assert default, name
        assert re.fullmatch(r"[`A-Z].*\.", meaning), name
    assert ["`memory_mb`", "integer > 0", "MiB", "4,096"] in [row[:4] for row in ROWS]
    assert ["`max_seconds`", "number > 0", "seconds", "14,400"] in [row[:4] for row in ROWS]
