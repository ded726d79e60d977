"""Real programs: a session of Codex is captured, continued in Claude Code, captured again and continued in Codex.

The model is a script on loopback. The programs come from PATH, or from the directory that TAKEOVER_TEST_AGENTS names.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.handoff.agents.adapter import Launch, NativeCall
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.testing.agents.agent_programs import ScriptedEndpoint
from langgraph_takeover.testing.agents.wire import ScriptedReply, list_calls, read_messages

from ...agent_sessions import SECRET, TASK, describe_tree, make_repository, run_git
from ...conftest import skip_missing, skip_missing_agent
from ...random_examples import draw

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PROGRAMS = {"codex": "codex", "claude-code": "claude", "qwen-code": "qwen", "opencode": "opencode"}
TOOLS: dict[str, tuple[str, str, dict[str, object]]] = {
    "codex": ("exec_command", "cmd", {}),
    "claude-code": ("Bash", "command", {}),
    "mini": ("Bash", "command", {}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
    "opencode": ("bash", "command", {"description": "Work"}),
}
STARTS = {
    "codex": "codex exec --json {}",
    "claude-code": "claude -p --dangerously-skip-permissions {}",
    "qwen-code": "qwen --yolo --auth-type openai -p {}",
    "opencode": "printf %s {} | opencode run --format json",
}
"""How a script starts an agent with a message, without its terminal."""
UNATTENDED = {
    "codex": (" resume ", " exec resume "),
    "claude-code": (" --resume", " -p --dangerously-skip-permissions --resume"),
    "qwen-code": (" -i ", " --yolo --auth-type openai -p "),
    "opencode": (" --prompt ", " run "),
}
"""What makes an interactive command one without a terminal."""


COMMANDS = ("cat shop/price.py .env", "sed -i 's/ + 1/ - 1/' shop/price.py", "python3 -m unittest -q")


class LiveUser:
    """A home directory in which every agent is set up for a scripted model, and a repository."""

    def __init__(self, root: Path, programs: str) -> None:
        self.root, self.home, self.repository = root, root / "user", make_repository(root / "shop")
        self.home.mkdir()
        run_git(self.repository, "checkout", "-q", "shop/price.py")
        # A session names the provider of Codex's settings, which cannot change afterwards.
        (self.home / ".codex").mkdir()
        (self.home / ".codex" / "config.toml").write_text('model_provider = "bridge"\n')
        self.environment = {
            "HOME": str(self.home), "PATH": programs, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if name.startswith("TAKEOVER_")},
        }  # fmt: skip

    def run_agent(
        self, agent: str, command: str, commands: Sequence[str | ScriptedReply], directory: Path
    ) -> list[list[BaseMessage]]:
        """Run an agent that executes `commands`; return the conversations of its model requests."""
        adapter = find_adapter(agent)
        with ScriptedEndpoint(adapter, script_replies(agent, commands)) as model:
            launch = Launch(
                program=(PROGRAMS[agent],), home=str(self.home), workspace=str(directory), port=model.port,
                model="scripted-model", message=TASK,
            )  # fmt: skip
            setup = adapter.setup(launch)
            for name, text in setup.files.items():
                (self.home / name).parent.mkdir(parents=True, exist_ok=True)
                (self.home / name).write_text(text)
            done = subprocess.run(
                ["sh", "-c", command], cwd=directory, env=self.environment | dict(setup.environment),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            return [read_messages(adapter.api, each.body) for each in model.main_requests]

    def handoff(self, *words: str | Path, code: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "handoff", *map(str, words)], cwd=self.repository,
            env=self.environment | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def run_codex(self) -> None:
        self.run_first("codex")

    def run_first(self, agent: str, *more: str) -> None:
        """Run an agent with the task: it reads, edits and tests, and executes further commands."""
        self.run_agent(agent, STARTS[agent].format(shlex.quote(TASK)), [*COMMANDS, *more], self.repository)


def script_replies(agent: str, commands: Sequence[str | ScriptedReply]) -> list[ScriptedReply]:
    tool, argument, more = TOOLS[agent]
    calls = [
        command
        if isinstance(command, ScriptedReply)
        else ScriptedReply(
            "", {f"call_{number}": NativeCall(name=tool, arguments={argument: command, **more})}
        )
        for number, command in enumerate(commands)
    ]
    return [*calls, ScriptedReply("Done.")]


@pytest.fixture
def user(tmp_path: Path) -> LiveUser:
    programs = os.pathsep.join(filter(None, (os.environ.get("TAKEOVER_TEST_AGENTS"), os.environ["PATH"])))
    for agent, name in PROGRAMS.items():
        if shutil.which(name, path=programs) is None:
            skip_missing_agent(agent, f"{agent} is not installed ({find_adapter(agent).program.install})")
    if reason := host.unavailable_reason():
        skip_missing(reason)
    return LiveUser(tmp_path, programs)


def list_commands(conversation: list[BaseMessage]) -> list[str]:
    return [
        str(call.arguments.get("cmd") or call.arguments.get("command")) for call in list_calls(conversation)
    ]


def test_there_and_back(user: LiveUser) -> None:
    user.run_codex()
    before = describe_tree(user.repository)
    captured = user.handoff("capture", "--agent", "codex")
    first = captured.split()[1]
    record = RecordStore(user.home / ".takeover/records").load(first)
    assert record.task.prompt == TASK
    assert [event.arguments["command"] for event in record.trace if event.tool == "shell" and event.kind == "action"] == [
        "cat shop/price.py .env", "sed -i 's/ + 1/ - 1/' shop/price.py", "python3 -m unittest -q",
    ]  # fmt: skip
    assert SECRET not in (user.home / ".takeover/records" / first / "record.json").read_text()

    command = user.handoff(
        "continue", first, "--agent", "claude-code", "--view", "transcript", "--print"
    ).splitlines()[-1]
    checkout = user.root / "shop-continued"
    fix = "sed -i 's/ - 1//' shop/price.py; python3 -m unittest -q"
    conversations = user.run_agent(
        "claude-code",
        command.replace(*UNATTENDED["claude-code"]),
        [fix],
        checkout,
    )
    assert list_commands(conversations[0]) == [
        "cat shop/price.py .env", "sed -i 's/ + 1/ - 1/' shop/price.py", "python3 -m unittest -q",
    ]  # fmt: skip
    assert "AssertionError: 2 != 3" in list_calls(conversations[0])[2].result
    assert ".git/takeover/prompt.md" in conversations[0][-1].text
    assert "sum(prices)\n" in (checkout / "shop/price.py").read_text()
    assert describe_tree(user.repository) == before

    again = user.handoff("capture", "--agent", "claude-code", "--repository", checkout)
    second = again.split()[1]
    kept = RecordStore(user.home / ".takeover/records").load(second)
    assert kept.task.prompt == TASK
    assert {point.split()[0] for point in again.splitlines() if " e" in point} >= {
        "first_source_edit", "first_validation", "first_post_failure_edit",
    }  # fmt: skip
    command = user.handoff(
        "continue", second, "--agent", "codex", "--view", "transcript", "--in", user.root / "back", "--print"
    ).splitlines()[-1]
    conversations = user.run_agent(
        "codex", command.replace(*UNATTENDED["codex"]), ["git diff --stat"], user.root / "back"
    )
    assert list_commands(conversations[0])[-1] == fix
    assert len(conversations) == 2


def test_undo_after_a_real_start(user: LiveUser) -> None:
    user.run_codex()
    record = user.handoff("capture", "--agent", "codex").split()[1]
    before = {str(path) for path in user.root.rglob("*") if not path.is_relative_to(user.home / ".takeover")}
    user.handoff("continue", record, "--agent", "claude-code", "--view", "payload", "--print")
    user.handoff("continue", record, "--undo")
    assert {
        str(path) for path in user.root.rglob("*") if not path.is_relative_to(user.home / ".takeover")
    } == before


def test_in_a_sandbox(user: LiveUser) -> None:
    """Claude Code continues Codex's session inside a sandbox, with the model behind the bridge."""
    user.run_codex()
    before = describe_tree(user.repository)
    record = user.handoff("capture", "--agent", "codex").split()[1]
    with ScriptedEndpoint(
        find_adapter("mini"), script_replies("mini", ["sed -i 's/ - 1//' shop/price.py"])
    ) as model:
        shown = user.handoff(
            "continue", record, "--agent", "claude-code", "--view", "transcript", "--sandbox", "host",
            "--model", f"openai:scripted@http://127.0.0.1:{model.port}/v1", OPENAI_API_KEY="none",
        )  # fmt: skip
        first = read_messages("chat", model.main_requests[0].body)
    assert sum(len(each.tool_calls) for each in first if isinstance(each, AIMessage)) == 3
    assert "finished, 2 replies" in shown
    (patch,) = (user.home / ".takeover/continuations" / record).glob("*.patch")
    assert "+    return sum(prices)\n" in patch.read_text()
    assert describe_tree(user.repository) == before


@pytest.mark.parametrize("agent", ["codex", "qwen-code", "opencode"])
def test_capture_and_continue_elsewhere(user: LiveUser, agent: str) -> None:
    """A session continues in every agent, and undo removes what nobody has changed."""
    user.run_first(agent)
    before = describe_tree(user.repository)
    captured = user.handoff("capture", "--agent", agent)
    record = captured.split()[1]
    kept = RecordStore(user.home / ".takeover/records").load(record)
    assert kept.task.prompt == TASK
    assert [
        each.arguments["command"] for each in kept.trace if each.tool == "shell" and each.kind == "action"
    ] == [*COMMANDS]
    assert [each.exit_code for each in kept.trace if each.kind == "observation"] == [0, 0, 1]
    assert SECRET not in (user.home / ".takeover/records" / record / "record.json").read_text()
    assert describe_tree(user.repository) == before
    others = draw([*PROGRAMS], 2, agent)
    for other in others:
        has_session = other != "opencode"
        view = "transcript" if has_session else "structured"
        checkout = user.root / other
        shown = user.handoff(
            "continue", record, "--agent", other, "--view", view, "--in", checkout, "--print"
        )
        command = shown.splitlines()[-1].replace(*UNATTENDED[other])
        conversations = user.run_agent(other, command, ["git status --short"], checkout)
        if has_session:
            assert list_commands(conversations[0])[:3] == [*COMMANDS]
        assert ".git/takeover/prompt.md" in conversations[0][-1].text
        assert "M shop/price.py" in list_calls(conversations[1])[-1].result
    left = user.handoff("continue", record, "--undo", code=3)
    with_session = len(others) - others.count("opencode")
    assert left.count("(changed since: the agent has continued the session)") == with_session
    assert not any((user.root / other).exists() for other in others)
    assert describe_tree(user.repository) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sandbox", ["host", "docker"])
def test_in_an_image(user: LiveUser, base_image: str, sandbox: str) -> None:
    """A captured repository comes up in an image of the user."""
    user.run_codex()
    record = user.handoff("capture", "--agent", "codex").split()[1]
    assert record.startswith("codex-")
    look = "cat /testbed/notes.txt .env; git log --format=%s; ls -ld /testbed/shop; sed -i 's/ - 1//' shop/price.py"
    with ScriptedEndpoint(find_adapter("mini"), script_replies("mini", [look])) as model:
        shown = user.handoff(
            "continue", record, "--agent", "claude-code", "--view", "transcript", "--sandbox", sandbox, "--image", base_image,
            "--model", f"openai:scripted@http://127.0.0.1:{model.port}/v1", OPENAI_API_KEY="none",
        )  # fmt: skip
        second = read_messages("chat", model.main_requests[1].body)
    result = list_calls(second)[-1].result or ""
    assert "mine\n" in result
    assert f"{SECRET}\nStart\n" in result
    assert "root root" in result
    assert "finished, 2 replies" in shown
    (patch,) = (user.home / ".takeover/continuations" / record).glob("*.patch")
    assert "+    return sum(prices)\n" in patch.read_text()
    removed = user.handoff("discard", record)
    assert removed.splitlines() == [
        f"removed   {user.home}/.takeover/records/{record}",
        f"removed   {user.home}/.takeover/records/{shown.split()[1].rstrip(',')}",
    ]
    assert RecordStore(user.home / ".takeover/records").list_ids()  # those of the continuation


def test_the_vendors_own_model_in_a_sandbox(user: LiveUser) -> None:
    user.run_codex()
    record = user.handoff("capture", "--agent", "codex").split()[1]
    fix = script_replies("codex", ["sed -i 's/ - 1//' shop/price.py"])
    with ScriptedEndpoint(find_adapter("codex"), fix) as vendor:
        shown = user.handoff(
            "continue", record, "--agent", "codex", "--sandbox", "host", "--model", "native:gpt-5.5",
            OPENAI_API_KEY="sk-own-key", OPENAI_BASE_URL=f"http://127.0.0.1:{vendor.port}/v1",
        )  # fmt: skip
    assert "finished, 2 replies" in shown
    assert {each.headers["authorization"] for each in vendor.main_requests} == {"Bearer sk-own-key"}
    assert {each.body["model"] for each in vendor.main_requests} == {"gpt-5.5"}
    assert "reasoning" in vendor.main_requests[0].body
    (patch,) = (user.home / ".takeover/continuations" / record).glob("*.patch")
    assert "+    return sum(prices)\n" in patch.read_text()


def test_a_command_in_the_background(user: LiveUser) -> None:
    """Claude Code leaves a server running: the record and the next agent's prompt name it."""
    server = "sleep 30; echo served"
    tool, argument, _ = TOOLS["claude-code"]
    start = NativeCall(name=tool, arguments={argument: server, "run_in_background": True})
    replies = [ScriptedReply("", {"call_0": start}), ScriptedReply("Started."), *[ScriptedReply("Seen.")] * 3]
    user.run_agent(
        "claude-code",
        f"unset CLAUDE_CODE_DISABLE_BACKGROUND_TASKS; {STARTS['claude-code'].format('Serve')}",
        replies,
        user.repository,
    )
    captured = user.handoff("capture", "--agent", "claude-code")
    assert f"Left running in the background: {server}\n" in captured
    user.handoff("continue", captured.split()[1], "--agent", "codex", "--print")
    prompt = (user.root / "shop-continued/.git/takeover/prompt.md").read_text()
    assert "They do not run here." in prompt
    assert f"- `{server}`" in prompt
