"""Results of an agent's calls; exit codes that only its output has."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.codex_rollouts import Payload
from langgraph_takeover.nodes.external.agent_turns import add_exit_codes
from langgraph_takeover.nodes.external.call_results import CallReader
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


def make_record(command: str, text: str, code: int) -> Payload:
    item = {
        "type": "CommandExecution",
        "id": "exec-1",
        "command": ["bash", "-lc", command],
        "exit_code": code,
    }
    return "event_msg", {"type": "item_completed", "item": {**item, "aggregated_output": text}}


@pytest.mark.parametrize(
    ("script", "items", "shown", "expected"),
    [
        ("cmd: 'make'", [("make", "ok\n", 0)], "ok", [("make", "ok", 0)]),
        ("cmd: 'make'", [("make", "a lot", 1)], "one line of it", [("make", "one line of it", 1)]),
        ("cmd: 'make'", [("b", "2", 1), ("make", "1", 0)], "12", [("make", "", 0), ("b", "12", 1)]),
        ("cmd: `make ${n}`", [("make 1", "1", 2)], "x", [("", "", None), ("make 1", "x", 2)]),
        ("cmd: 'make'", [], "x", [("make", "x", None)]),
    ],
)
def test_scripts_have_the_results_of_their_calls(
    script: str, items: list[tuple[str, str, int]], shown: str, expected: list[tuple[str, str, int | None]]
) -> None:
    call = {
        "name": "exec",
        "args": {"input": f"text(await tools.exec_command({{{script}}}))"},
        "id": "call_1",
    }
    recorded = [make_record(*each) for each in items]
    text = f"Script completed\nWall time 0.1 seconds\nOutput:\n\n{shown}"
    results = CallReader(ADAPTERS["codex"], dict).read(
        AIMessage("", tool_calls=[call]), [ToolMessage(text, tool_call_id="call_1")], lambda: recorded
    )
    assert [(each.arguments.get("command", ""), each.text, each.exit_code) for each in results] == expected
    assert [each.call_id for each in results] == ["call_1", *[""] * (len(results) - 1)]


def test_a_refused_patch_of_a_script() -> None:
    call = {"name": "exec", "args": {"input": 'await tools.apply_patch("*** Begin Patch")'}, "id": "call_1"}
    text = "Script failed\nWall time 0.0 seconds\nOutput:\n\nScript error:\napply_patch verification failed: no file"
    shown = [ToolMessage(text, tool_call_id="call_1")]
    (result,) = CallReader(ADAPTERS["codex"], dict).read(AIMessage("", tool_calls=[call]), shown)
    assert (result.refused, result.exit_code, result.text) == (True, None, text.partition("\n\n")[2])


def test_two_scripts_of_one_reply() -> None:
    calls = [
        {"name": "exec", "args": {"input": f"await tools.exec_command({{cmd: '{each}'}})"}, "id": each}
        for each in ("a", "b")
    ]
    recorded = [make_record("b", "b", 2), make_record("a", "a", 0)]
    shown = [ToolMessage(each, tool_call_id=each) for each in ("a", "b")]
    results = CallReader(ADAPTERS["codex"], dict).read(
        AIMessage("", tool_calls=calls), shown, lambda: recorded
    )
    assert [(each.call_id, each.exit_code) for each in results] == [("a", 0), ("b", 2)]
