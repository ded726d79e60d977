"""Something to try the examples on: a bundled task and, where no endpoint is set, a model that knows it.

With OPENAI_API_KEY or OPENAI_BASE_URL in the environment this gives the task alone, and the model is yours.
Else a server on loopback answers as `builtin:oracle`, which is no LLM. It also calls once each tool that you add.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from langchain_core.messages import AIMessage, convert_to_messages, convert_to_openai_messages

from evals.facts import read_facts
from evals.oracle import OracleModel
from evals.tasks import BUNDLED, load_tasks
from nodes.actions import BUILT_IN
from sandbox import SandboxSpec, default_backend

(TASK,) = load_tasks(BUNDLED, ["galley__galley-31"])


def sandbox(directory: str | Path) -> SandboxSpec:
    """A machine with the task's repository, which is checked out below `directory`.

    For a repository of yours: `SandboxSpec(backend="host", directory=Path("your/repository"))`.
    """
    place = Path(directory).absolute() / "checkout"
    TASK.check_out(place)
    return TASK.spec(default_backend(), "examples", place)


def _reply(request: dict[str, Any]) -> AIMessage:
    messages = convert_to_messages(request["messages"])
    offered = [each["function"] for each in request.get("tools", ())]
    called = {call["name"] for each in messages for call in getattr(each, "tool_calls", ())}
    for added in offered:
        if added["name"] not in (*BUILT_IN, *called):
            arguments = dict.fromkeys(added["parameters"]["properties"], "The tests pass.")
            return AIMessage("", tool_calls=[{"name": added["name"], "args": arguments, "id": added["name"]}])
    assert TASK.directory is not None
    return OracleModel(facts=(read_facts(TASK.directory),), native=bool(offered)).invoke(messages)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        reply = _reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        choice = {"index": 0, "finish_reason": "stop", "message": convert_to_openai_messages(reply)}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "oracle", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


MODEL = "yours"
if not os.environ.keys() & {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"}:
    MODEL = "builtin:oracle, which is no LLM"
    _server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    Thread(target=_server.serve_forever, daemon=True).start()
    os.environ |= {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{_server.server_port}/v1",
    }
