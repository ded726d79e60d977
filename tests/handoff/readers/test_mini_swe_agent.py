"""Observations of mini-swe-agent, as its configurations write them."""

from __future__ import annotations

import json

import pytest

from langgraph_takeover.handoff.agents.mini_swe_agent import parse_result
from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.points.outcomes import judge_output
from langgraph_takeover.handoff.readers import parse_trace

from .session_rows import list_observations, mini_result

TIMED_OUT = "timed out after 30 seconds"


@pytest.mark.parametrize(
    ("fields", "output", "exit_code", "timed_out"),
    [
        ({"returncode": 0, "output": "a\nb\n"}, "a\nb\n", 0, False),
        ({"returncode": 3, "output": ""}, "", 3, False),
        ({"returncode": -1, "output": "", "exception_info": f"Command 'x' {TIMED_OUT}"}, "", None, True),
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


@pytest.mark.parametrize(
    ("summary", "code", "outcome"), [("2 passed in 1s", 0, "passed"), ("1 failed in 1s", 1, "failed")]
)
@pytest.mark.parametrize("form", ["whole", "cut", "codex"])
def test_a_result_in_json_has_the_verdict_of_its_output(
    summary: str, code: int, outcome: str, form: str
) -> None:
    """As the default configuration shows results, and as old versions of Codex did."""
    output = f"....\n\x1b[32m{summary}\x1b[0m\n"
    fields: dict[str, object] = {"returncode": code, "output": output}
    if form == "cut":
        fields = {"returncode": code, "output_head": "....", "output_tail": output, "elided_chars": 9}
    if form == "codex":
        fields = {"output": output, "metadata": {"exit_code": code, "duration_seconds": 0.1}}
    text = json.dumps(fields, indent=2)
    assert judge_output("python -m pytest -q", text, code) == outcome
    message = {"role": "tool", "tool_call_id": "0", "content": text}
    action = {"command": "python -m pytest -q", "tool_call_id": "0"}
    call = {"role": "assistant", "content": "", "extra": {"actions": [action]}}
    trace = parse_trace({"trajectory_format": "mini-swe-agent-1.1", "messages": [call, message]})
    (run,) = [step.validation for step in annotate_steps(trace) if step.validation]
    assert run.outcome == outcome


def test_output_that_is_json_is_no_result() -> None:
    text = '{"returncode": 0}\n1 failed in 1s'
    assert judge_output("python -m pytest -q", text, 1) == "failed"
    assert judge_output("python -m pytest -q", '{"returncode": 0, "passed": 2}', 0) == "unknown"


def test_text_commands_beside_other_fields_keep_their_results() -> None:
    messages: list[dict[str, object]] = []
    for number in range(2):
        block = f"```mswea_bash_command\necho {number}\n```"
        messages.append({"role": "assistant", "content": block, "extra": {"cost": 1}})
        messages.append(mini_result(number, f"{number}"))
    trace = parse_trace({"messages": messages})
    assert [event.exit_code for event in list_observations(trace)] == [0, 1]
