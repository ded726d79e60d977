"""The real Codex with models whose tools are called by scripts, in a real sandbox: passed on, and translated."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import SecretStr

from langgraph_takeover import RunStatus
from langgraph_takeover.agents import ExternalAgent
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.external.pass_through import VendorModel
from langgraph_takeover.sandbox.interface import BackendName

from ..agent_programs import find_test_program
from .conftest import RunHarness, scripted_model

MODEL = "gpt-6-sol"
POINTS = ("first_source_edit", "first_validation", "first_post_failure_edit")
ALL_POINTS = (*POINTS, "requested")
EDIT = "sed -i 's/n + 1/n * 3/' pkg/core.py"
PATCH = (
    "*** Begin Patch\n*** Update File: pkg/core.py\n@@\n-    return n * 3\n+    return n * 2\n*** End Patch\n"
)
TEST = "python3 -m unittest -q"


@pytest.fixture
def backend() -> BackendName:
    return "host"


@pytest.fixture
def codex() -> ExternalAgent:
    adapter = ADAPTERS["codex"]
    return ExternalAgent(adapter=adapter, program=find_test_program(adapter), model_name=MODEL)


class Vendor(BaseHTTPRequestHandler):
    """Answers with items of the Responses API, in order."""

    protocol_version = "HTTP/1.1"
    replies: list[list[dict[str, Any]]]
    requests: list[dict[str, Any]]
    headers_seen: list[dict[str, str]]

    def do_POST(self) -> None:
        self.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.headers_seen.append({name.lower(): value for name, value in self.headers.items()})
        number = len(self.requests)
        items = [
            {"id": f"item_{number}_{index}", "status": "completed", **item}
            for index, item in enumerate(self.replies[number - 1])
        ]
        usage = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}
        response = {"id": f"resp_{number}", "object": "response", "status": "completed", "output": items}
        events = [
            {"type": "response.created", "response": {"id": f"resp_{number}"}},
            *({"type": "response.output_item.done", "output_index": 0, "item": item} for item in items),
            {"type": "response.completed", "response": {**response, "usage": usage}},
        ]
        data = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *values: Any) -> None:
        pass


@contextmanager
def serve(replies: list[list[dict[str, Any]]]) -> Iterator[tuple[type[Vendor], VendorModel]]:
    handler = type("Handler", (Vendor,), {"replies": replies, "requests": [], "headers_seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield (
            handler,
            VendorModel(api="responses", base_url=url, api_key=SecretStr("runtime-key"), model_name=MODEL),
        )
    finally:
        server.shutdown()
        server.server_close()


def script(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "custom_tool_call", "call_id": call_id, "name": "exec", "input": text}


def shell(command: str) -> str:
    return f"const r = await tools.exec_command({{cmd: {json.dumps(command)}}}); text(r.output);"


def list_commands(events: Sequence[Event]) -> list[tuple[str, str, int | None]]:
    """Tool, command and exit code of each call."""
    return [
        (action.tool, action.arguments.get("command", ""), seen.exit_code)
        for action, seen in list_steps(events)
        if seen is not None
    ]


DONE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}


@pytest.mark.slow
def test_scripts_pass_to_the_vendor_and_are_understood(bench: RunHarness, codex: ExternalAgent) -> None:
    replies = [
        [script("call_1", shell(EDIT))],
        [script("call_2", shell(TEST))],
        [script("call_3", f"text(await tools.apply_patch({json.dumps(PATCH)}));")],
        [script("call_4", "for (const n of [1, 2]) { text((await tools.exec_command({cmd: `exit ${n}`})).output) }")],
        [DONE],
    ]  # fmt: skip
    with serve(replies) as (vendor, model):
        outcome = bench.run_to_outcome(model, agent=codex, points=ALL_POINTS, model_name=None)
    assert outcome.status is RunStatus.FINISHED
    assert "n * 2" in outcome.patch
    assert list_commands(outcome.events) == [
        ("shell", EDIT, 0),
        ("shell", TEST, 1),
        ("shell", f"apply_patch <<'PATCH'\n{PATCH}\nPATCH", 0),
        ("shell", "exit 1", 1),
        ("shell", "exit 2", 2),
    ]
    assert [bench.store.load(each).point.kind for each in outcome.records] == [*POINTS]
    assert all(each["x-openai-internal-codex-responses-lite"] == "true" for each in vendor.headers_seen)


@pytest.mark.slow
def test_a_chat_model_gets_the_tools_inside_scripts(bench: RunHarness, codex: ExternalAgent) -> None:
    def call(call_id: str, name: str, **arguments: Any) -> AIMessage:
        calls = [{"name": name, "args": arguments, "id": call_id, "type": "tool_call"}]
        return AIMessage("", tool_calls=calls)

    model = scripted_model(
        call("call_1", "exec_command", cmd=EDIT),
        call("call_2", "exec_command", cmd=TEST),
        call("call_3", "apply_patch", input=PATCH),
        call("call_4", "exec_command", cmd=TEST),
        AIMessage("Done."),
    )
    outcome = bench.run_to_outcome(model, agent=codex, points=ALL_POINTS)
    assert outcome.status is RunStatus.FINISHED
    assert "n * 2" in outcome.patch
    assert [code for _, _, code in list_commands(outcome.events)] == [0, 1, 0, 0]
    assert [bench.store.load(each).point.kind for each in outcome.records] == [*POINTS]
    offered = {each["function"]["name"] for each in model.tools}
    assert {"exec_command", "write_stdin", "apply_patch"} <= offered
    assert not {"exec", "wait"} & offered


@pytest.mark.slow
def test_a_command_that_runs_on_is_named(bench: RunHarness, codex: ExternalAgent) -> None:
    server = "python3 -m http.server 0"
    started = f"text(await tools.exec_command({{cmd: '{server}', yield_time_ms: 300}}))"
    replies = [
        [script("call_1", started)],
        [script("call_2", '// @exec: {"yield_time_ms": 300}\nawait tools.exec_command({cmd: \'sleep 2; exit 4\'})')],
        [{"type": "function_call", "call_id": "call_3", "name": "wait", "arguments": '{"cell_id": "2"}'}],
        [DONE],
    ]  # fmt: skip
    with serve(replies) as (_, model):
        outcome = bench.run_to_outcome(model, agent=codex, points=ALL_POINTS, model_name=None, max_steps=3)
    assert list_commands(outcome.events) == [
        ("shell", server, None),
        ("shell", "sleep 2; exit 4", None),
        ("shell", "", 4),
    ]
    assert outcome.state["external"]["running"] == [server]
