"""Something to try the examples on: a bundled task and, where no endpoint is set, a model that knows it.

With OPENAI_API_KEY or OPENAI_BASE_URL in the environment this gives the task alone, and the model is yours.
Else a server on loopback answers as `builtin:oracle`, which is no LLM. It also calls once each tool that you add,
and where it may delegate, it delegates what it would edit. Agents of a swarm, which have no tool to finish with, are
played by a few lines here.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages

from langgraph_takeover.evals.models.facts import read_facts
from langgraph_takeover.evals.models.oracle import OracleModel
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks
from langgraph_takeover.nodes.model.actions import BUILT_IN_TOOLS, DELEGATE_TOOL
from langgraph_takeover.sandbox import SandboxSpec, default_backend

(TASK,) = load_tasks(BUNDLED, ["galley__galley-31"])
FACTS = read_facts(TASK.directory or Path())


def sandbox_spec(directory: str | Path) -> SandboxSpec:
    """A machine with the task's repository, which is checked out below `directory`.

    For a repository of yours: `SandboxSpec(backend="host", directory=Path("your/repository"))`.
    """
    place = Path(directory).absolute() / "checkout"
    TASK.check_out(place)
    return TASK.build_spec(default_backend(), "examples", place)


def _play_swarm_agent(messages: list[BaseMessage], offered: list[str]) -> AIMessage:
    """The next step of one of two agents: the one that can hand over looks around, the other mends and tests."""
    assert TASK.directory is not None
    facts = read_facts(TASK.directory)
    (place,), test = facts.places, facts.guide.command
    read = [f"cat {path}" for path in (facts.guide.path, "README.md", place.path, "tests/test_wrap.py")]
    look = ["ls -A", facts.search, *read, test]
    mend = (
        f"python3 - <<'END'\nfrom pathlib import Path\nfile = Path({place.path!r})\n"
        f"file.write_text(file.read_text().replace({place.base!r}, {place.right!r}))\nEND"
    )
    calls = [call for each in messages for call in getattr(each, "tool_calls", ())]
    said = [call["args"].get("command") for call in calls]
    transfer = next((name for name in offered if name.startswith("transfer_to_")), None)
    if transfer:
        left = [command for command in look if command not in said]
    else:
        left = [mend] if mend not in said else [test] if said[-1] == mend else []
    if left:
        return AIMessage(
            "", tool_calls=[{"name": "shell", "args": {"command": left[0]}, "id": f"c{len(messages)}"}]
        )
    if transfer:
        return AIMessage("", tool_calls=[{"name": transfer, "args": {}, "id": f"c{len(messages)}"}])
    return AIMessage("It is mended, and the tests pass.")


def _answer_request(request: dict[str, Any]) -> AIMessage:
    messages = convert_to_messages(request["messages"])
    offered = [each["function"] for each in request.get("tools", ())]
    if offered and "finish" not in {each["name"] for each in offered}:
        return _play_swarm_agent(messages, [each["name"] for each in offered])
    called = {call["name"] for each in messages for call in getattr(each, "tool_calls", ())}
    for added in offered:
        if added["name"] not in (*BUILT_IN_TOOLS, DELEGATE_TOOL, *called):
            arguments = dict.fromkeys(added["parameters"]["properties"], "The tests pass.")
            return AIMessage("", tool_calls=[{"name": added["name"], "args": arguments, "id": added["name"]}])
    reply = OracleModel(facts=(FACTS,), native=bool(offered)).invoke(messages)
    if any(each["name"] == DELEGATE_TOOL for each in offered):
        return _delegate_edit(reply, messages)
    return reply


def _delegate_edit(reply: AIMessage, messages: list[BaseMessage]) -> AIMessage:
    """Another agent is to make the edit, told how tests are run too; then it looks before it would edit itself."""
    before = [call for each in messages if isinstance(each, AIMessage) for call in each.tool_calls]
    names, arguments = [call["name"] for call in before], reply.tool_calls[0]["args"]
    if arguments.get("command") != "str_replace" or DELEGATE_TOOL in names[:-1]:
        return reply
    if DELEGATE_TOOL in names:
        name, arguments = "editor", {"command": "view", "path": arguments["path"]}
    else:
        shell = [call["args"]["command"] for call in before if call["name"] == "shell"]
        files = [call["args"]["path"] for call in before if call["args"].get("command") == "view"]
        read = [each.removeprefix("cat ") for each in shell if each.startswith("cat ")]
        ran = [{"cmd": each} for each in shell if not each.startswith("cat ")]
        name = DELEGATE_TOOL
        arguments = {"goal": TASK.prompt, "handoff": {"read_files": [*read, *files], "ran_commands": ran}}
        if FACTS.guide.path not in read:
            name, arguments = "shell", {"command": f"cat {FACTS.guide.path}"}
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call_{len(messages)}"}])


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
    NAME = "builtin:oracle, which is no LLM"
    _server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    Thread(target=_server.serve_forever, daemon=True).start()
    os.environ |= {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{_server.server_port}/v1",
    }
