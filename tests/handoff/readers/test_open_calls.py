"""A result belongs to the nearest open call with its id, in every reader, because endpoints use ids again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from langgraph_takeover.handoff.interop.live_detection import detect_points
from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.recordings.tool_calls import CallStep, OpenCalls, match_results
from langgraph_takeover.handoff.trace.events import Trace

from .session_rows import (
    Row,
    atif_call,
    atif_document,
    atif_results,
    atif_step,
    claude_call,
    claude_result,
    claude_rows,
    codex_call,
    codex_request,
    codex_result,
    list_observations,
    list_points,
    list_texts,
    opencode_call,
    opencode_session,
    text_part,
)

Turn = list[tuple[str, str, int | None]]
"""Id, command and exit code of each call of a reply; None without a result."""
TURNS: list[Turn] = [
    [("bash:0", "sed -i s/a/b/ src/core.py", 0)],
    [("bash:0", "python -m pytest -q", 1), ("bash:1", "ls", 0)],
    [("bash:0", "cat src/core.py", None)],
    [("bash:0", "sed -i s/b/c/ src/core.py", 0)],
    [("bash:0", "python -m pytest -q", 0)],
]


def print_result(command: str, code: int) -> str:
    summary = ("2 passed in 1s" if code == 0 else "1 failed in 1s") if "pytest" in command else ""
    return f"{summary}\nexit code {code}"


def list_results(turn: Turn) -> list[tuple[str, str, int]]:
    """Id, text and exit code of each result of a reply."""
    return [(name, print_result(command, code), code) for name, command, code in turn if code is not None]


def write_mini(turns: list[Turn]) -> Any:
    messages: list[Row] = []
    for turn in turns:
        actions = [{"command": command, "tool_call_id": name} for name, command, _ in turn]
        messages.append({"role": "assistant", "content": "", "extra": {"actions": actions}})
        messages += [
            {"role": "tool", "tool_call_id": name, "content": text, "extra": {"returncode": code, "raw_output": text}}
            for name, text, code in list_results(turn)
        ]  # fmt: skip
    return {"trajectory_format": "mini-swe-agent-1.1", "messages": messages}


def write_openhands(turns: list[Turn]) -> Any:
    rows: list[Row] = []
    for number, turn in enumerate(turns):
        rows += [
            {"kind": "ActionEvent", "tool_name": "terminal", "tool_call_id": name, "action": {"command": command},
             "id": f"e{number}.{name}", "llm_response_id": f"r{number}"}
            for name, command, _ in turn
        ]  # fmt: skip
        rows += [
            {"kind": "ObservationEvent", "tool_call_id": name, "action_id": f"e{number}.{name}",
             "observation": {"content": text, "metadata": {"exit_code": code}}}
            for name, text, code in list_results(turn)
        ]  # fmt: skip
    return rows


def write_langchain(turns: list[Turn]) -> Any:
    messages: list[Row] = []
    for turn in turns:
        calls = [{"name": "bash", "args": {"command": command}, "id": name} for name, command, _ in turn]
        messages.append({"type": "ai", "content": "", "tool_calls": calls})
        results = list_results(turn)
        messages += [{"type": "tool", "tool_call_id": name, "content": text} for name, text, _ in results]
    return messages


def write_codex(turns: list[Turn]) -> Any:
    rows: list[Row] = []
    for turn in turns:
        rows += [codex_call(name, "shell", command=command) for name, command, _ in turn]
        head = "Exit code: {}\nWall time: 1 seconds\nOutput:\n{}"
        rows += [codex_result(name, head.format(code, text)) for name, text, code in list_results(turn)]
        rows.append(codex_request("Go on."))
    return rows


def write_openhands_v0(turns: list[Turn]) -> Any:
    events: list[Row] = []
    for turn in turns:
        for name, command, code in turn:
            events.append({"id": name, "action": "run", "args": {"command": command}})
            if code is not None:
                events.append({"cause": name, "observation": "run", "content": print_result(command, code),
                               "extras": {"metadata": {"exit_code": code}}})  # fmt: skip
    return {"history": events}


WRITERS = (write_mini, write_openhands, write_openhands_v0, write_langchain, write_codex)


def find_live_points(messages: Any) -> list[tuple[str, int]]:
    return [(each.kind, each.event_index) for each in detect_points(messages, workspace="/testbed")]


def find_points(messages: Any) -> list[tuple[str, int]]:
    steps = annotate_steps(parse_trace(messages))
    return [(each.kind, each.event_index) for step in steps for each in step.points]


def expect_codes(turns: list[Turn]) -> list[tuple[str, int | None]]:
    return [(command, code) for turn in turns for _, command, code in turn]


def list_codes(trace: Trace) -> list[tuple[str, int | None]]:
    codes: list[tuple[str, int | None]] = []
    for event in trace.events:
        if event.kind == "action":
            codes.append((event.arguments["command"], None))
        else:
            codes[-1] = (codes[-1][0], event.exit_code)
    return codes


@pytest.mark.parametrize("write", WRITERS)
def test_ids_that_begin_again_in_each_reply(write: Callable[[list[Turn]], Any]) -> None:
    trace = parse_trace(write(TURNS))
    assert list_codes(trace) == expect_codes(TURNS)
    outcomes = [step.validation.outcome for step in annotate_steps(trace) if step.validation]
    assert outcomes == ["failed", "passed"]
    assert [*list_points(trace)] == ["first_source_edit", "first_validation", "first_post_failure_edit"]


def test_live_detection_pairs_like_the_reader() -> None:
    turns = [turn for turn in TURNS if turn[0][2] is not None]
    twice = [[("0", "sed -i s/a/b/ src/core.py", 0), ("0", "python -m pytest -q", 1)], *turns]
    messages = write_langchain(twice)
    assert find_live_points(messages) == find_points(messages)


def drop_ids(turns: list[Turn]) -> list[Any]:
    return [[(None, command, code) for _, command, code in turn if code is not None] for turn in turns]


@pytest.mark.parametrize("write", [write_mini, write_langchain])
def test_calls_and_results_without_ids(write: Callable[[list[Turn]], Any]) -> None:
    turns = drop_ids(TURNS)
    assert list_codes(parse_trace(write(turns))) == expect_codes(turns)


@pytest.mark.parametrize("key", ["none", "calls", "other"])
def test_live_detection_matches_results_with_other_ids(key: str) -> None:
    messages = write_langchain([turn for turn in TURNS if turn[0][2] is not None])
    for message in messages:
        if message["type"] == "tool":
            message["tool_call_id"] = f"call_{message['tool_call_id']}" if key == "other" else None
        elif key == "none":
            for call in message["tool_calls"]:
                call["id"] = None
    assert find_live_points(messages) == find_points(messages)
    assert len(find_points(messages)) == 3


def write_anthropic(turns: list[Turn]) -> Any:
    messages: list[Row] = []
    for turn in turns:
        calls = [claude_call(name, "bash", command=command) for name, command, _ in turn]
        results = [part for name, text, _ in list_results(turn) for part in claude_result(name, text)]
        messages.append({"role": "assistant", "content": calls})
        messages.append({"role": "user", "content": [*results, text_part("Go on.")]})
    return messages


def test_results_of_anthropic_are_parts_of_a_users_message() -> None:
    trace = parse_trace(write_anthropic(TURNS))
    assert list_codes(trace) == expect_codes(TURNS)
    assert trace.task == "Go on."
    assert find_live_points(write_anthropic(TURNS[3:])) == [("first_source_edit", 1), ("first_validation", 3)]


def test_event_ids_of_openhands_that_begin_again() -> None:
    rows = write_openhands(TURNS)
    for row in rows:
        for key in ("id", "action_id"):
            row |= {key: row[key].partition(".")[2]} if key in row else {}
    assert list_codes(parse_trace(rows)) == expect_codes(TURNS)


def test_an_openhands_endpoint_with_one_response_id() -> None:
    turns: list[Turn] = [[("bash:0", "sleep 9", None), ("bash:1", "ls", 0)], *TURNS[3:]]
    rows = [
        {name: value for name, value in row.items() if name != "action_id"} | {"llm_response_id": "r"}
        for row in write_openhands(turns)
    ]
    assert list_codes(parse_trace(rows)) == expect_codes(turns)


@pytest.mark.parametrize("write", [write_openhands, write_openhands_v0])
def test_copies_of_earlier_events_are_read_once(write: Callable[[list[Turn]], Any]) -> None:
    data = write(TURNS)
    rows = data["history"] if isinstance(data, dict) else data
    for number, row in enumerate(rows):
        row |= {"timestamp": str(number), "id": row.get("id", f"o{number}")}
    whole = parse_trace(data)
    assert parse_trace({"history": rows[:4] + rows} if isinstance(data, dict) else rows[:4] + rows) == whole


def test_states_of_openhands_answer_no_action() -> None:
    rows = [
        {"action": "run", "args": {"command": "ls"}, "id": 1},
        {"observation": "agent_state_changed", "cause": None},
    ]
    assert list_codes(parse_trace({"history": rows})) == [("ls", None)]


def test_a_claude_endpoint_with_one_message_id() -> None:
    contents: list[Any] = []
    for turn in TURNS:
        contents += [claude_call(name, command=command) for name, command, _ in turn]
        contents += [
            claude_result(name, f"Exit code {code}\n{text}") for name, text, code in list_results(turn)
        ]
        contents.append("Go on.")
    rows = claude_rows(*contents)
    for row in rows:
        row["message"]["id"] = "m"
    assert list_codes(parse_trace(rows)) == expect_codes(TURNS)


def test_a_part_of_opencode_has_its_own_result() -> None:
    data = opencode_session(
        opencode_call("bash", "0", input={"command": "sleep 9"}, status="running"),
        opencode_call(
            "bash", "0", input={"command": "ls"}, status="completed", output="a", metadata={"exit": 0}
        ),
    )
    assert list_codes(parse_trace(data)) == [("sleep 9", None), ("ls", 0)]


def test_an_error_event_of_openhands_answers_its_own_call() -> None:
    error = {"kind": "AgentErrorEvent", "tool_call_id": "bash:0", "error": "Missing parameter: command"}
    rows = write_openhands([[("bash:0", "ls", 0)], [("bash:0", "pwd", None)]])
    trace = parse_trace([*rows, error])
    assert [(e.text, e.refused) for e in list_observations(trace)] == [
        ("\nexit code 0", False), ("Missing parameter: command", True),
    ]  # fmt: skip


def test_a_result_by_position_is_not_that_of_another_call() -> None:
    trace = parse_trace(write_mini([[("a", "pytest -q", None), ("b", "ls", 0)]]))
    assert list_codes(trace) == [("pytest -q", None), ("ls", 0)]


def bash(command: str, call_id: str = "0") -> Row:
    return atif_call("bash", call_id, command=command)


@pytest.mark.parametrize(
    ("steps", "results"),
    [
        ([atif_step([bash("a"), bash("b")], atif_results(("0", "of a"), ("0", "of b"), ("0", "more")))],
         ["of a", "of b\n\nmore"]),
        ([atif_step([bash("a", "a"), bash("b", "b")], {}),
          atif_step([], atif_results(("b", "of b"), ("a", "of a")), "system")],
         ["of a", "of b"]),
        ([atif_step([bash("a", "fc_a"), bash("b", "fc_b")], atif_results(("call_a", "of a"), ("call_b", "of b")))],
         ["of a", "of b"]),
    ],
    ids=["one id", "parallel calls answered in a later step", "other ids"],
)  # fmt: skip
def test_results_of_atif(steps: list[Row], results: list[str]) -> None:
    assert list_texts(parse_trace(atif_document(*steps))) == results


def test_results_of_atif_in_a_later_step() -> None:
    trace = parse_trace(
        atif_document(
            atif_step([bash("a")], {}),
            atif_step([], atif_results(("0", "of a")), "system"),
            atif_step([bash("b")], {}),
            atif_step([bash("c")], atif_results(("0", "of c"))),
        )
    )
    found = [event.arguments.get("command", event.text) for event in trace.events]
    assert found == ["a", "of a", "b", "c", "of c"]


CALL, RESULT = (lambda name, n: CallStep(name, call=n)), (lambda name, n: CallStep(name, result=n))


@pytest.mark.parametrize(
    ("steps", "matched"),
    [
        ([RESULT("a", 9), CALL("a", 0)], {0: 9}),
        ([RESULT("a", 8), CALL("a", 0), RESULT("a", 9)], {0: 9}),
        ([RESULT("a", 9), CALL("a", 0), CallStep(None), CALL("a", 1)], {}),
        ([CALL("a", 0), RESULT("a", 8), RESULT("a", 9)], {0: 8}),
        ([CALL("a", 0), CALL("b", 1), CallStep(None), CALL("c", 2), RESULT("a", 9)], {0: 9}),
        ([CALL("a", 0), CallStep(None), CALL("a", 1), RESULT("a", 8), RESULT("a", 9)], {1: 8}),
        ([CALL("a", 0), CallStep(None), CALL("a", 1), CallStep("a", call=0, result=8), RESULT("a", 9)], {0: 8, 1: 9}),
        # Some endpoints leave the ids out, and some programs write ids of another kind into the results.
        ([CALL(None, 0), RESULT(None, 9), RESULT("b", 8)], {0: 9}),
        ([CALL(None, 0), CALL(None, 1), RESULT(None, 8), CallStep(None), CALL(None, 2), RESULT(None, 9)], {0: 8, 2: 9}),
        ([CALL("a", 0), CALL("b", 1), RESULT(None, 8), RESULT("b", 9)], {0: 8, 1: 9}),
        ([CALL("fc_1", 0), CALL("fc_2", 1), RESULT("call_1", 8), RESULT("call_2", 9)], {0: 8, 1: 9}),
        ([CALL("fc_1", 0), CALL("fc_2", 1), RESULT("call_2", 9)], {}),
        ([CALL("a", 0), CallStep(None), CALL("b", 1), RESULT("b", 8), RESULT("b", 9)], {1: 8}),
    ],
)  # fmt: skip
def test_matching(steps: list[CallStep], matched: dict[int, int]) -> None:
    assert match_results(steps) == matched


def test_open_calls_of_one_reply_are_answered_in_order() -> None:
    calls = OpenCalls()
    calls.add("a", 0)
    calls.add("a", 1)
    assert [calls.find("a"), calls.close("a"), calls.close("a"), calls.close("a")] == [0, 0, 1, None]
