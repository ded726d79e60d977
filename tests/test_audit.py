"""The audit against the sources: what it names exists, and its counts are those of its tables."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "audit.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| ([a-z ]+) \| (.*?) \| ?(.*?) ?\|$", PAGE, re.MULTILINE)


def test_every_requirement_has_a_known_status() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, len(ROWS) + 1))
    known = {"met", "met differently", "declined", "open"}
    assert {status for _, _, status, *_ in ROWS} <= known
    stated = dict(re.findall(r"^\| (met|met differently|declined|open|all) \| (\d+) \|$", PAGE, re.MULTILINE))
    counted = Counter(status for _, _, status, *_ in ROWS)
    assert stated == {
        **{status: str(counted[status]) for status in known if counted[status]},
        "all": str(len(ROWS)),
    }


def test_every_requirement_that_is_not_simply_met_has_a_reason() -> None:
    assert [number for number, _, status, _, reason in ROWS if status != "met" and not reason] == []
    sections = {
        status: re.findall(r"^- No\. (\d+) ", part, re.MULTILINE)
        for status, part in re.findall(
            r"^## (Declined|Met differently|Open)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S
        )
    }
    for status, listed in sections.items():
        assert listed == [number for number, _, each, *_ in ROWS if each == status.lower()]


def test_what_the_requirements_name_exists() -> None:
    for number, _, status, where, _ in ROWS:
        text = ""
        for name in re.findall(r"`([^`]+)`", where):
            if "/" in name or "." in name:
                path = ROOT / name
                assert path.exists(), f"no. {number}: {name}"
                text = path.read_text() if path.is_file() else ""
            else:
                pattern = rf"\b{re.escape(name)}\b"
                assert re.search(pattern, text), f"no. {number}: {name} is not in the file named before it"
        if status == "met":
            assert where, f"no. {number}"
