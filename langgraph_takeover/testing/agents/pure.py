"""What every adapter promises without its program: pure members, complete accounts, sessions that cannot be escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff.agents.adapter import (
    RESUME_MESSAGE,
    AgentAdapter,
    Launch,
    NativeSession,
    is_session_id,
)
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.recordings.tool_calls import normalize_call
from langgraph_takeover.handoff.text.fence import quote_text
from langgraph_takeover.handoff.trace.conversation import History, list_steps
from langgraph_takeover.handoff.trace.events import Action, Event, Trace
from langgraph_takeover.testing.agents.histories import (
    CHANGED_SESSIONS,
    EMPTY,
    HISTORIES,
    HOSTILE_TEXTS,
    OPENING,
    ORDINARY,
    ChangedSession,
    WrittenSession,
)
from langgraph_takeover.testing.agents.wire import list_calls, read_messages

SESSION_ID = "5d2ad6ea-3b0f-4c31-9f4e-2a5f6f3a7c11"


def make_launch(**fields: Any) -> Launch:
    """Return a launch of fixed time and directories."""
    launch = Launch(
        program=("/opt/takeover/agent/bin/agent", "first argument"),
        home="/home/agent user",
        workspace="/testbed/größe",
        port=8377,
        model="vendor/model-1",
        message="Fix the bug.",
        started_at=datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    )
    return launch.model_copy(update=fields)


def read_values(session: NativeSession) -> list[Any]:
    """Return the JSON values of a session's files. Raises ValueError if a file has a line that is not JSON."""
    values: list[Any] = []
    for text in session.files.values():
        assert text.encode().decode() == text
        lines = text.split("\n") if text.count("\n") > 1 else [text]
        values += [json.loads(line) for line in lines if line]
    return values


def list_strings(value: Any) -> Iterator[str]:
    """Yield all strings of a JSON value in order; of a string that is a JSON object, those inside too."""
    if isinstance(value, str):
        yield value
        if value.startswith("{"):
            try:
                yield from list_strings(json.loads(value))
            except ValueError:
                return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from list_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from list_strings(item)


def test_contract_is_complete(adapter: AgentAdapter) -> None:
    members = {name for name in vars(AgentAdapter) if not name.startswith("_")} | set(
        AgentAdapter.__annotations__
    )
    assert [name for name in sorted(members) if not hasattr(adapter, name)] == []


def test_program_is_described(adapter: AgentAdapter) -> None:
    program = adapter.program
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,30}", adapter.name)
    assert adapter.api in ("responses", "messages", "chat")
    assert "/" not in program.executable
    versions = [tuple(map(int, text.split("."))) for text in (program.oldest, program.newest)]
    assert versions == sorted(versions)
    assert program.install


def test_members_depend_on_arguments_alone(adapter: AgentAdapter) -> None:
    launch, resumed = make_launch(), make_launch(session_id=SESSION_ID)
    for each in (launch, resumed):
        assert adapter.setup(each) == adapter.setup(each)
        assert adapter.command(each) == adapter.command(each)
    assert adapter.write_session(ORDINARY, launch) == adapter.write_session(ORDINARY, launch)
    other = make_launch(started_at=datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC))
    assert (
        adapter.write_session(ORDINARY, launch).session_id
        != adapter.write_session(ORDINARY, other).session_id
    )


def test_bridge_is_the_only_address(adapter: AgentAdapter) -> None:
    setup = adapter.setup(make_launch())
    texts = [*setup.files.values(), *setup.environment.values()]
    assert any("127.0.0.1:8377" in text for text in texts)
    addresses = {found for text in texts for found in re.findall(r"https?://([^/\s\"'`]+)", text)}
    assert addresses == {"127.0.0.1:8377"}


def test_files_stay_below_the_home_directory(adapter: AgentAdapter) -> None:
    for workspace in ("/testbed", "/a b/../../etc", "/" + "long/" * 46, "/$(touch x)/größe😀", "/"):
        for model in ("gpt-5", "../../model", 'a"b\nc', "-m"):
            launch = make_launch(workspace=workspace, model=model)
            names = [*adapter.setup(launch).files, *adapter.write_session(ORDINARY, launch).files]
            for name in names:
                path = PurePosixPath(name)
                assert not path.is_absolute()
                assert ".." not in path.parts
                assert all(len(part.encode()) < 256 and "\0" not in part for part in path.parts)


def test_session_ids_cannot_be_paths_or_globs(adapter: AgentAdapter) -> None:
    for text in ("../../etc/passwd", "*", "a/b", "-x", "[a]", "", "a\n", "a" * 1000, "ä"):
        assert adapter.session_glob(text, "/testbed") == ""
    assert SESSION_ID in adapter.session_glob(SESSION_ID, "/testbed") or not adapter.session_glob(
        SESSION_ID, "/testbed"
    )


def test_message_is_not_an_argument(adapter: AgentAdapter) -> None:
    message = "A long task.\n" * 50_000
    for session_id in (None, SESSION_ID):
        command = adapter.command(make_launch(message=message, session_id=session_id))
        assert message in command.stdin
        assert sum(map(len, command.argv)) < 10_000
        assert any("/opt/takeover/agent/bin/agent" in each for each in command.argv)
        assert any("first argument" in each for each in command.argv)


def test_resumed_command_names_the_session(adapter: AgentAdapter) -> None:
    new, resumed = adapter.command(make_launch()), adapter.command(make_launch(session_id=SESSION_ID))
    assert SESSION_ID not in " ".join(new.argv)
    assert SESSION_ID in " ".join(resumed.argv)


@pytest.mark.parametrize("history", [*HISTORIES.values(), EMPTY], ids=[*HISTORIES, "empty"])
def test_every_event_has_one_outcome(adapter: AgentAdapter, history: History) -> None:
    shown = [event.index for step in history.steps for event in step if event is not None]
    dropped = (len(shown), len(shown) + 1)
    account = adapter.write_session(history._replace(dropped=dropped), make_launch()).account
    assert sorted(each.event for each in account) == [*shown, *dropped]
    assert [each.event for each in account if each.outcome == "dropped"] == list(dropped)
    assert all(each.reason for each in account if each.outcome != "converted")


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_session_can_be_read_back(adapter: AgentAdapter, history: History) -> None:
    session = adapter.write_session(history, make_launch())
    strings = list(list_strings(read_values(session)))
    assert OPENING in strings
    outcomes = {each.event: each.outcome for each in session.account}
    position = 0
    for step in history.steps:
        if (
            step.observation is None
            or outcomes[step.observation.index] != "converted"
            or not step.observation.text
        ):
            continue
        result = quote_text(step.observation.text)
        found = (number for number in range(position, len(strings)) if result in strings[number])
        position = next(found, -1)
        assert position >= 0, "a result is missing, changed or out of order"


def test_exit_codes_are_those_of_the_history(adapter: AgentAdapter, tmp_path: Path) -> None:
    """A captured session that another agent wrote must not say that a failed or unknown command succeeded."""
    shown = (
        ("FAILED (failures=1)\n", 1),
        ("", 0),
        ("Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code 2\nOutput:\nfrom Codex\n", 2),
        ("Exit code 3\nfrom Claude Code", 3),
        ('{"returncode": 4, "output": "from mini"}', 4),
        ("printed by a script that hides its exit code\n", None),
    )
    events: list[Event] = []
    for number, (text, code) in enumerate(shown):
        arguments = {"command": f"make check-{number}"}
        events.append(Event(index=2 * number, kind="action", tool="shell", text="", arguments=arguments))
        events.append(
            Event(index=2 * number + 1, kind="observation", tool="shell", text=text, exit_code=code)
        )
    history = ORDINARY._replace(steps=tuple(list_steps(events)))
    ((name, content),) = adapter.write_session(history, make_launch()).files.items()
    path = tmp_path / PurePosixPath(name).name
    path.write_text(content)
    (trace,) = read_traces(path)
    observed = [
        (each.exit_code, each.text)
        for each in (trace.events if isinstance(trace, Trace) else ())
        if each.kind == "observation" and each.tool == "shell"
    ]
    if not observed:  # no reader for sessions of this agent
        calls = list_calls(read_messages(adapter.api, json.loads(content)))
        results = [
            adapter.read_result(each.name, each.arguments, each.result or "", is_error=False)
            for each in calls
        ]
        observed = [(each.exit_code, each.output) for each in results]
    assert [code for code, _ in observed] == [code for _, code in shown]
    for word, (_, text) in zip(("Codex", "Claude Code", "mini"), observed[2:5], strict=True):
        assert f"from {word}" in text
        assert "Chunk" not in text


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_session_lies_where_the_glob_says(adapter: AgentAdapter, history: History) -> None:
    launch = make_launch()
    session = adapter.write_session(history, launch)
    assert is_session_id(session.session_id)
    pattern = adapter.session_glob(session.session_id, launch.workspace)
    if pattern:
        assert [name for name in session.files if PurePosixPath(name).match(pattern)] == list(session.files)


def test_hostile_texts_add_no_message(adapter: AgentAdapter) -> None:
    launch = make_launch()

    def count(session: NativeSession) -> int:
        return sum(text.count("\n") for text in session.files.values())

    harmless = HISTORIES["hostile"]._replace(steps=tuple(map(_replace_texts, HISTORIES["hostile"].steps)))
    hostile = adapter.write_session(HISTORIES["hostile"], launch)
    assert count(hostile) == count(adapter.write_session(harmless, launch))
    assert "injected" not in [text for value in read_values(hostile) for text in list_strings(value)]


def _replace_texts(step: Any) -> Any:
    action = step.action.model_copy(update={"text": "text", "arguments": {"command": "text"}})
    return type(step)(action, step.observation.model_copy(update={"text": "text"}))


def test_calls_are_json(adapter: AgentAdapter) -> None:
    for text in HOSTILE_TEXTS:
        for action in (
            Action("shell", {"command": text}),
            Action("editor", {"command": "view", "path": text, "start": text, "end": "9" * 400}),
            Action("editor", {"command": "str_replace", "path": text, "old": text, "new": text}),
            Action("editor", {"command": "insert", "path": "a", "line": text, "new": text}),
            Action("editor", {}),
            Action(text, {text: text}),
        ):
            call = adapter.write_call(action, "/testbed")
            assert call is not None
            assert call == adapter.write_call(action, "/testbed")
            assert json.loads(json.dumps(dict(call.arguments))) == dict(call.arguments)


def test_calls_are_read_back(adapter: AgentAdapter) -> None:
    """What the agent does becomes events through `normalize_call`, which must know its tools and arguments."""
    for action in (
        Action("shell", {"command": "ls"}),
        Action("editor", {"command": "view", "path": "a.py"}),
        Action("editor", {"command": "view", "path": "a.py", "start": "200", "end": "300"}),
        Action("editor", {"command": "str_replace", "path": "a.py", "old": "old one", "new": "new one"}),
        Action("editor", {"command": "insert", "path": "a.py", "line": "7", "new": "new one"}),
        Action("editor", {"command": "create", "path": "a.py", "content": "new one"}),
    ):
        call = adapter.write_call(action, "/testbed")
        assert call is not None
        tool, arguments = normalize_call(call.name, call.arguments)
        assert (tool, arguments["command"]) == ("shell", "ls") or action.tool == "editor"
        assert tool in ("shell", "editor"), (
            f"{call.name} is not a known tool (write this call with the shell)"
        )
        text = " ".join(arguments.values())
        texts = [
            action.arguments[name] for name in ("path", "old", "new", "content") if name in action.arguments
        ]
        lost = [each for each in texts if each not in text]
        assert not lost, f"{dict(call.arguments)} loses {lost} (use other arguments, or the shell)"


@pytest.mark.parametrize("case", CHANGED_SESSIONS.values(), ids=CHANGED_SESSIONS)
def test_reader_loses_nothing_in_silence(adapter: AgentAdapter, case: ChangedSession, tmp_path: Path) -> None:
    """What the agent's own reader cannot read is counted, and changes nothing else."""
    call = adapter.write_call(Action("shell", {"command": "ls"}), "/testbed")
    assert call is not None
    (text,) = adapter.write_session(ORDINARY, make_launch()).files.values()
    changed = case.change(WrittenSession(text, call.name))
    if changed is None:
        pytest.skip(f"sessions of {adapter.name} have no such thing")
    case.check(_read_trace(tmp_path, text), _read_trace(tmp_path, changed))


def _read_trace(directory: Path, text: str) -> Trace:
    path = directory / "session.json"
    path.write_text(text)
    (trace,) = read_traces(path)
    assert isinstance(trace, Trace)
    return trace


def test_results_are_untrusted(adapter: AgentAdapter) -> None:
    for action in (Action("shell", {"command": "ls"}), Action("editor", {"command": "view", "path": "a"})):
        call = adapter.write_call(action, "/testbed")
        assert call is not None
        for text in (*HOSTILE_TEXTS, "", "{", "[" * 5000, "exit code: " + "9" * 5000, "x" * 1_000_000):
            calls: list[tuple[str, dict[str, Any]]] = [
                (call.name, dict(call.arguments)),
                (text[:100], {"a": [1]}),
            ]
            for name, arguments in calls:
                for is_error in (False, True):
                    result = adapter.read_result(name, arguments, text, is_error=is_error)
                    assert result.exit_code is None or abs(result.exit_code) < 2**32


def test_markers_alone_are_stripped(adapter: AgentAdapter) -> None:
    call = {"name": "shell", "args": {"command": "ls"}, "id": "call_1"}
    conversation: list[BaseMessage] = [
        HumanMessage("Fix it."),
        AIMessage("", tool_calls=[call]),
        ToolMessage("a.py", tool_call_id="call_1"),
        AIMessage("Done."),
        HumanMessage(f"I said: {RESUME_MESSAGE} Now."),
    ]
    assert adapter.strip_markers(conversation) == conversation
    assert adapter.strip_markers([]) == []
    assert adapter.strip_markers(adapter.strip_markers(conversation)) == conversation


def test_output_is_untrusted(adapter: AgentAdapter) -> None:
    lines = [
        '{"type": "session", "session_id": "../../x", "thread_id": "../../x", "sessionID": "../../x"}',
        '{"type": "thread.started", "thread_id": {"a": 1}, "session_id": ["x"], "sessionID": 7, "part": 1}',
        '{"type": "item.completed", "item": 1, "part": "x", "error": [1], "result": {"a": 1}}',
        '{"type": "text", "part": {"text": ["x"], "reason": {}}}',
        '{"type": "turn.failed", "error": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"type": "result", "is_error": false, "result": "' + "x" * 100_000 + '"}',
        "{", "null", "\0\ud800", '{"type": "result", "is_error": fal',
    ]  # fmt: skip
    for text in (*lines, "\n".join(lines), "", "\n".join(reversed(lines))):
        for exit_code in (None, 0, 1, 137):
            output = adapter.read_output(text, exit_code)
            assert output.session_id is None
            assert len(output.message) <= 10_000
            assert not (output.is_complete and exit_code not in (0, None))
    assert not adapter.read_output("", 0).is_complete


def test_requests_are_untrusted(adapter: AgentAdapter) -> None:
    for headers in ({}, {"x-codex-turn-metadata": "["}, {"x-codex-turn-metadata": '"text"'}):
        bodies: tuple[dict[str, Any], ...] = ({}, {"tools": []}, {"tools": None, "messages": 7})
        for body in bodies:
            assert adapter.classify(body, headers) != "main"
