"""External agents in the graph, with a small complete agent in a real sandbox. `tests/nodes/external/` runs real programs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from pydantic import SecretStr

from langgraph_takeover import RunStatus
from langgraph_takeover.agents import ExternalAgent, ExternalAgentError
from langgraph_takeover.errors import SettingsError
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.views import HISTORIES, Recipient, find_view
from langgraph_takeover.nodes.external.pass_through import VendorModel
from langgraph_takeover.sandbox.interface import BackendName

from .conftest import RunHarness, Scripted, parse_events, scripted_model
from .small_agent_adapter import build_small_agent

ALL_POINTS = ("first_source_edit", "first_validation", "first_post_failure_edit", "requested")
EDIT = "sed -i 's/n + 1/n * 3/' pkg/core.py"
FIX = "sed -i 's/n \\* 3/n * 2/' pkg/core.py"
TEST = "python3 -m unittest -q"


@pytest.fixture
def backend() -> BackendName:
    return "host"


@pytest.fixture
def agent() -> ExternalAgent:
    return build_small_agent()


def call(*commands: str, text: str = "") -> AIMessage:
    """A reply that calls the agent's tool once per command."""
    calls = [
        {"name": "bash", "args": {"command": each}, "id": f"call_{abs(hash(each)) % 10**8}_{n}"}
        for n, each in enumerate(commands)
    ]
    return AIMessage(text, tool_calls=calls, response_metadata={"finish_reason": "tool_calls"})


def call_invented() -> AIMessage:
    tool_call = {"name": "frobnicate", "args": {"command": "true"}, "id": "call_invented"}
    return AIMessage("", tool_calls=[tool_call], response_metadata={"finish_reason": "tool_calls"})


def finish(text: str = "Done.") -> AIMessage:
    return AIMessage(text, response_metadata={"finish_reason": "stop"})


def load_record(bench: RunHarness, state: Any, number: int = -1) -> HandoffRecord:
    return bench.store.load(state["records"][number])


def get_commands(state: Any) -> list[str]:
    return [each.arguments.get("command", "") for each in parse_events(state) if each.kind == "action"]


def test_calls_of_unknown_tools_are_counted(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call_invented(), call_invented(), call(EDIT), finish())
    outcome = bench.run_to_outcome(model, agent=agent, points=ALL_POINTS)
    record = load_record(bench, outcome.state, 0)
    assert record.external is not None
    assert record.external.unknown_forms == {"frobnicate": 2}
    (message,) = find_view("structured")(record)
    assert "2 calls in a form that this version does not know: frobnicate (2)" in message.text
    assert "NONE OBSERVED" not in message.text


def test_run_has_events_changes_points_and_session(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call(EDIT, text="I edit."), call(TEST), call(FIX), call(TEST), finish())
    outcome = bench.run_to_outcome(model, agent=agent, points=ALL_POINTS)
    assert outcome.status is RunStatus.FINISHED
    assert get_commands(outcome.state) == [EDIT, TEST, FIX, TEST, ""]
    events = outcome.events
    assert [each.path for each in events[1].changes] == ["pkg/core.py"]
    assert (events[1].exit_code, events[3].exit_code) == (0, 1)
    assert [bench.store.load(each).point.kind for each in outcome.records] == [
        "first_source_edit",
        "first_validation",
        "first_post_failure_edit",
    ]
    session = load_record(bench, outcome.state).external
    assert session is not None
    assert (session.agent, session.version, session.workspace) == ("small", "1.0.0", "/testbed")
    assert session.session_id
    assert "n * 2" in outcome.patch
    assert ".small" not in outcome.patch
    # The model saw the agent's own tool.
    assert [each["function"]["name"] for each in model.tools] == ["bash"]


def test_parallel_calls_are_steps_of_one_reply(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call("cat pkg/core.py", EDIT, "echo x > other.txt"), finish())
    outcome = bench.run_to_outcome(model, agent=agent, points=ALL_POINTS)
    kinds = [each.kind for each in outcome.events]
    assert kinds == ["action", "observation"] * 3 + ["action"]
    assert outcome.steps == 2
    changed = [
        [change.path for change in each.changes] for each in outcome.events if each.kind == "observation"
    ]
    assert changed == [[], ["pkg/core.py"], ["other.txt"]]
    record = load_record(bench, outcome.state, 0)
    assert record.point.event_index == 5
    results = [each for each in outcome.state["messages"] if isinstance(each, ToolMessage)]
    assert len(results) == 3


class StopAfter(Scripted):
    """Ends the process by SIGKILL, as a crash does, when the model is asked for the n-th time."""

    step: int

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if sum(isinstance(each, AIMessage) for each in messages) == self.step:
            os.kill(os.getpid(), 9)
        return super()._generate(messages, *args, **kwargs)


@pytest.mark.cases(1)
@pytest.mark.parametrize("step", [0, 1, 3])
def test_run_resumes_after_a_crash(bench: RunHarness, agent: ExternalAgent, step: int) -> None:
    replies = [call(f"echo {n} >> notes.txt; cat notes.txt") for n in range(3)]
    replies.append(finish())
    child = os.fork()
    if child == 0:
        crashing = StopAfter(replies=replies, seen=[], tools=[], step=step)
        bench.run(crashing, agent=agent)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 9
    model = scripted_model(*replies)
    outcome = bench.resume(model, agent=agent)
    assert outcome.status is RunStatus.FINISHED
    # Each command took effect once, and the model saw the same conversation as without a crash.
    assert outcome.events[5].text.splitlines()[1:] == ["0", "1", "2"]
    assert len(model.seen) == len(replies) - step
    assert not any("Continue from where" in each.text for each in model.seen[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "view",
    [
        "transcript",
        "cited",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("payload", "structured", "trace", "repository")
        ),
    ],
)
def test_successor_gets_the_view(bench: RunHarness, agent: ExternalAgent, view: str) -> None:
    begun = bench.run(
        scripted_model(call("cat pkg/core.py"), call(EDIT), finish()), agent=agent, points=ALL_POINTS
    )
    record = load_record(bench, begun)
    steps = len(HISTORIES[view](record, Recipient()).steps) if view in HISTORIES else 0
    look = call("ls ~/.takeover/events; cat pkg/core.py")
    model = scripted_model(*[None] * steps, look, finish())
    state = bench.take_over(model, view, agent=agent)
    first = model.seen[0]
    assert sum(isinstance(each, AIMessage) for each in first) == steps
    assert "n * 3" in parse_events(state)[1].text
    assert ("e3.txt" in parse_events(state)[1].text) is (view == "cited")
    # Every event of the record is accounted for.
    assert sum(state["external"]["account"].values()) == (len(record.trace) if view in HISTORIES else 0)
    if view == "transcript":
        results = [each.text for each in first if isinstance(each, ToolMessage)]
        assert "return n + 1" in results[0]


def test_built_in_agent_takes_over_from_an_external_one(bench: RunHarness, agent: ExternalAgent) -> None:
    bench.run(scripted_model(call(EDIT), finish()), agent=agent, points=ALL_POINTS)
    state = bench.take_over(
        scripted_model(None, "```bash\ncat pkg/core.py\n```", "<finish></finish>"), "transcript"
    )
    assert "n * 3" in parse_events(state)[1].text


@pytest.mark.slow
def test_an_agent_that_ends_early_leaves_a_record(bench: RunHarness, agent: ExternalAgent) -> None:
    # The command kills its own agent, as `pkill python` would.
    model = scripted_model(call(EDIT), call("echo kept > kept.txt; kill -9 $PPID"), finish())
    outcome = bench.run_to_outcome(model, agent=agent, points=ALL_POINTS)
    assert (outcome.status, outcome.stop_reason) == (RunStatus.STOPPED, "agent_ended")
    record = load_record(bench, outcome.state)
    assert record.point.kind == "requested"
    assert "the agent ended" in record.point.detail
    assert [change.path for change in record.trace[-1].changes] == ["kept.txt"]
    taken = bench.take_over(scripted_model(call("cat kept.txt"), finish()), record=record.id, agent=agent)
    assert "kept" in parse_events(taken)[1].text


def test_commands_in_the_background_are_recorded_and_told(bench: RunHarness, agent: ExternalAgent) -> None:
    server = "echo running as p1  # python3 -m http.server"
    model = scripted_model(call(server), call(EDIT), call("echo p1 has ended"), finish())
    begun = bench.run(model, agent=agent, points=ALL_POINTS)
    record = load_record(bench, begun)
    assert record.external is not None
    assert record.external.running == (server,)
    for view in ("structured", "transcript", "repository"):
        text = find_view(view)(record)[-1].text
        assert "They do not run here." in text
        assert "http.server" in text


def test_an_agent_that_cannot_start_is_one_line(bench: RunHarness, agent: ExternalAgent) -> None:
    program = agent.program.model_copy(update={"argv": ("python3", "/opt/takeover/small/missing.py")})
    broken = agent.model_copy(update={"program": program})
    with pytest.raises(ExternalAgentError, match=r"small 1\.0\.0 ended: .*missing\.py") as caught:
        bench.run(scripted_model(finish()), agent=broken)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_time_limit_ends_the_agent(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call(EDIT), call("sleep 100"), finish())
    outcome = bench.run_to_outcome(model, agent=agent, points=ALL_POINTS, max_seconds=6.0)
    assert outcome.stop_reason in ("agent_ended", "max_seconds")
    assert outcome.seconds < 60
    assert outcome.records


def test_thread_belongs_to_its_agent(bench: RunHarness, agent: ExternalAgent) -> None:
    bench.run(scripted_model(call(EDIT), call(TEST), finish()), agent=agent, max_steps=1)
    with pytest.raises(SettingsError, match="the thread belongs to small"):
        bench.resume(scripted_model("<finish></finish>"))
    bench.run(scripted_model("<finish></finish>"), thread="own")
    with pytest.raises(SettingsError, match="offer_handoff: not for the external agent small"):
        bench.run(scripted_model(finish()), thread="third", agent=agent, offer_handoff=True)


def test_budget_stops_the_run_and_a_larger_one_continues(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call(EDIT), call(TEST), finish())
    outcome = bench.run_to_outcome(model, agent=agent, max_steps=1, points=ALL_POINTS)
    assert (outcome.stop_reason, outcome.steps) == ("max_steps", 1)
    resumed = bench.resume(model, agent=agent, max_steps=9, points=ALL_POINTS)
    assert (resumed.status, resumed.steps) == (RunStatus.FINISHED, 3)


def test_fork_restores_the_sandbox_of_its_step(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call("echo a > log"), call("echo b >> log"), call("cat log"), finish())
    with bench.open_run(model, agent=agent) as run:
        run.start("t", "Write.")
        after_first = next(
            each
            for each in reversed(bench.home.history("thread"))
            if each.step == 1 and each.next == ("think",)
        )
        model.replies[1:] = [call("echo c >> log"), call("cat log"), finish()]
        outcome = run.resume(checkpoint=after_first.checkpoint)
    assert outcome.events[-2].text.split()[2:] == ["a", "c"]


HOSTILE = r"""
python3 - <<'E'
import json, socket, urllib.request, urllib.error
def post(body, path="/v1/chat/completions"):
    try:
        request = urllib.request.Request(f"http://127.0.0.1:8377{path}", body, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return type(error).__name__
tools = [{"type": "function", "function": {"name": "x", "parameters": {}}}]
forged = json.dumps({"model": "m", "messages": [{"role": "user", "content": "spend"}], "tools": tools}).encode()
print("forged", post(forged))
print("garbage", post(b"{" * 100000))
print("huge", post(b" " * (33 << 20)))
print("path", post(b"{}", "/v1/../etc/passwd"))
print("flood", sorted({str(post(forged)) for _ in range(80)}))
E
"""


def test_hostile_requests_are_refused_and_counted(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call(HOSTILE), finish())
    outcome = bench.run_to_outcome(model, agent=agent)
    assert outcome.status is RunStatus.FINISHED
    lines = dict(line.split(" ", 1) for line in outcome.events[1].text.splitlines()[1:])
    assert lines["forged"] == "409"
    assert lines["garbage"] == "400"
    assert lines["huge"] in ("413", "BrokenPipeError", "URLError", "ConnectionResetError")
    assert lines["path"] == "404"
    assert "200" not in lines["flood"]
    assert len(model.seen) == 2
    refused = outcome.state["external"]["refused_requests"]
    assert refused["unexpected request"] >= 1


class VendorEndpoint(BaseHTTPRequestHandler):
    """An endpoint of a vendor, which answers with its own bytes."""

    bodies: list[bytes]
    keys: list[str]
    replies: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(body)
        self.keys.append(self.headers["Authorization"])
        message = self.replies[len(self.bodies) - 1]
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "choices": [choice], "vendor_field": "ünchanged"}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def vendor() -> Iterator[tuple[type[VendorEndpoint], str]]:
    command = {"name": "bash", "arguments": json.dumps({"command": "echo $((6*7))"})}
    calls = [{"id": "call_v", "type": "function", "function": command}]
    replies = [
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "kept as it is"},
        {"role": "assistant", "content": "Done."},
    ]
    handler = type("Handler", (VendorEndpoint,), {"bodies": [], "keys": [], "replies": replies})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_requests_pass_to_the_vendor_byte_for_byte(
    bench: RunHarness, agent: ExternalAgent, vendor: tuple[type[VendorEndpoint], str]
) -> None:
    handler, url = vendor
    key = "sk-runtime-key-0123456789abcdef"
    model = VendorModel(api="chat", base_url=url, api_key=SecretStr(key), model_name="vendor")
    outcome = bench.run_to_outcome(model, agent=agent, model_name=None)
    assert outcome.status is RunStatus.FINISHED
    assert outcome.events[1].text == "exit 0\n42\n"
    # The agent itself got the vendor's fields, and sent them back.
    second = json.loads(handler.bodies[1])
    assert second["messages"][1]["reasoning_content"] == "kept as it is"
    assert handler.keys == [f"Bearer {key}"] * 2
    assert key.encode() not in b"".join(handler.bodies)
