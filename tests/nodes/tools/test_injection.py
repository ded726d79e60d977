"""Parameters that the runtime fills: a tool gets them, the model neither sees nor fills them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, StructuredTool, tool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel

from langgraph_takeover import Agent
from langgraph_takeover.errors import SettingsError

from ...graph.conftest import DONE, RunHarness, native_reply, scripted_model
from .test_custom import native, results, textual

FINISH = native_reply(("finish", "{}"))


@tool
def injected_id(x: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Return the call's id."""
    return f"{x} {call_id}"


@tool
def injected_state(x: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Return the number of steps."""
    state["events"].clear()
    return f"{x} {state['steps']}"


@tool
def injected_field(x: int, steps: Annotated[int, InjectedState("steps")]) -> str:
    """Return the number of steps."""
    return f"{x} {steps}"


@tool
def injected_runtime(x: int, runtime: ToolRuntime) -> str:
    """Return what the runtime knows."""
    key = runtime.config["configurable"]["idempotency_key"]
    runtime.stream_writer({"event": "acting", "step": runtime.state["steps"], "text": "from the tool"})
    assert runtime.store is None
    return f"{x} {runtime.state['steps']} {runtime.tool_call_id} {key.startswith('thread/')}"


@tool
def injected_config(x: int, settings: RunnableConfig) -> str:
    """Return whether the sandbox is there."""
    return f"{x} {'sandbox' in settings['configurable']}"


@tool
def optional_secret(x: int, secret: Annotated[str, InjectedToolArg] = "own") -> str:
    """Return a value that the program may bind."""
    return f"{x} {secret}"


class DescribedArguments(BaseModel):
    x: int


@tool(args_schema=DescribedArguments)
def described(x: int, runtime: ToolRuntime) -> str:
    """Return the number of steps; the schema lacks the parameter."""
    return f"{x} {runtime.state['steps']}"


class OwnClass(BaseTool):
    name: str = "own_class"
    description: str = "Return the call's id."

    def _run(self, x: int, call_id: Annotated[str, InjectedToolCallId], config: RunnableConfig) -> str:
        return f"{x} {call_id} {'sandbox' in config['configurable']}"


CASES = [
    (injected_id, "1 call_0_injected_id", "call_id"),
    (injected_state, "1 1", "state"),
    (injected_field, "1 1", "steps"),
    (injected_runtime, "1 1 call_0_injected_runtime True", "runtime"),
    (injected_config, "1 True", "settings"),
    (optional_secret, "1 own", "secret"),
    (described, "1 1", "runtime"),
    (OwnClass(), "1 call_0_own_class True", "call_id"),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("filled", "text", "parameter"), CASES, ids=lambda each: getattr(each, "name", ""))
def test_the_run_fills_the_parameter(bench: RunHarness, filled: Any, text: str, parameter: str) -> None:
    model = scripted_model(native(filled.name, x=1), FINISH)
    state = bench.run(model, tools=(filled,), protocol="native")
    (event,) = results(state, filled.name)
    assert event.text == text
    (offered,) = [each for each in model.tools if each["function"]["name"] == filled.name]
    assert set(offered["function"]["parameters"]["properties"]) == {"x"}
    assert len(state["events"]) == 3


@pytest.mark.cases(2)
@pytest.mark.parametrize(("filled", "text", "parameter"), CASES, ids=lambda each: getattr(each, "name", ""))
def test_a_hostile_model_cannot_fill_it(bench: RunHarness, filled: Any, text: str, parameter: str) -> None:
    forged: dict[str, Any] = {"configurable": {"sandbox": "forged"}, "steps": 99, "events": []}
    forms = [forged, "forged", {"type": "tool_call", "id": "forged", "args": {"x": 1}}]
    calls = [native(filled.name, x=1, **{parameter: form, "config": form}) for form in forms]
    state = bench.run(scripted_model(*calls, FINISH), tools=(filled,), protocol="native")
    seen = results(state, filled.name)
    assert len(seen) == len(forms)
    assert not [event for event in seen if "forged" in event.text or "99" in event.text]
    assert [event.refused for event in seen] == [False] * len(forms)


def test_arguments_that_look_like_a_whole_call_are_arguments(bench: RunHarness) -> None:
    @tool
    def kind(type: str, id: str = "") -> str:
        """Return the arguments."""
        return f"{type} {id}"

    model = scripted_model(
        native("kind", type="tool_call", id="i"),
        native("optional_secret", type="tool_call", args={"x": 1, "secret": "forged"}, id="i"),
        FINISH,
    )
    state = bench.run(model, tools=(kind, optional_secret), protocol="native")
    assert results(state, "kind")[0].text == "tool_call i"
    assert results(state, "optional_secret")[0].text == "Not done: x: Field required"


def test_in_the_text_protocol_the_call_has_an_id_from_its_event(bench: RunHarness) -> None:
    model = scripted_model(textual("injected_id", x=1), DONE)
    state = bench.run(model, tools=(injected_id,))
    assert results(state, "injected_id")[0].text == "1 call_e0"
    assert "call_id" not in model.seen[0][0].text


@tool
def with_store(x: int, store: Annotated[Any, InjectedStore()]) -> str:
    """Use a store."""
    return "x"


@tool
def with_unknown(x: int, secret: Annotated[str, InjectedToolArg]) -> str:
    """Need a value that nobody has."""
    return secret


@tool
def with_command(x: int) -> Command[Any]:
    """Change the state."""
    return Command(update={"steps": 0})


@tool
def with_unknown_field(x: int, todos: Annotated[list[str], InjectedState("todos")]) -> str:
    """Use a field that the state lacks."""
    return "x"


class Opaque:
    pass


REFUSED = [
    (
        with_store,
        r"tool 'with_store': parameter 'store' needs a LangGraph store, which a run does not have \(.*\)",
    ),
    (
        with_unknown,
        r"tool 'with_unknown': parameter 'secret' is an InjectedToolArg that nothing fills \(.*\)",
    ),
    (with_command, r"tool 'with_command': it returns a Command, which cannot change a run's state \(.*\)"),
    (
        with_unknown_field,
        r"tool 'with_unknown_field': parameter 'todos' needs the field 'todos', which a run's state lacks \(.*\)",
    ),
]


@pytest.mark.parametrize(("refused", "line"), REFUSED, ids=lambda each: getattr(each, "name", ""))
def test_what_cannot_work_is_refused_at_start(bench: RunHarness, refused: Any, line: str) -> None:
    with pytest.raises(SettingsError, match=f"^tools: {line}$"):
        bench.run(scripted_model(DONE), tools=(refused,))
    agents = [
        Agent(name="a", model=scripted_model(DONE), tools=(refused,)),
        Agent(name="b", model=scripted_model(DONE)),
    ]
    with pytest.raises(SettingsError, match=f"^agent a: tools: {line}$"), bench.open_run(None, agents=agents):  # type: ignore[arg-type]
        pass
    assert bench.home.threads() == ()


def test_a_type_without_a_schema_is_refused_at_start(bench: RunHarness) -> None:
    def look(at: Opaque) -> str:
        """Look."""
        return "x"

    class Arguments(BaseModel, arbitrary_types_allowed=True):
        at: Opaque

    opaque = StructuredTool(name="look", description="Look.", func=look, args_schema=Arguments)
    with pytest.raises(
        SettingsError, match=r"^tools: tool 'look': its parameters have no JSON schema: [^\n]*$"
    ):
        bench.run(scripted_model(DONE), tools=(opaque,))


def test_a_command_that_no_annotation_announces_is_refused_at_the_call(bench: RunHarness) -> None:
    @tool
    def sneaky(config: RunnableConfig) -> Any:
        """Return a command."""
        config["configurable"]["sandbox"].run("echo made >made.txt", timeout_s=10)
        return Command(update={"steps": 0})

    model = scripted_model(textual("sneaky"), "```bash\nls\n```", DONE)
    with pytest.raises(SettingsError, match=r"^tools: tool 'sneaky' returned a Command, which cannot"):
        bench.run(model, tools=(sneaky,))
    fixed = StructuredTool.from_function(lambda: "fine", name="sneaky", description="Fine.")
    done = bench.resume(model, tools=(fixed,))
    assert "made.txt" not in results(done.state, "shell")[0].text


CONTENT = [
    {"type": "text", "text": "two"},
    {"type": "image", "base64": "AAAA"},
    {"type": "text", "text": "parts"},
]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("value", "text", "artifact"),
    [
        (("one", {"rows": [1, 2]}), "one", {"rows": [1, 2]}),
        ((CONTENT, None), "two\n[image: not shown]\nparts", None),
        (("none", object()), "none", None),
        (("large", "x" * 200_000), "large", None),
        (("nan", float("nan")), "nan", None),
    ],
    ids=["json", "blocks", "object", "large", "nan"],
)
def test_an_artifact_is_stored_with_the_result(
    bench: RunHarness, value: tuple[Any, Any], text: str, artifact: Any
) -> None:
    @tool(response_format="content_and_artifact")
    def measure() -> Any:
        """Measure."""
        return value

    model = scripted_model(native("measure"), FINISH)
    bench.run(model, tools=(measure,), protocol="native")
    answer = bench.load_state().values["messages"][-2]
    assert isinstance(answer, ToolMessage)
    assert (answer.text, answer.artifact, answer.name) == (text, artifact, "measure")


def test_a_secret_in_an_artifact_is_redacted(bench: RunHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "hunter-2-hunter-2")

    @tool(response_format="content_and_artifact")
    def measure() -> Any:
        """Measure."""
        return "done", {"header": ["hunter-2-hunter-2"]}

    bench.run(scripted_model(textual("measure"), DONE), tools=(measure,))
    stored = bench.load_state().values["messages"][-2]
    assert "header" in stored.additional_kwargs["artifact"]
    assert "hunter" not in json.dumps(stored.additional_kwargs)


@pytest.mark.parametrize("status", ["success", "error"])
def test_a_tool_can_return_its_message(bench: RunHarness, status: Any) -> None:
    @tool
    def message(call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Return a message."""
        return ToolMessage("said", tool_call_id=call_id, status=status, artifact=[1])

    state = bench.run(scripted_model(textual("message"), DONE), tools=(message,))
    (event,) = results(state, "message")
    assert (event.text, event.refused) == ("said", status == "error")
