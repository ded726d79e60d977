"""The task of the examples, and a local model for hosts without an endpoint.

With OPENAI_API_KEY or OPENAI_BASE_URL in the environment, the examples use your model. Otherwise, a local server answers
as `builtin:oracle`, which is not an LLM. It also calls each custom tool once, and delegates its edit if it can. Agents of
a swarm, which have no finish tool, are scripted here.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_takeover.evals.models.facts import read_facts
from langgraph_takeover.evals.models.oracle import OracleModel
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks
from langgraph_takeover.nodes.model.actions import BUILT_IN_TOOLS, DELEGATE_TOOL
from langgraph_takeover.sandbox import SandboxSpec, default_backend

(TASK,) = load_tasks(BUNDLED, ["galley__galley-31"])
FACTS = read_facts(TASK.directory or Path())


def sandbox_spec(directory: str | Path) -> SandboxSpec:
    """A sandbox with the task's repository, checked out below `directory`.

    For your own repository: `SandboxSpec(backend="host", directory=Path("your/repository"))`.
    """
    work = Path(directory).absolute() / "checkout"
    TASK.check_out(work)
    return TASK.build_spec(default_backend(allow_process=True), "examples", work)


def _play_swarm_agent(messages: list[BaseMessage], tools: list[str]) -> AIMessage:
    """The next step of a swarm agent: an agent that can hand over investigates, the other one fixes and tests."""
    assert TASK.directory is not None
    facts = read_facts(TASK.directory)
    (region,), test = facts.regions, facts.guide.command
    reads = [f"cat {path}" for path in (facts.guide.path, "README.md", region.path, "tests/test_wrap.py")]
    investigation = ["ls -A", facts.search, *reads, test]
    fix = (
        f"python3 - <<'END'\nfrom pathlib import Path\nfile = Path({region.path!r})\n"
        f"file.write_text(file.read_text().replace({region.base!r}, {region.right!r}))\nEND"
    )
    calls = [call for each in messages for call in getattr(each, "tool_calls", ())]
    past = [call["args"].get("command") for call in calls]
    transfer = next((name for name in tools if name.startswith("transfer_to_")), None)
    if transfer:
        remaining = [command for command in investigation if command not in past]
    else:
        remaining = [fix] if fix not in past else [test] if past[-1] == fix else []
    if remaining:
        return AIMessage(
            "", tool_calls=[{"name": "shell", "args": {"command": remaining[0]}, "id": f"c{len(messages)}"}]
        )
    if transfer:
        return AIMessage("", tool_calls=[{"name": transfer, "args": {}, "id": f"c{len(messages)}"}])
    return AIMessage("The fix is in place, and the tests pass.")


def _answer_request(request: dict[str, Any]) -> AIMessage:
    messages = convert_to_messages(request["messages"])
    tools = [each["function"] for each in request.get("tools", ())]
    if tools and "finish" not in {each["name"] for each in tools}:
        return _play_swarm_agent(messages, [each["name"] for each in tools])
    used = {call["name"] for each in messages for call in getattr(each, "tool_calls", ())}
    for custom in tools:
        if custom["name"] not in (*BUILT_IN_TOOLS, DELEGATE_TOOL, *used):
            arguments = dict.fromkeys(custom["parameters"]["properties"], "The tests pass.")
            return AIMessage(
                "", tool_calls=[{"name": custom["name"], "args": arguments, "id": custom["name"]}]
            )
    reply = OracleModel(facts=(FACTS,), native=bool(tools)).invoke(messages)
    if any(each["name"] == DELEGATE_TOOL for each in tools):
        return _delegate_edit(reply, messages)
    return reply


def _delegate_edit(reply: AIMessage, messages: list[BaseMessage]) -> AIMessage:
    """Delegate the edit, with the test command in the payload; afterwards, view the file instead of editing it."""
    calls = [call for each in messages if isinstance(each, AIMessage) for call in each.tool_calls]
    names, arguments = [call["name"] for call in calls], reply.tool_calls[0]["args"]
    if arguments.get("command") != "str_replace" or DELEGATE_TOOL in names[:-1]:
        return reply
    if DELEGATE_TOOL in names:
        name, arguments = "editor", {"command": "view", "path": arguments["path"]}
    else:
        shell = [call["args"]["command"] for call in calls if call["name"] == "shell"]
        viewed = [call["args"]["path"] for call in calls if call["args"].get("command") == "view"]
        printed = [each.removeprefix("cat ") for each in shell if each.startswith("cat ")]
        commands = [{"cmd": each} for each in shell if not each.startswith("cat ")]
        name = DELEGATE_TOOL
        payload = {"read_files": [*printed, *viewed], "ran_commands": commands}
        arguments = {"goal": TASK.prompt, "handoff": payload}
        if FACTS.guide.path not in printed:
            name, arguments = "shell", {"command": f"cat {FACTS.guide.path}"}
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call_{len(messages)}"}])


def call_tool(name: str, **arguments: Any) -> AIMessage:
    """A reply that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "call"}])


class ScriptedChat(BaseChatModel):
    """A scripted model, not an LLM: it sends its replies in order."""

    replies: list[Any]

    def bind_tools(self, tools: Any, **_: Any) -> "ScriptedChat":
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        reply = self.replies[sum(isinstance(each, AIMessage) for each in messages)]
        message = AIMessage(reply) if isinstance(reply, str) else reply
        return ChatResult(generations=[ChatGeneration(message=message)])

    @property
    def _llm_type(self) -> str:
        return "scripted"


class CommandChat(ScriptedChat):
    """A scripted model, not an LLM: it runs each message of the user as a command."""

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        last, reply = messages[-1], AIMessage("Done.")
        if last.type == "human":
            call = {"name": "shell", "args": {"command": last.text}, "id": f"call-{len(messages)}"}
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        reply = _answer_request(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        choice = {"index": 0, "finish_reason": "stop", "message": convert_to_openai_messages(reply)}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "oracle", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


NAME = "your endpoint's model"
if not os.environ.keys() & {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"}:
    NAME = "builtin:oracle, which is not an LLM"
    _server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    Thread(target=_server.serve_forever, daemon=True).start()
    os.environ |= {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{_server.server_port}/v1",
    }
