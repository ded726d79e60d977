"""Spans and metrics of real runs, in the memory of OpenTelemetry's SDK."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.types import interrupt
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_state
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from langgraph_takeover import Prices, RunStatus
from langgraph_takeover.base.telemetry import CONTENT_ATTRIBUTES
from langgraph_takeover.nodes.genai_spans import CAPTURE_VARIABLE

from ..test_layers import LAYERS
from .conftest import DONE, EDIT, PROMPT, TEST, RunHarness, native_reply, scripted_model
from .runs.test_delegation import MEND, agents, calling, make_reply
from .small_agent_adapter import build_small_agent

ROOT = Path(__file__).parents[2]
SECRET = "planted-Secret-4711-xyz"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DURATION = "gen_ai.client.operation.duration"
EDIT_POINT = ("first_source_edit",)


class Recorded:
    """What the SDK has recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, traces: bool = True) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        # A process can set its providers only once, and other tests run without.
        if traces:
            monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        monkeypatch.setattr(metrics_state, "_METER_PROVIDER", meters)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def of(self, start: str) -> list[ReadableSpan]:
        """The spans whose names start so, in the order in which they began."""
        return sorted((each for each in self.spans if each.name.startswith(start)), key=_get_start)

    def one(self, start: str) -> ReadableSpan:
        (span,) = self.of(start)
        return span

    def tree(self) -> list[Any]:
        """The names of spans without a parent here, each with a list of its children."""
        known = {_get_id(each) for each in self.spans}
        roots = [each for each in self.of("") if each.parent is None or each.parent.span_id not in known]
        return [self._branch(each) for each in roots]

    def _branch(self, span: ReadableSpan) -> Any:
        inside = [each for each in self.of("") if each.parent and each.parent.span_id == _get_id(span)]
        return (span.name, [self._branch(each) for each in inside]) if inside else span.name

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric."""
        data = self.reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data else []
        found = [each for scope in scopes for each in scope.metrics if each.name == metric]
        return [point for each in found for point in each.data.data_points]

    def measure(self, metric: str, attribute: str, value: str = "count") -> dict[str, float]:
        """The counts or sums of a metric's points, by an attribute."""
        return {each.attributes[attribute]: getattr(each, value) for each in self.points(metric)}


def _get_start(span: ReadableSpan) -> int:
    return span.start_time or 0


def _get_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def get(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def all_text(spans: Sequence[ReadableSpan]) -> str:
    """Everything that an exporter would send."""
    return "\n".join(json.dumps(each.to_json()) for each in spans)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def test_a_run_is_a_tree_of_spans(bench: RunHarness, recorded: Recorded) -> None:
    look = "```bash\ncat pkg/core.py\n```"
    bench.run_to_outcome(scripted_model(EDIT, look, DONE), points=EDIT_POINT)
    edit = ("execute_tool shell", ["takeover.snapshot"])
    first = ["takeover.snapshot", "chat Scripted", edit, "takeover.handoff"]
    later = ["chat Scripted", "execute_tool shell", "chat Scripted"]
    assert recorded.tree() == [("invoke_agent scripted", [*first, *later])]


def test_spans_have_the_attributes_of_the_conventions(bench: RunHarness, recorded: Recorded) -> None:
    prices = Prices(prompt=1_000_000, completion=2_000_000)
    outcome = bench.run_to_outcome(scripted_model(EDIT, TEST, DONE), points=EDIT_POINT, prices=prices)
    run = recorded.one("invoke_agent")
    assert dict(run.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "scripted",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "Scripted",
        "gen_ai.conversation.id": "thread",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 3,
        "takeover.thread": "thread",
        "takeover.graph": "agent",
        "takeover.task": "t",
        "takeover.status": "finished",
        "takeover.stop_reason": "finished",
        "takeover.steps": 3,
        "takeover.records": ("run.first_source_edit",),
        "takeover.uncounted_calls": 0,
        "takeover.cost": 36.0,
    }
    assert outcome.cost == 36.0
    chat = recorded.of("chat")[0]
    assert chat.kind is SpanKind.CLIENT
    assert get(chat, "gen_ai.operation.name") == "chat"
    assert get(chat, "gen_ai.conversation.id") == "thread"
    assert [get(chat, f"gen_ai.usage.{kind}_tokens") for kind in ("input", "output")] == [10, 1]
    assert get(chat, "takeover.cost") == 12.0
    edit, test = recorded.of("execute_tool")
    assert (get(edit, "gen_ai.tool.name"), get(edit, "takeover.tool.exit_code")) == ("shell", 0)
    assert get(edit, "takeover.tool.changed_files") == 1
    # A failing command is a result of the tool.
    assert (get(test, "takeover.tool.exit_code"), test.status.status_code) == (1, StatusCode.UNSET)
    handoff = recorded.one("takeover.handoff")
    assert get(handoff, "takeover.record") == "run.first_source_edit"
    assert get(handoff, "takeover.point.kind") == "first_source_edit"
    first, second = recorded.of("takeover.snapshot")  # the tests leave nothing but compiled files
    assert get(second, "takeover.backend") == "process"
    assert min(get(first, "takeover.snapshot.bytes"), get(second, "takeover.snapshot.bytes")) > 0
    assert get(second, "takeover.snapshot.digest") != get(first, "takeover.snapshot.digest")
    assert get(second, "takeover.snapshot.digest") == get(handoff, "takeover.snapshot.digest")
    assert {get(each, "takeover.thread") for each in recorded.spans} == {"thread"}


def test_tokens_durations_and_costs_are_metrics(bench: RunHarness, recorded: Recorded) -> None:
    prices = Prices(prompt=1_000_000, completion=2_000_000)
    bench.run_to_outcome(scripted_model(EDIT, DONE), points=EDIT_POINT, prices=prices)
    tokens = recorded.measure("gen_ai.client.token.usage", "gen_ai.token.type", "sum")
    assert tokens == {"input": 20, "output": 2}
    counts = recorded.measure(DURATION, "gen_ai.operation.name")
    assert counts == {"chat": 2, "invoke_agent": 1}
    assert all(point.sum > 0 for point in recorded.points(DURATION))
    ours = recorded.measure("takeover.operation.duration", "takeover.operation")
    assert ours == {"execute_tool": 1, "handoff": 1, "snapshot": 2}
    (cost,) = recorded.points("takeover.chat.cost")
    assert cost.sum == 24.0


def test_metrics_need_no_traces(bench: RunHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch, traces=False)
    bench.run_to_outcome(scripted_model(EDIT, DONE))
    tokens = recorded.measure("gen_ai.client.token.usage", "gen_ai.token.type", "sum")
    assert tokens == {"input": 20, "output": 2}
    assert recorded.spans == ()
    assert {*recorded.measure(DURATION, "gen_ai.operation.name")} == {"chat", "invoke_agent"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_spans_end_with_the_error(bench: RunHarness, recorded: Recorded, error: type[BaseException]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error(f"with the key {SECRET}")

    model = scripted_model(EDIT, DONE)

    class Failing(type(model)):  # type: ignore[misc]
        def _generate(self, messages: list[Any], *arguments: Any, **named: Any) -> Any:
            return fail() if len(messages) > 2 else super()._generate(messages, *arguments, **named)

    with pytest.raises(error):
        bench.run_to_outcome(Failing(replies=model.replies, seen=[], tools=[]))
    run, chat = recorded.one("invoke_agent"), recorded.of("chat")[1]
    for span in (run, chat):
        assert (span.status.status_code, get(span, "error.type")) == (StatusCode.ERROR, error.__name__)
        assert (span.status.description, span.events) == (None, ())
    assert SECRET not in all_text(recorded.spans)
    failed = [p for p in recorded.points("gen_ai.client.operation.duration") if "error.type" in p.attributes]
    assert {p.attributes["gen_ai.operation.name"] for p in failed} == {"chat", "invoke_agent"}


def test_limits_are_no_errors(bench: RunHarness, recorded: Recorded) -> None:
    slow = "```bash\nsleep 60\n```"
    bench.run_to_outcome(scripted_model(slow, EDIT, DONE), command_timeout_s=0.5, max_steps=2)
    killed = recorded.of("execute_tool")[0]
    assert (get(killed, "takeover.tool.timed_out"), get(killed, "takeover.tool.exit_code")) == (True, None)
    run = recorded.one("invoke_agent")
    assert (get(run, "takeover.status"), get(run, "takeover.stop_reason")) == ("stopped", "max_steps")
    assert {each.status.status_code for each in recorded.spans} == {StatusCode.UNSET}


def test_a_resumed_run_links_the_earlier_one(bench: RunHarness, recorded: Recorded) -> None:
    model = scripted_model(EDIT, TEST, DONE)
    bench.run_to_outcome(model, max_steps=1)
    bench.resume(model)
    first, second = recorded.of("invoke_agent")
    assert [link.context.span_id for link in second.links] == [_get_id(first)]
    assert first.context is not None
    assert second.context is not None
    assert first.context.trace_id != second.context.trace_id
    assert get(second, "takeover.resumed") is True
    # The tokens of each run are its own.
    assert [get(each, "gen_ai.usage.input_tokens") for each in (first, second)] == [10, 20]


def test_a_successor_links_its_predecessor(bench: RunHarness, recorded: Recorded) -> None:
    bench.run_to_outcome(scripted_model(EDIT, DONE), points=EDIT_POINT, policy="stop")
    bench.take_over(scripted_model(TEST, DONE), "trace")
    predecessor, successor = recorded.of("invoke_agent")
    assert [link.context.span_id for link in successor.links] == [_get_id(predecessor)]
    names = ("takeover.graph", "takeover.record", "takeover.view", "takeover.point.kind")
    values = ["takeover", "run.first_source_edit", "trace", "first_source_edit"]
    assert [get(successor, name) for name in names] == values
    restore = recorded.one("takeover.restore")
    assert restore.parent == successor.context
    assert get(restore, "takeover.backend") == "process"
    assert get(restore, "takeover.snapshot.bytes") > 0
    digests = [get(each, "takeover.snapshot.digest") for each in (restore, recorded.one("takeover.handoff"))]
    assert digests[0] == digests[1]


def test_content_stays_out_by_default(bench: RunHarness, recorded: Recorded) -> None:
    bench.run_to_outcome(scripted_model(EDIT, DONE), points=EDIT_POINT)
    assert not any(get(each, name) for each in recorded.spans for name in CONTENT_ATTRIBUTES)
    sent = all_text(recorded.spans)
    for content in (PROMPT.splitlines()[0], "pkg/core.py", "sed -i"):
        assert content not in sent


@pytest.mark.cases(1)
@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "SPAN_AND_EVENT"])
def test_captured_content_has_no_secrets(
    bench: RunHarness, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(CAPTURE_VARIABLE, value)
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    command = f"echo {SECRET} sk-proj-{'a1B2' * 8} | base64 -d 2>/dev/null; echo visible {SECRET}"
    bench.run_to_outcome(scripted_model(f"```bash\n{command}\n```", DONE))
    sent = all_text(recorded.spans)
    assert SECRET not in sent
    assert "a1B2a1B2" not in sent
    shell = recorded.one("execute_tool")
    assert "visible [redacted]" in get(shell, "gen_ai.tool.call.result")
    assert "visible [redacted]" in json.loads(get(shell, "gen_ai.tool.call.arguments"))["command"]
    chat = recorded.of("chat")[1]
    question, answer = (json.loads(get(chat, f"gen_ai.{kind}.messages")) for kind in ("input", "output"))
    assert [each["role"] for each in question] == ["system", "user", "assistant", "user"]
    assert "visible [redacted]" in question[2]["parts"][0]["content"]
    parts = [{"type": "text", "content": DONE}]
    assert answer == [{"role": "assistant", "parts": parts, "finish_reason": "stop"}]


@pytest.mark.cases(2)
@pytest.mark.parametrize("value", ["false", "NO_CONTENT", "EVENT_ONLY", ""])
def test_other_values_capture_nothing(
    bench: RunHarness, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(CAPTURE_VARIABLE, value)
    bench.run_to_outcome(scripted_model(DONE))
    assert not any(get(each, name) for each in recorded.spans for name in CONTENT_ATTRIBUTES)


def test_captured_content_is_bounded(
    bench: RunHarness, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE_VARIABLE, "true")
    long = "```bash\ntrue '" + "x" * 100_000 + "'\n```"
    bench.run_to_outcome(scripted_model(long, DONE), observation_chars=200_000)
    for span in recorded.spans:
        for name in CONTENT_ATTRIBUTES:
            assert len(get(span, name) or "") < 40_000, (span.name, name)
    # The newest messages stay.
    messages = json.loads(get(recorded.of("chat")[1], "gen_ai.input.messages"))
    assert messages[-1]["role"] == "user"
    assert "[exit code 0]" in messages[-1]["parts"][0]["content"]


def test_children_are_below_their_parent(bench: RunHarness, recorded: Recorded) -> None:
    from langgraph_takeover import Delegation

    model = agents([calling(goal="Make GOAL true."), DONE], GOAL=[MEND, make_reply("It doubles now.")])
    bench.run(model, delegation=Delegation())
    parent, child = recorded.of("invoke_agent")
    assert child.parent == parent.context
    assert get(child, "gen_ai.conversation.id") == "thread.0.0"
    inside = [each for each in recorded.of("chat") if each.parent == child.context]
    assert {get(each, "gen_ai.conversation.id") for each in inside} == {"thread.0.0"}
    assert len(inside) == 2


@pytest.mark.parametrize("backend", ["host"])
def test_an_external_agent_has_chat_spans(bench: RunHarness, recorded: Recorded) -> None:
    call = {"name": "bash", "args": {"command": "echo hi > new.txt"}, "id": "call_1"}
    asks = AIMessage("", tool_calls=[call], response_metadata={"finish_reason": "tool_calls"})
    ends = AIMessage("Done.", response_metadata={"finish_reason": "stop"})
    outcome = bench.run_to_outcome(scripted_model(asks, ends), agent=build_small_agent())
    assert outcome.status is RunStatus.FINISHED
    run = recorded.one("invoke_agent small")
    chats = recorded.of("chat")
    assert [each.parent for each in chats] == [run.context] * 2
    assert [get(each, "gen_ai.response.finish_reasons") for each in chats] == [("tool_calls",), ("stop",)]
    tool = recorded.of("execute_tool")[0]
    assert (get(tool, "gen_ai.tool.name"), get(tool, "gen_ai.tool.call.id")) == ("shell", "call_1")


@pytest.mark.parametrize(("value", "is_parent"), [(PARENT, True), ("00-nonsense", False), ("", False)])
def test_the_environment_names_a_parent(
    bench: RunHarness, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, value: str, is_parent: bool
) -> None:
    monkeypatch.setenv("TRACEPARENT", value)
    bench.run_to_outcome(scripted_model(DONE))
    run = recorded.one("invoke_agent")
    assert (run.parent is not None) == is_parent
    if run.parent is not None:
        assert f"{run.parent.trace_id:032x}-{run.parent.span_id:016x}" in PARENT


def test_the_programs_own_span_is_the_parent(bench: RunHarness, recorded: Recorded) -> None:
    with trace.get_tracer("program").start_as_current_span("request") as request:
        bench.run_to_outcome(scripted_model(EDIT, DONE), on_progress=lambda update: None)
    assert recorded.one("invoke_agent").parent == request.get_span_context()
    # With progress LangGraph runs the nodes in other threads.
    assert [each.parent for each in recorded.of("chat")] == [recorded.one("invoke_agent").context] * 2


_WITHOUT_OPENTELEMETRY = """
import sys
sys.modules["opentelemetry"] = None
from pathlib import Path
from langchain_core.language_models import FakeListChatModel
from langgraph_takeover import SandboxSpec, open_home, run
spec = SandboxSpec(backend="process", directory=Path(sys.argv[1]), owner="test-telemetry")
model = FakeListChatModel(responses=["```bash\\ntouch new\\n```", "<finish>Done.</finish>"])
with open_home(sys.argv[2]) as home:
    print(run(home, "thread", task_id="t", prompt="Do it.", model=model, sandbox=spec).status)
"""


@pytest.mark.slow
def test_the_package_may_be_missing(bench: RunHarness, tmp_path: Path) -> None:
    assert bench.spec.directory is not None
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_OPENTELEMETRY, bench.spec.directory, tmp_path / "other"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "finished\n", "")


def test_without_a_provider_nothing_is_stored(bench: RunHarness) -> None:
    bench.run_to_outcome(scripted_model(EDIT, DONE))
    stored = bench.home.saver.get_tuple({"configurable": {"thread_id": "thread"}})
    assert stored is not None
    assert "traceparent" not in stored.metadata


def test_every_attribute_is_documented() -> None:
    """The page names each attribute, or its last part after a longer name."""
    modules = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if "suite" not in path.parts]
    texts = [path.read_text(encoding="utf-8") for path in modules]
    text = "\n".join(
        each for each in texts if "langgraph_takeover.base.telemetry" in each or "_INSTRUMENTS" in each
    )
    used = set(re.findall(r'"((?:takeover|gen_ai)\.[a-z_.]+)"', text)) | set(
        re.findall(r'"(error\.type)"', text)
    )
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    assert len(used) > 40
    assert [name for name in sorted(used) if not _is_named(name, page)] == []


def _is_named(name: str, page: str) -> bool:
    parts = name.split(".")
    suffixes = [f"`.{'.'.join(parts[start:])}`" for start in range(1, len(parts))]
    return f"`{name}`" in page or any(suffix in page for suffix in suffixes)


def test_a_question_of_a_tool_is_no_error_and_each_call_has_its_id(
    bench: RunHarness, recorded: Recorded
) -> None:
    @tool
    def ask() -> str:
        """Ask."""
        return str(interrupt("Go on?"))

    calls = native_reply(("shell", '{"command": "true"}'), ("ask", "{}"))
    model = scripted_model(calls, native_reply(("finish", "{}")))
    with bench.open_run(model, protocol="native", tools=(ask,)) as held:
        assert held.start("t", PROMPT).status is RunStatus.WAITING
        assert held.resume("yes").status is RunStatus.FINISHED
    spans = recorded.of("execute_tool")
    assert [get(each, "gen_ai.tool.call.id") for each in spans] == [
        "call_0_shell",
        "call_1_ask",
        "call_1_ask",
    ]
    assert not [each for each in recorded.spans if each.status.status_code is StatusCode.ERROR]
