"""What single agents do differently: askers, ends of runs, and options, each as seen with the real program."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS, find_adapter
from langgraph_takeover.handoff.agents.adapter import (
    RESUME_MESSAGE,
    AgentAdapter,
    Launch,
    ProgramFiles,
    UnknownAgentProgramError,
)
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.testing.agents.histories import ORDINARY
from langgraph_takeover.testing.agents.pure import SESSION_ID, make_launch

TOOLS = {"tools": [{"name": "shell"}]}


def test_unknown_agent_is_one_line() -> None:
    with pytest.raises(
        UnknownAgentProgramError, match="unknown external agent 'emacs' \\(use codex, claude-code"
    ):
        find_adapter("emacs")
    assert all(name == adapter.name for name, adapter in ADAPTERS.items())


@pytest.mark.parametrize(
    ("name", "body", "headers", "asker"),
    [
        ("codex", TOOLS, {"request_kind": "turn", "thread_source": "user"}, "main"),
        ("codex", TOOLS, {"request_kind": "turn", "thread_source": "subagent"}, "child"),
        ("codex", TOOLS, {"request_kind": "compaction", "thread_source": "user"}, "aside"),
        ("codex", {"tools": []}, {"request_kind": "turn", "thread_source": "user"}, "main"),
        ("codex", TOOLS, {}, "aside"),
        ("claude-code", TOOLS, {}, "main"),
        ("claude-code", TOOLS, {"x-claude-code-agent-id": "a1"}, "child"),
        ("claude-code", {"tools": []}, {}, "aside"),
        ("opencode", TOOLS, {"x-session-id": "ses_1"}, "main"),
        ("opencode", TOOLS, {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}, "child"),
        ("opencode", {}, {}, "aside"),
        ("qwen-code", TOOLS, {}, "main"),
        ("mini", TOOLS, {}, "main"),
    ],
)
def test_askers(name: str, body: dict[str, object], headers: dict[str, str], asker: str) -> None:
    if name == "codex":
        headers = {"x-codex-turn-metadata": json.dumps(headers)}
    assert ADAPTERS[name].classify(body, headers) == asker


CODEX_END = "".join(
    f"{line}\n"
    for line in (
        '{"type":"thread.started","thread_id":"t-1"}',
        '{"type":"turn.started"}',
        '{"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"Done."}}',
    )
)
OPENCODE_TEXT = '{"type":"text","sessionID":"ses_1","part":{"type":"text","text":"Done."}}\n'


@pytest.mark.parametrize(
    ("name", "stdout", "exit_code", "is_complete", "message"),
    [
        ("codex", CODEX_END + '{"type":"turn.completed","usage":{}}', 0, True, "Done."),
        ("codex", CODEX_END + '{"type":"turn.failed","error":{"message":"no"}}', 1, False, "no"),
        ("codex", CODEX_END, 137, False, "Done."),
        ("mini", '{"type":"result","status":"Submitted","message":""}', 0, True, "Submitted"),
        ("mini", '{"type":"result","status":"RepeatedFormatError","message":""}', 0, False, "RepeatedFormatError"),
        ("mini", "Traceback (most recent call last):", 1, False, ""),
        ("qwen-code", '{"type":"result","is_error":false,"result":"Done."}', 0, True, "Done."),
        ("qwen-code", '{"type":"result","is_error":false,"result":"[API Error: 400 no]"}', 0, False, "[API Error: 400 no]"),
        ("opencode", OPENCODE_TEXT + '{"type":"step_finish","part":{"reason":"stop"}}', 0, True, "Done."),
        ("opencode", OPENCODE_TEXT + '{"type":"step_finish","part":{"reason":"tool-calls"}}', 0, False, "Done."),
        ("opencode", '{"type":"error","error":{"name":"APIError","data":{"message":"no"}}}', 1, False, "no"),
    ],
)  # fmt: skip
def test_ends_of_runs(name: str, stdout: str, exit_code: int, is_complete: bool, message: str) -> None:
    output = ADAPTERS[name].read_output(stdout, exit_code)
    assert (output.is_complete, output.message) == (is_complete, message)


def test_opencode_prints_exit_codes() -> None:
    lines = [
        {"type": "tool_use", "part": {"callID": name, "tool": "bash", "state": {"metadata": {"exit": code}}}}
        for name, code in (
            ("call_1", 3),
            ("call_2", 0),
            ("call_3", None),
            ("call_4", "0"),
            ("call_5", 10**30),
        )
    ]
    output = ADAPTERS["opencode"].read_output("\n".join(map(json.dumps, lines)), None)
    assert output.call_exit_codes == {"call_1": 3, "call_2": 0}


def test_codex_reads_its_configuration() -> None:
    launch = make_launch(model='a "quoted" model')
    config = tomllib.loads(ADAPTERS["codex"].setup(launch).files[".codex/config.toml"])
    assert config["model"] == launch.model
    assert config["model_providers"]["bridge"]["base_url"] == "http://127.0.0.1:8377/v1"


@pytest.mark.parametrize("name", ["claude-code", "qwen-code"])
def test_tasks_are_no_slash_commands(name: str) -> None:
    """Seen with both: `/clear the cache` empties the session, and no model is asked."""
    for message in ("/clear the cache", "  /tmp is full"):
        assert not ADAPTERS[name].command(make_launch(message=message)).stdin.lstrip().startswith("/")
    assert ADAPTERS[name].command(make_launch(message="Fix /tmp")).stdin == "Fix /tmp"


def test_mini_resumes_without_a_message() -> None:
    adapter = ADAPTERS["mini"]
    assert adapter.command(make_launch(message=RESUME_MESSAGE, session_id=SESSION_ID)).stdin == ""
    assert adapter.command(make_launch(message=RESUME_MESSAGE)).stdin == RESUME_MESSAGE
    assert adapter.write_call(Action("finish", {"message": "x"}), "/testbed") is not None


def test_opencode_imports_a_written_session_once() -> None:
    launch = make_launch(session_id=SESSION_ID, home="/home/a'b $(touch x)")
    shell, option, script = ADAPTERS["opencode"].command(launch).argv
    assert (shell, option) == ("/bin/sh", "-c")
    words = shlex.split(script)
    file = f"{launch.home}/.takeover-import/{SESSION_ID}.json"
    assert words[3] == file
    assert words[words.index("import") + 1] == file
    assert words[words.index("rm") + 1] == file
    assert words[-2:] == ["--session", SESSION_ID]


def test_an_adapter_has_twelve_members() -> None:
    """As docs/add-your-agent.md says; more of them would make an adapter hard to write."""
    methods = {name for name in vars(AgentAdapter) if not name.startswith("_")}
    assert len(methods | set(AgentAdapter.__annotations__)) == 12


def test_only_a_model_of_claude_is_named_in_its_session() -> None:
    adapter = ADAPTERS["claude-code"]
    for model, named in (("openai/gpt-5.5", False), ("claude-opus-5-5", True)):
        launch = Launch(program=("claude",), home="/h", workspace="/w", port=1, model=model, message="")
        (text,) = adapter.write_session(ORDINARY, launch).files.values()
        assert (f'"model": "{model}"' in text) is named


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("2.1.0", ""),
        ("2.1.5-beta.1", ""),
        ("2.1.10", "x 2.1.10 is newer than the tested 2.1.9: "),
        ("2.0.99", "x 2.0.99 is older than the tested 2.1.0: "),
        ("", ""),
        ("latest", ""),
    ],
)
def test_untested_versions(version: str, sentence: str) -> None:
    program = ProgramFiles(executable="x", install="-", oldest="2.1.0", newest="2.1.9")
    found = program.describe_untested("x", version)
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_docs_name_the_tested_version(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs/external-agents.md").read_text()
    (row,) = (line for line in page.splitlines() if f"| `{name}` |" in line)
    assert row.split("|")[4].split()[0] == ADAPTERS[name].program.newest
