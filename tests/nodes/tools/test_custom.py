"""Custom tools are called once, with the model's arguments, and the model sees their results."""

from __future__ import annotations

import asyncio
import json
import traceback
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException, tool
from pydantic import BaseModel

from langgraph_takeover.errors import SettingsError
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.model.actions import RESERVED_TOOL_NAMES
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.nodes.state_events import load_events

from ...graph.conftest import DONE, EDIT, RunHarness, native_reply, scripted_model

SHOW = "```bash\ncat made.txt\n```"


def textual(name: str, /, **arguments: Any) -> str:
    return f"```json\n{json.dumps({'name': name, 'arguments': arguments})}\n```"


def native(name: str, /, **arguments: Any) -> Any:
    return native_reply((name, json.dumps(arguments)))


def results(state: Any, name: str) -> list[Event]:
    events = load_events(state)
    return [event for event in events if (event.kind, event.tool) == ("observation", name)]


@tool
def add(a: int, b: int = 1) -> int:
    """Add two
    numbers."""
    return a + b


@tool
def note(text: str, config: RunnableConfig) -> str:
    """Write a note into the sandbox."""
    sandbox = config["configurable"]["sandbox"]
    sandbox.write_file("made.txt", text.encode())
    return f"written as {config['configurable']['idempotency_key']}"


def test_a_call_in_the_text_protocol(bench: RunHarness) -> None:
    model = scripted_model(textual("add", a=2, b=3), DONE)
    state = bench.run(model, tools=(add,))
    assert [event.text for event in results(state, "add")] == ["5"]
    assert "- `add`: Add two numbers. Arguments: " in model.seen[0][0].text
    assert model.seen[1][-1].text == "5"


def test_a_native_call(bench: RunHarness) -> None:
    model = scripted_model(native("add", a=2), native_reply(("finish", "{}")))
    state = bench.run(model, tools=(add, note), protocol="native")
    assert [event.text for event in results(state, "add")] == ["3"]
    answer = model.seen[1][-1]
    assert isinstance(answer, ToolMessage)
    assert (answer.text, answer.tool_call_id) == ("3", "call_0_add")
    offered = {each["function"]["name"]: each["function"]["parameters"] for each in model.tools}
    assert set(offered) == {"shell", "editor", "finish", "add", "note"}
    assert set(offered["note"]["properties"]) == {"text"}


@pytest.mark.parametrize("name", ["text", "native"])
def test_the_model_does_not_see_the_configuration(bench: RunHarness, name: Any) -> None:
    model = scripted_model(DONE if name == "text" else native_reply(("finish", "{}")))
    bench.run(model, tools=(note,), protocol=name)
    assert "config" not in json.dumps(model.tools)
    assert "configurable" not in model.seen[0][0].text
    assert '"config"' not in model.seen[0][0].text


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"a": "many"}, "a: Input should be a valid integer"),
        ({}, "a: Field required"),
        ({"a": None}, "a: Input should be a valid integer"),
        ({"a": {"b": 1}, "b": []}, "b: Input should be a valid integer"),
    ],
)
def test_the_model_sees_wrong_arguments(bench: RunHarness, arguments: dict[str, Any], problem: str) -> None:
    state = bench.run(scripted_model(textual("add", **arguments), textual("add", a=1), DONE), tools=(add,))
    refused, right = results(state, "add")
    assert refused.refused
    assert refused.text.startswith("Not done: ")
    assert problem in refused.text
    assert "\n" not in refused.text
    assert (right.text, right.refused) == ("2", False)


def test_a_tool_that_refuses(bench: RunHarness) -> None:
    @tool
    def ask(question: str) -> str:
        """Ask."""
        raise ToolException("nobody answered")

    (event,) = results(bench.run(scripted_model(textual("ask", question="?"), DONE), tools=(ask,)), "ask")
    assert (event.text, event.refused) == ("Not done: nobody answered", True)


class Odd:
    def __str__(self) -> str:
        return "an odd one"


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, "ü"]}, '{"a": [1, "ü"]}'),
        (None, "null"),
        (3.5, "3.5"),
        ([Odd()], '["an odd one"]'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (LOOP, "[[...]]"),
        (b"\xff", "\"b'\\\\xff'\""),
        ("a\ud800b", "a\\ud800b"),
        ("x" * 500, f"{'x' * 100}\n[… 300 characters left out; "),
    ],
    ids=["dict", "none", "number", "object", "keys", "loop", "bytes", "surrogate", "long"],
)
def test_results_are_shown_as_text(bench: RunHarness, value: Any, text: str) -> None:
    def return_value() -> Any:
        """Return it."""
        return value

    return_tool = StructuredTool.from_function(return_value)
    state = bench.run(
        scripted_model(textual("return_value"), DONE), tools=(return_tool,), observation_chars=200
    )
    (event,) = results(state, "return_value")
    assert event.text.startswith(text)
    assert bench.load_state().values["messages"][3].text == event.text


def test_effects_on_the_sandbox_are_recorded_and_restored(bench: RunHarness) -> None:
    model = scripted_model(textual("note", text="one\n"), SHOW, DONE)
    state = bench.run(model, tools=(note,))
    (event,) = results(state, "note")
    assert [change.path for change in event.changes] == ["made.txt"]
    assert results(state, "shell")[0].text == "[exit code 0]\none\n"
    before = next(m for m in bench.home.history("thread") if m.step == 2 and m.next == ("think",))
    forked = bench.resume(
        scripted_model("", "", SHOW + " ", DONE), checkpoint=before.checkpoint, tools=(note,)
    )
    assert results(forked.state, "shell")[-1].text == "[exit code 0]\none\n"


def test_an_edit_by_a_tool_fires_a_point(bench: RunHarness) -> None:
    @tool
    def fix(config: RunnableConfig) -> str:
        """Fix it."""
        sandbox = config["configurable"]["sandbox"]
        text = sandbox.read_file("pkg/core.py").decode().replace("n + 1", "n * 2")
        sandbox.write_file("pkg/core.py", text.encode())
        return "fixed"

    state = bench.run(scripted_model(textual("fix"), DONE), tools=(fix,), points=("first_source_edit",))
    assert state["records"] == ["run.first_source_edit"]
    assert "n * 2" in bench.store.load("run.first_source_edit").patch


def test_each_call_has_its_own_idempotency_key(bench: RunHarness) -> None:
    keys: list[str] = []

    @tool
    def pay(config: RunnableConfig) -> str:
        """Pay."""
        keys.append(config["configurable"]["idempotency_key"])
        if len(keys) == 2:
            raise ConnectionError("the bank hung up")
        return "paid"

    model = scripted_model(textual("pay"), textual("pay"), DONE)
    with pytest.raises(ConnectionError):
        bench.run(model, tools=(pay,))
    done = bench.resume(model, tools=(pay,))
    assert done.stop_reason == "finished"
    first, failed, again = keys
    assert failed == again != first
    assert first.startswith("thread/")


def test_a_bug_of_a_tool_keeps_its_traceback_and_the_run_resumes(bench: RunHarness) -> None:
    class Inner(BaseModel):
        n: int

    is_fixed = False

    @tool
    def look(kind: str) -> str:
        """Look."""
        if is_fixed:
            return "fine"
        if kind == "validation":
            Inner(n="x")  # type: ignore[arg-type]
        return {}["missing"]

    for kind, error in (("validation", ValueError), ("key", KeyError)):
        is_fixed = False
        model = scripted_model(EDIT, textual("look", kind=kind), DONE)
        with pytest.raises(error) as caught:
            bench.run(model, tools=(look,), thread=kind)
        assert "look" in {frame.name for frame in traceback.extract_tb(caught.tb)}
        is_fixed = True
        done = bench.resume(model, thread=kind, tools=(look,))
        assert [event.text for event in results(done.state, "look")] == ["fine"]
        assert "n * 3" in done.patch


def test_a_tool_that_is_only_asynchronous(bench: RunHarness) -> None:
    @tool
    async def fetch(name: str, config: RunnableConfig) -> str:
        """Fetch."""
        await asyncio.sleep(0)
        return f"{name} in {config['configurable']['sandbox'].cwd().rpartition('/')[2]}"

    workspace = results(bench.run(scripted_model("```bash\npwd\n```", DONE)), "shell")[0].text.strip()
    state = bench.run(scripted_model(textual("fetch", name="it"), DONE), tools=(fetch,), thread="sync")
    (event,) = results(state, "fetch")
    assert event.text == f"it in {workspace.rpartition('/')[2]}"

    async def within_a_loop() -> Any:
        return bench.run(scripted_model(textual("fetch", name="it"), DONE), tools=(fetch,), thread="loop")

    assert results(asyncio.run(within_a_loop()), "fetch")[0].text == event.text


def test_a_tool_described_by_a_schema_alone(bench: RunHarness) -> None:
    schema = {
        "title": "find",
        "description": "Find.",
        "type": "object",
        "properties": {"what": {"type": "string"}},
        "required": ["what"],
    }
    find_tool = StructuredTool(
        name="find", description="Find.", args_schema=schema, func=lambda what: f"no {what}"
    )
    model = scripted_model(textual("find", what="it"), DONE)
    (event,) = results(bench.run(model, tools=(find_tool,)), "find")
    assert event.text == "no it"
    assert '"what"' in model.seen[0][0].text
    wrong_call = scripted_model(textual("find", which="it"), DONE)
    (event,) = results(bench.run(wrong_call, tools=(find_tool,), thread="wrong"), "find")
    assert event.text == "Not done: what: Field required; which: unknown argument"
    assert event.refused


@pytest.mark.parametrize("name", sorted(RESERVED_TOOL_NAMES))
def test_a_tool_named_like_a_built_in_one_is_refused(bench: RunHarness, name: str) -> None:
    named = StructuredTool.from_function(lambda: "x", name=name, description="x")
    with pytest.raises(
        SettingsError, match=rf"^tools: the name '{name}' belongs to a built-in tool \(rename yours\)$"
    ):
        bench.run(scripted_model(DONE), tools=(named,))
    assert bench.home.threads() == ()


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("a", "a"), "two tools are named 'a'"),
        (("a b",), "invalid tool name 'a b' "),
        (("ü",), "invalid tool name 'ü' "),
    ],
)
def test_invalid_tool_names_are_refused(bench: RunHarness, names: tuple[str, ...], problem: str) -> None:
    tools = tuple(StructuredTool.from_function(lambda: "x", name=name, description="x") for name in names)
    with pytest.raises(SettingsError, match=problem):
        bench.run(scripted_model(DONE), tools=tools)


def test_an_unknown_tool_is_refused(bench: RunHarness) -> None:
    state = bench.run(scripted_model(textual("subtract", a=1), DONE), tools=(add,))
    (event,) = [event for event in load_events(state) if event.refused]
    assert "You have no tool 'subtract'. Your tools: shell, editor, finish, add" in event.text


def test_a_run_that_is_resumed_without_its_tool(bench: RunHarness) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise OSError("gone")

    model = scripted_model(textual("fail"), DONE)
    with pytest.raises(OSError, match="gone"):
        bench.run(model, tools=(fail,))
    with pytest.raises(SettingsError, match="a call of 'fail', which is missing; pass it as before"):
        bench.resume(model)
    fixed_tool = StructuredTool.from_function(lambda: "fine", name="fail", description="Fail.")
    assert bench.resume(model, tools=(fixed_tool,)).stop_reason == "finished"


def test_a_model_that_failed_after_a_tool_does_not_call_it_again(bench: RunHarness) -> None:
    calls: list[int] = []

    @tool
    def count() -> str:
        """Count."""
        calls.append(1)
        return "counted"

    with pytest.raises(ModelError):
        bench.run(scripted_model(textual("count"), ModelError("gone")), tools=(count,), model_tries=1)
    bench.resume(scripted_model("", DONE), tools=(count,))
    assert calls == [1]
