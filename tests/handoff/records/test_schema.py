"""The published schema is that of the code, and an independent validator separates valid from broken records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from langgraph_takeover.handoff.records.record import NOTES_FILE, RECORD_FILE, REVIEW_FILE
from langgraph_takeover.handoff.records.schema import format_schema

from ...graph.conftest import RunHarness
from ..conftest import NAME

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docs" / "record.schema.json"
SCHEMA = json.loads(FILE.read_text())
WHOLE = Draft202012Validator(SCHEMA)


def of(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


@pytest.fixture(scope="module")
def files(copy_harness: RunHarness) -> dict[str, Any]:
    directory = copy_harness.store.directory(NAME)
    return {
        name: json.loads((directory / name).read_text()) for name in (RECORD_FILE, NOTES_FILE, REVIEW_FILE)
    }


def test_the_published_schema_matches_the_code() -> None:
    assert format_schema() == FILE.read_text(), (
        "python -m langgraph_takeover.handoff.records.schema >docs/record.schema.json"
    )
    Draft202012Validator.check_schema(SCHEMA)


def test_saved_records_are_valid(files: dict[str, Any]) -> None:
    WHOLE.validate(files[RECORD_FILE])
    of("Notes").validate(files[NOTES_FILE])
    of("Review").validate(files[REVIEW_FILE])
    WHOLE.validate(files[RECORD_FILE] | {"notes": files[NOTES_FILE], "review": files[REVIEW_FILE]})


def break_record(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in SCHEMA["required"]:
        yield {key: value for key, value in record.items() if key != name}
    yield record | {"schema_version": 0}
    yield record | {"more": 1}
    yield record | {"point": record["point"] | {"kind": "whenever"}}
    yield record | {"trace": [record["trace"][0] | {"index": -1}]}
    yield record | {"trace": [record["trace"][0] | {"changes": ["a.py"]}]}
    yield record | {"snapshot": record["snapshot"] | {"location": "../elsewhere"}}
    yield record | {"notes": {}}


def test_broken_records_are_invalid(files: dict[str, Any]) -> None:
    cases = list(break_record(files[RECORD_FILE]))
    assert [WHOLE.is_valid(case) for case in cases] == [False] * len(cases)
    assert not of("Notes").is_valid(files[NOTES_FILE] | {"summary": None})
    assert not of("Review").is_valid({"view": "nothing"})
    assert of("Review").is_valid({})


def test_the_schema_describes_its_fields() -> None:
    text = json.dumps(SCHEMA)
    assert not re.search(r"\bNone\b", text)
    assert SCHEMA["$defs"]["Event"]["properties"]["changes"]["description"].startswith("Observations only")
    assert all(definition["description"] for definition in SCHEMA["$defs"].values())
