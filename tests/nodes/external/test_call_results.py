"""Results of an agent's calls; exit codes that only its output has."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.nodes.external.call_results import CallReader
from langgraph_takeover.nodes.external.conversation import add_exit_codes
from langgraph_takeover.nodes.state import AgentState

_CALLS = {"call_1": "false", "call_2": "true", "call_3": "cat a"}
_SHOWN = [ToolMessage("", tool_call_id="call_1"), ToolMessage("text", tool_call_id="call_2")]


def make_reply(tool: str) -> AIMessage:
    calls = [{"name": tool, "args": {"command": command}, "id": name} for name, command in _CALLS.items()]
    return AIMessage("", tool_calls=calls)


def test_printed_exit_codes_complete_the_results() -> None:
    reader = CallReader(ADAPTERS["opencode"], lambda: {"call_1": 1, "call_2": 0, "call_9": 7})
    results = reader.read(make_reply("bash"), _SHOWN)
    assert [(each.call_id, each.exit_code) for each in results] == [
        ("call_1", 1), ("call_2", 0), ("call_3", None),
    ]  # fmt: skip
    assert [each.arguments["command"] for each in results] == list(_CALLS.values())


def test_shown_exit_codes_are_kept() -> None:
    def fail() -> dict[str, int]:
        pytest.fail("the output is read although the results show exit codes")

    shown = [ToolMessage("Exit code 3\nno", tool_call_id="call_1", status="error"), *_SHOWN[1:]]
    results = CallReader(ADAPTERS["claude-code"], fail).read(make_reply("Bash"), shown)
    assert [each.exit_code for each in results] == [3, 0, None]


def test_output_is_not_read_for_other_tools() -> None:
    reader = CallReader(ADAPTERS["opencode"], lambda: dict.fromkeys(_CALLS, 7))
    results = reader.read(make_reply("glob"), _SHOWN)
    assert {each.exit_code for each in results} == {None}


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_reused_id_has_the_result_of_its_own_call(is_answered: bool) -> None:
    """Endpoints begin the ids of calls anew in each reply."""
    calls = [{"name": "Bash", "args": {"command": "pytest"}, "id": "bash:0"}]
    reply = AIMessage("", tool_calls=calls)
    earlier = [AIMessage("", tool_calls=calls), ToolMessage("2 passed", tool_call_id="bash:0"), reply]
    later = [ToolMessage("Exit code 1\n1 failed", tool_call_id="bash:0", status="error")]
    shown = [*earlier, *(later if is_answered else [])]
    (result,) = CallReader(ADAPTERS["claude-code"], dict).read(reply, shown)
    expected = ("Exit code 1\n1 failed", 1) if is_answered else ("", None)
    assert (result.text, result.exit_code) == expected


def test_parallel_calls_written_as_several_replies() -> None:
    calls = [{"name": "Bash", "args": {"command": each}, "id": each} for each in ("a", "b")]
    earlier, first, second = (
        AIMessage("", tool_calls=calls),
        *(AIMessage("", tool_calls=[each]) for each in calls),
    )
    shown = [earlier, ToolMessage("old", tool_call_id="a"), ToolMessage("old", tool_call_id="b")]
    shown += [first, ToolMessage("of a", tool_call_id="a"), second, ToolMessage("of b", tool_call_id="b")]
    results = CallReader(ADAPTERS["claude-code"], dict).read(earlier, shown)
    assert [each.text for each in results] == ["of a", "of b"]


def test_artifacts_of_reused_ids() -> None:
    stored = [ToolMessage("", tool_call_id="bash:0", artifact=code) for code in (7, 1, None, 0)]
    shown = [ToolMessage("", tool_call_id="bash:0") for _ in stored[1:]]
    completed = add_exit_codes(shown, AgentState(messages=stored))
    assert [each.artifact for each in completed if isinstance(each, ToolMessage)] == [1, None, 0]
