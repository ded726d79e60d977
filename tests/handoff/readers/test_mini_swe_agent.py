"""Observations of mini-swe-agent, as its configurations write them."""

from __future__ import annotations

import json

import pytest

from langgraph_takeover.handoff.readers.mini_swe_agent import parse_result


@pytest.mark.parametrize(
    ("fields", "output", "exit_code", "timed_out"),
    [
        ({"returncode": 0, "output": "a\nb\n"}, "a\nb\n", 0, False),
        ({"returncode": 3, "output": ""}, "", 3, False),
        (
            {"returncode": -1, "output": "", "exception_info": "Command 'x' timed out after 30 seconds"},
            "",
            None,
            True,
        ),
    ],
)
def test_the_default_configuration_writes_json(
    fields: dict[str, object], output: str, exit_code: int | None, timed_out: bool
) -> None:
    found = parse_result("bash", {"command": "x"}, json.dumps(fields, indent=2))
    assert (found.output, found.exit_code, found.timed_out) == (output, exit_code, timed_out)


def test_a_long_output_keeps_its_exit_code() -> None:
    text = json.dumps({"returncode": 1, "output_head": "a", "output_tail": "b", "elided_chars": 9})
    assert parse_result("bash", {}, text)[:2] == (text, 1)


@pytest.mark.parametrize(
    "text", ['{"returncode": "0", "output": ""}', '{"returncode": true}', "{", "{}", "[0]"]
)
def test_other_text_is_no_result(text: str) -> None:
    assert parse_result("bash", {}, text)[:2] == (text, None)


def test_the_benchmark_configuration_writes_tags() -> None:
    text = "<returncode>2</returncode>\n<output>\nno\n</output>"
    assert parse_result("bash", {}, text)[:2] == ("no", 2)
