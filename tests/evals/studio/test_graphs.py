"""LangGraph's development server with every graph, used as Studio uses it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from langgraph_takeover import open_home
from langgraph_takeover.evals.models import ORACLE, ModelEntry, ModelPrice
from langgraph_takeover.evals.studio import graphs
from langgraph_takeover.evals.studio.forms import ChoiceError
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks
from langgraph_takeover.handoff.ledger import acquire, effects
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.sandbox import default_backend

from ...chat_server import ChatServer
from ...langgraph_dev import DevServer, stream_reply
from ..conftest import ROOT

NODES = {"think", "next_call", "shell", "editor", "tool", "delegate", "handoff", "finish", "interruption"}
TOKEN = "a-token-of-the-tests-" + "x" * 32
FINISH = "<finish>Done.</finish>"


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


# The replies of each model, in order; the number of earlier replies selects the next one.
SCRIPTS: dict[str, list[str | None]] = {
    "notes": [bash("echo one >> notes.txt"), bash("echo two >> notes.txt"), bash("cat notes.txt"), FINISH],
    "reader": ["", "", bash("cat notes.txt; pwd"), FINISH],
    "other": ["", bash("cat notes.txt"), FINISH],
    "sleeper": [bash("echo up; sleep 300"), FINISH],
    "breaker": [bash("echo one >> notes.txt"), None],
    "successor": [bash("git status --short"), FINISH],
    "slow": [bash("echo one >> notes.txt; sleep 6; echo two >> notes.txt"), bash("cat notes.txt"), FINISH],
    "slower": [bash("echo one >> notes.txt; sleep 20; echo two >> notes.txt"), bash("cat notes.txt"), FINISH],
    "mender": ["", bash("cat notes.txt"), FINISH],
    "served-judge": ['<handoff to="tester">Fix it, verify it and finish.</handoff>'] * 3,
}


def answer_request(request: dict[str, Any]) -> tuple[int, bytes]:
    before = sum(message["role"] == "assistant" for message in request["messages"])
    reply = SCRIPTS[request["model"]][before]
    if reply is None:
        return 400, b'{"error": {"message": "out of order"}}'
    return (200, stream_reply(reply)) if request.get("stream") else ChatServer.reply(reply)


class Studio(DevServer):
    """The server with the graphs of Studio."""

    def __init__(self, directory: Path, base_url: str, **variables: str) -> None:
        self.repository = directory / "own"  # the only directory that clients may choose
        self.home = directory / "home"
        self.models = directory / "models.yaml"
        self.models.write_text(
            f"judge:\n  model: served-judge\n  base_url: {base_url}\n  price: {{input: 1, output: 10}}\n"
            f"locked:\n  base_url: {base_url}\n  api_key_env: LAB_API_KEY\n"
        )
        defaults = {
            "TAKEOVER_RUNS": str(self.home),
            "TAKEOVER_MODELS": "openai:notes,openai:reader",
            "TAKEOVER_MODELS_FILE": str(self.models),
            "TAKEOVER_STUDIO_TOKEN": TOKEN,
            "TAKEOVER_STUDIO_DIRECTORIES": str(self.repository),
            "TAKEOVER_STUDIO_UNISOLATED": "1" if default_backend(allow_process=True) == "process" else "",
            "OPENAI_BASE_URL": base_url,
        }
        super().__init__(
            directory,
            ROOT / "langgraph.json",
            headers={"Authorization": f"Bearer {TOKEN}"},
            **defaults | variables,
        )

    def run(self, thread: str | None, graph: str = "agent", **arguments: Any) -> list[Any]:
        """All parts that one run streams."""
        arguments = {"input": {}, "stream_mode": ["custom", "updates"], **arguments}
        return list(self.client.runs.stream(thread, graph, **arguments))

    def answer(self, thread: str, value: Any) -> list[Any]:
        """Answer a review, and return the parts that the resumed run streams up to the next review."""
        return self.run(thread, input=None, command={"resume": value}, context={"policy": "review"})

    def checkpoint(self, thread: str, step: int, node: str) -> dict[str, Any]:
        """The newest checkpoint after `step` replies whose next node is `node`."""
        history = self.client.threads.get_history(thread, limit=200)
        matches = [each for each in history if each["next"] == [node] and each["values"].get("steps") == step]
        return dict(matches[0]["checkpoint"])

    def require_free(self, thread: str) -> None:
        """Raise ThreadHeldError if a run still holds the thread."""
        with open_home(self.home) as home:
            acquire(home.ledger, thread).release()


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    chat = ChatServer()
    chat.answer = answer_request
    started = Studio(tmp_path_factory.mktemp("studio"), chat.url)
    yield started
    started.stop()
    chat.close()


def progress_events(stream: list[Any], kind: str) -> list[dict[str, Any]]:
    return [each.data for each in stream if each.event == "custom" and each.data["event"] == kind]


def read_event_text(values: dict[str, Any], index: int) -> str:
    """The text of an event, which is that of its message."""
    return str(values["messages"][values["events"][index]["message"]]["content"])


def read_event_texts(values: dict[str, Any], kind: str) -> list[str]:
    return [read_event_text(values, event["index"]) for event in values["events"] if event["kind"] == kind]


def failure(stream: list[Any]) -> str:
    (error,) = [each.data for each in stream if each.event == "error"]
    assert "\n" not in error["message"]
    return str(error["message"])


def observations(stream: list[Any]) -> list[str]:
    """The observations, without their first line, which states the exit code."""
    return [event["text"].partition("\n")[2].strip() for event in progress_events(stream, "observed")]


def choices(model: str, **others: Any) -> dict[str, Any]:
    """A context with a model other than the built-in one."""
    return {"model": f"openai:{model}", **others}


FORBIDDEN_DIRECTORY = choices("notes", directory="/nowhere")
UNISOLATED = ["process"] if default_backend(allow_process=True) == "process" else []


@pytest.fixture(scope="module")
def default_run(studio: Studio) -> tuple[str, list[Any]]:
    """A thread on which Run was pressed with an empty form, and the parts that it streamed."""
    thread = studio.thread()
    return thread, studio.run(thread)


def test_the_server_offers_every_graph_with_readable_nodes(studio: Studio) -> None:
    matches = {each["graph_id"]: each for each in studio.client.assistants.search()}
    own = {"agent": {"begin", "agent"}, "takeover": {"receive", "confirm", "agent"}}
    own["team"] = {"begin", "rotate", "pass_on"}
    assert set(matches) == set(own)
    for name, nodes in own.items():
        assert matches[name]["description"]
        drawn = studio.client.assistants.get_graph(matches[name]["assistant_id"])
        assert {node["id"] for node in drawn["nodes"]} == NODES | nodes | {"__start__", "__end__"}


@pytest.mark.slow
def test_forms_have_choices_and_defaults(studio: Studio) -> None:
    matches = {each["graph_id"]: each["assistant_id"] for each in studio.client.assistants.search()}
    agent = studio.client.assistants.get_schemas(matches["agent"])
    takeover = studio.client.assistants.get_schemas(matches["takeover"])
    team = studio.client.assistants.get_schemas(matches["team"])
    own = {"supervisor", "supervisor_model", "max_consecutive_turns", "enable_handoff_tool"}
    assert own <= set(team["context_schema"]["properties"])
    for schemas in (agent, takeover, team):
        for kind in ("input_schema", "context_schema"):
            for field in schemas[kind]["properties"].values():
                assert {"title", "default", "type"} <= set(field)
        context = schemas["context_schema"]["properties"]
        offered = ["builtin:oracle", "judge", "locked", "openai:notes", "openai:reader"]
        assert context["model"]["enum"][-5:] == offered
        assert context["model"]["default"] == context["model"]["enum"][0]
        assert context["sandbox"]["enum"] == ["auto", "host", "docker", *UNISOLATED]
        assert context["policy"]["enum"] == ["record", "stop", "review"]
        assert set(AgentState.__annotations__) <= set(schemas["state_schema"]["properties"])
    task = agent["input_schema"]["properties"]["task_id"]
    assert task["default"] in task["enum"]
    view = takeover["input_schema"]["properties"]["view"]
    assert set(VIEWS) < set(view["enum"])
    assert view["default"] in view["enum"]


def test_a_default_run_needs_no_key(studio: Studio, default_run: tuple[str, list[Any]]) -> None:
    thread, stream = default_run
    values = studio.values(thread)
    assert values["stop_reason"] == "finished"
    assert values["messages"][-1]["content"].startswith("<finish>")
    assert set(values) <= set(AgentState.__annotations__), "the state contains fields of the input form"
    assert values["records"] == [event["record"] for event in progress_events(stream, "record")]
    kinds = ["first_source_edit", "first_validation", "first_post_failure_edit"]
    assert [name.rpartition(".")[2] for name in values["records"]] == kinds
    acts = progress_events(stream, "acting")
    assert {"event": "acting", "step": 1, "tool": "shell", "text": "ls -A"} in acts
    assert "create reproduce_issue.py" in [event["text"] for event in acts]
    studio.require_free(thread)


def test_each_step_shows_its_diff_beside_its_action(
    studio: Studio, default_run: tuple[str, list[Any]]
) -> None:
    history = studio.client.threads.get_history(default_run[0], limit=200)[::-1]
    shown = {each["values"]["steps"]: each["values"]["diff"] for each in history if "diff" in each["values"]}
    created = shown[2]
    assert created.startswith("--- /dev/null\n+++ b/reproduce_issue.py\n@@ -0,0 +1,")
    assert len(set(shown.values())) == len(shown) > 3
    after = [each for each in history if each["next"] == ["editor"]]
    assert after
    assert not any("diff" in each["values"] for each in after), "a diff remains after its step"


def test_no_empty_field_is_shown(studio: Studio, default_run: tuple[str, list[Any]]) -> None:
    thread = studio.thread()
    stream = studio.run(thread, stream_mode=["values", "custom"], context={"max_steps": 1})
    states = [each.data for each in stream if each.event == "values"]
    states += [each["values"] for each in studio.client.threads.get_history(default_run[0], limit=200)]
    states += [studio.values(thread), studio.client.threads.get(thread)["values"]]
    assert len(states) > 30
    for values in states:
        assert not [name for name, value in values.items() if value in (None, "", [], {})]
        for event in values.get("events", ()):
            assert None not in event.values()
            assert "text" not in event, "the message has it too"


def test_every_checkpoint_has_a_sandbox_state(studio: Studio, default_run: tuple[str, list[Any]]) -> None:
    history = studio.client.threads.get_history(default_run[0], limit=200)
    assert history[-1]["next"] == ["__start__"]
    assert history[-2]["next"] == ["begin"]
    started = history[:-2]
    assert all(each["values"]["sandbox_state"] for each in started)
    assert (
        len({each["values"]["sandbox_state"] for each in started}) > 3
    )  # steps that only look change nothing
    lengths = [len(each["values"]["messages"]) for each in started]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.slow
def test_a_thread_accepts_one_task(studio: Studio, default_run: tuple[str, list[Any]]) -> None:
    thread = studio.thread()
    studio.run(thread, context={"max_steps": 1})
    assert studio.values(thread)["stop_reason"] == "max_steps"
    before = studio.client.threads.get_history(thread, limit=200)
    assert failure(studio.run(thread)) == (
        "ThreadExistsError: this thread already holds rota__rota-23 (start another thread, or resume from one of this "
        "thread's checkpoints)"
    )
    assert studio.client.threads.get_history(thread, limit=200) == before


@pytest.mark.slow
def test_resubmitting_the_form_does_not_end_a_review(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context={"policy": "review"})
    (waiting,) = studio.client.threads.get_state(thread)["interrupts"]
    error = failure(studio.run(thread, context={"policy": "review"}))
    assert error.endswith(" (it waits for an answer: resume it with one)")
    state = studio.client.threads.get_state(thread)
    assert (state["next"], state["interrupts"]) == (["interruption"], [waiting])
    studio.answer(thread, {"decision": "approve"})
    assert studio.values(thread)["stop_reason"] == "handoff"


@pytest.mark.slow
def test_another_bundled_task_can_be_selected(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, input={"task_id": "ledger__ledger-12"}, context={"policy": "stop"})
    values = studio.values(thread)
    assert values["task"]["id"] == "ledger__ledger-12"
    assert values["stop_reason"] == "point"


@pytest.mark.slow
def test_resuming_from_a_checkpoint_restores_its_sandbox_state(studio: Studio) -> None:
    thread = studio.thread()
    assert observations(studio.run(thread, context=choices("notes")))[-1] == "one\ntwo"
    for step, node, observation_count in ((2, "think", 1), (2, "shell", 2), (0, "think", 3)):
        checkpoint = studio.checkpoint(thread, step, node)
        stream = studio.run(thread, input=None, checkpoint=checkpoint, context=choices("notes"))
        assert observations(stream)[-1] == "one\ntwo", (
            "a duplicate or missing note: the run entered another sandbox state"
        )
        assert len(observations(stream)) == observation_count


@pytest.mark.slow
def test_a_fork_with_an_edited_state_restores_the_sandbox_of_its_parent(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context=choices("notes"))
    update, at = (
        {"messages": [{"role": "user", "content": "Look around first."}]},
        studio.checkpoint(thread, 2, "think"),
    )
    forked = studio.client.threads.update_state(thread, update, checkpoint=at, as_node="shell")
    stream = studio.run(thread, input=None, checkpoint=forked["checkpoint"], context=choices("reader"))
    (seen,) = observations(stream)
    assert seen.splitlines()[:2] == ["one", "two"]
    assert "Look around first." in [message["content"] for message in studio.values(thread)["messages"]]
    at = studio.checkpoint(thread, 1, "think")
    other = studio.run(thread, input=None, checkpoint=at, context=choices("other"))
    assert observations(other) == ["one"]


@pytest.mark.slow
def test_an_edited_step_runs_as_edited(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context=choices("notes"))
    history = studio.client.threads.get_history(thread, limit=200)
    (thought,) = [each for each in history if each["next"] == ["shell"] and each["values"]["steps"] == 2]
    action = thought["values"]["events"][-1]
    action["arguments"]["command"] = "cat notes.txt; echo three >> notes.txt"
    update = {"events": [action], "messages": thought["values"]["messages"][-1:], "steps": 2, "fired": []}
    at = thought["parent_checkpoint"]
    forked = studio.client.threads.update_state(thread, update, checkpoint=at, as_node="think")
    stream = studio.run(thread, input=None, checkpoint=forked["checkpoint"], context=choices("notes"))
    assert observations(stream) == ["one", "one\nthree"]
    values = studio.values(thread)
    reply = bash(action["arguments"]["command"])
    assert read_event_text(values, action["index"]) == reply
    assert values["messages"][len(thought["values"]["messages"]) - 1]["content"] == reply
    assert "echo two" not in json.dumps([values["events"], values["messages"]]), (
        "the state contains the step as it was before the edit"
    )


@pytest.mark.slow
def test_an_existing_event_cannot_be_added_again(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context=choices("notes", max_steps=1))
    state = studio.client.threads.get_state(thread)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        studio.client.threads.update_state(thread, {"events": state["values"]["events"]}, as_node="think")
    assert "the checkpoint has 2 events, so the next index is 2, not 0" in refused.value.response.text
    assert studio.client.threads.get_state(thread)["checkpoint"] == state["checkpoint"]


@pytest.mark.slow
def test_files_of_an_earlier_step_can_be_read(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context=choices("notes"))
    checkpoint = studio.checkpoint(thread, 1, "think")
    look = {
        "index": 2,
        "kind": "action",
        "tool": "shell",
        "text": "",
        "arguments": {"command": "cat notes.txt"},
    }
    fork = studio.client.threads.update_state(
        thread, {"events": [look], "fired": []}, checkpoint=checkpoint, as_node="think"
    )
    seen = studio.run(
        thread,
        input=None,
        checkpoint=fork["checkpoint"],
        context=choices("notes"),
        interrupt_after=["shell"],
    )
    assert observations(seen) == ["one"]
    values = studio.values(thread)
    assert len(values["events"]) == 4
    assert read_event_text(values, 2) == values["messages"][-2]["content"] == bash("cat notes.txt")


@pytest.mark.slow
def test_another_agent_takes_over_after_a_review(studio: Studio) -> None:
    thread, review = studio.thread(), {"policy": "review"}
    studio.run(thread, context=review)
    (waiting,) = studio.client.threads.get_state(thread)["interrupts"]
    question: Any = waiting["value"]
    assert question["point"] == "first_source_edit"
    assert "rota/planning/slots.py" in question["note"]
    assert waiting["response_schema"]["properties"]["view"]["enum"] == list(VIEWS)
    studio.require_free(thread)

    for answer, message in {
        '{"decision": "perhaps"}': "decision: Input should be 'approve' or 'refuse' (example: {",
        "{}": "review: {} is not an answer (use an object such as "
        '{"decision": "approve", "view": "structured"})',
        '"yes"': 'review: "yes" is not an answer (use an object such as '
        '{"decision": "approve", "view": "structured"})',
        '{"successor": "gpt"}': "successor: unknown model 'gpt' (use builtin:oracle, judge, locked or openai:NAME, or omit it)",
    }.items():
        assert failure(studio.answer(thread, json.loads(answer))).startswith(message)
    assert studio.client.threads.get_state(thread)["interrupts"] == [waiting]
    reviewed = {"view": "structured", "successor": "openai:successor", "note": "Check the buffer."}
    studio.answer(thread, {"decision": "approve", **reviewed})
    assert studio.values(thread)["stop_reason"] == "handoff"

    another = studio.thread()
    studio.run(another, context=review)
    (waits,) = studio.client.threads.get_state(another)["interrupts"]
    waits_too = studio.run(studio.thread(), "takeover", input={"record": waits["value"]["record"]})
    assert f"awaits its review (answer it on thread {another}, or choose another record)" in failure(
        waits_too
    )

    after = studio.thread()
    studio.run(after, "takeover")
    values = studio.values(after)
    assert (values["record"], values["view"]) == (question["record"], "structured")
    assert "Check the buffer." in values["messages"][1]["content"]
    assert read_event_texts(values, "action") == SCRIPTS["successor"]
    assert values["stop_reason"] == "finished"


@pytest.mark.slow
def test_a_run_continues_after_a_refused_handoff(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context={"policy": "review"})
    (waiting,) = studio.client.threads.get_state(thread)["interrupts"]
    context = {"policy": "record"}
    studio.run(thread, input=None, command={"resume": {"decision": "refuse"}}, context=context)
    assert studio.values(thread)["stop_reason"] == "finished"
    refused = waiting["value"]["record"]
    stream = studio.run(studio.thread(), "takeover", input={"record": refused})
    assert failure(stream) == f"record: {refused} was refused in its review (choose another record)"


@pytest.mark.slow
def test_a_takeover_restores_the_sandbox_of_its_record(
    studio: Studio, default_run: tuple[str, list[Any]]
) -> None:
    record = studio.values(default_run[0])["records"][0]
    thread = studio.thread()
    studio.run(thread, "takeover", input={"record": record, "view": "repository"})
    values = studio.values(thread)
    assert values["stop_reason"] == "finished"
    assert values["view"] == "repository"
    listing = read_event_texts(values, "observation")[0]
    assert "reproduce_issue.py" in listing, (
        "the predecessor wrote it, and the repository view does not mention it"
    )
    saved = RecordStore(studio.home / "records").load(record)
    edited = [change for event in saved.trace for change in event.changes if change.path.startswith("rota/")]
    repeated = [
        change
        for event in values["events"]
        for change in event.get("changes", ())
        if change["path"] == edited[-1].path
    ]
    assert repeated[0]["before"] == edited[-1].after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "passes"),
    [
        ({}, [("writer", "tester", "rotation"), ("tester", "writer", "rotation")]),
        ({"enable_handoff_tool": True, "max_consecutive_turns": 30}, [("writer", "tester", "handoff")]),
        (
            {"supervisor": True, "max_consecutive_turns": 8},
            [("supervisor", "writer", "handoff"), ("writer", "supervisor", "supervisor")],
        ),
    ],
    ids=["rotation", "handoff", "supervisor"],
)
def test_a_team_needs_no_key(studio: Studio, chosen: dict[str, Any], passes: list[Any]) -> None:
    thread = studio.thread()
    stream = studio.run(thread, "team", context=chosen)
    values = studio.values(thread)
    assert values["stop_reason"] == "finished", studio.log()
    made = [(each["source"], each["target"], each["how"]) for each in values["passes"]]
    assert made[: len(passes)] == passes
    assert values["agent"] == "tester"
    event_agents = [each.data["agent"] for each in stream if each.event == "custom"]
    assert set(event_agents) == {name for each in passes for name in each[:2]} | {"tester"}
    assert len(progress_events(stream, "passed")) == len(made)
    record = values["records"][-1]
    assert RecordStore(studio.home / "records").load(record).point.kind in (
        "requested",
        "first_post_failure_edit",
    )
    after = studio.thread()
    studio.run(after, "takeover", input={"record": record, "view": "trace"})
    assert studio.values(after)["stop_reason"] == "finished"


@pytest.mark.slow
def test_a_supervisor_has_a_model_of_its_own(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(
        thread, "team", context={"supervisor": True, "supervisor_model": "judge", "max_consecutive_turns": 30}
    )
    values = studio.values(thread)
    assert values["stop_reason"] == "finished", studio.log()
    assert [(each["source"], each["target"]) for each in values["passes"]] == [("supervisor", "tester")]


@pytest.mark.slow
def test_an_entry_of_the_models_file_has_a_window_and_prices(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context={"model": "judge", "max_steps": 1})
    spent = studio.values(thread)["spent"]
    assert spent["cost"] == pytest.approx((spent["prompt_tokens"] + 10 * spent["completion_tokens"]) / 1e6)
    assert spent["cost"] > 0


def test_a_team_with_different_prices_has_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap = ModelEntry(model="m", price=ModelPrice(input=1.0, output=2.0))
    dear = ModelEntry(model="m", price=ModelPrice(input=9.0, output=9.0))
    monkeypatch.setattr(graphs, "load_served_models", lambda: {"cheap": cheap, "same": cheap, "dear": dear})
    assert graphs.select_model_settings("cheap", "same")["prices"] == cheap.prices
    assert graphs.select_model_settings("cheap", "")["prices"] == cheap.prices
    for other in ("dear", "openai:m", ORACLE):
        assert graphs.select_model_settings("cheap", other)["prices"] is None


@pytest.mark.slow
def test_a_name_of_the_server_may_contain_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = load_tasks(BUNDLED, limit=1)
    name = "openai:m@http://127.0.0.1:1/v1"
    monkeypatch.setenv("TAKEOVER_MODELS", name)
    assert graphs.build_model("model", name, task)
    monkeypatch.setenv("TAKEOVER_MODELS", "openai:m")
    with pytest.raises(ChoiceError, match="model: openai:m: OPENAI_API_KEY is not set"):
        graphs.build_model("model", "openai:m", task)


@pytest.mark.slow
def test_a_team_continues_after_a_review(studio: Studio) -> None:
    thread, review = studio.thread(), {"policy": "review", "max_consecutive_turns": 2}
    studio.run(thread, "team", context=review)
    (waiting,) = studio.client.threads.get_state(thread)["interrupts"]
    assert waiting["value"]["detail"] == "writer: max_consecutive_turns (2)"
    studio.run(thread, "team", input=None, command={"resume": {"decision": "approve"}}, context=review)
    assert studio.values(thread)["agent"] == "tester"
    (waiting,) = studio.client.threads.get_state(thread)["interrupts"]
    assert waiting["value"]["detail"] == "tester: max_consecutive_turns (2)"
    assert "offer_handoff: not available for teams (use enable_handoff_tool)" in failure(
        studio.run(studio.thread(), "team", context={"offer_handoff": True})
    )


@pytest.mark.slow
def test_a_thread_held_by_another_process_is_refused(studio: Studio) -> None:
    thread = studio.thread()
    with open_home(studio.home) as home:
        lease = acquire(home.ledger, thread)
        assert re.search(
            r"ThreadHeldError: .* is held by process .* \(wait for it", failure(studio.run(thread))
        )
        lease.release()
    studio.run(thread, context={"max_steps": 1})
    assert studio.values(thread)["stop_reason"] == "max_steps"


@pytest.mark.slow
def test_a_cancelled_run_releases_its_thread_and_sandbox(studio: Studio) -> None:
    thread, run_id = studio.thread(), ""
    for each in studio.client.runs.stream(
        thread, "agent", input={}, context=choices("sleeper"), stream_mode=["custom"]
    ):
        run_id = run_id or each.data["run_id"]
        if each.event == "custom" and each.data["event"] == "acting":
            studio.client.runs.cancel(thread, run_id, wait=True)
    studio.wait_until_idle(thread)
    studio.require_free(thread)
    assert studio.client.threads.get_state(thread)["next"] == ["shell"]
    stream = studio.run(thread, input=None, context=choices("sleeper", command_timeout_s=1))
    assert observations(stream) == ["up"]
    assert studio.values(thread)["stop_reason"] == "finished"


@pytest.mark.slow
def test_a_run_resumes_after_a_failed_model_call(studio: Studio) -> None:
    thread = studio.thread()
    assert "the endpoint answered 400: out of order" in failure(
        studio.run(thread, context=choices("breaker"))
    )
    studio.require_free(thread)
    assert observations(studio.run(thread, input=None, context=choices("mender"))) == ["one"]


@pytest.mark.slow
def test_replies_are_streamed_word_by_word(studio: Studio) -> None:
    thread = studio.thread()
    stream = studio.run(thread, context=choices("notes"), stream_mode=["messages-tuple"])
    assert not [each for each in stream if each.event == "error"]
    chunks = [each.data[0]["content"] for each in stream if each.event == "messages"]
    assert any(chunk.strip() == "one" for chunk in chunks)
    assert studio.values(thread)["messages"][2]["content"] == SCRIPTS["notes"][0]


@pytest.mark.slow
def test_a_run_without_a_server_thread(studio: Studio) -> None:
    stream = studio.run(None, context={"max_steps": 2})
    assert [event["text"] for event in progress_events(stream, "acting")] == [
        "ls -A",
        "create reproduce_issue.py",
    ]


@pytest.mark.slow
def test_a_custom_repository(studio: Studio) -> None:
    own = studio.repository
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(own)]
    subprocess.run([*git[:5], "init", "-q", str(own)], check=True)
    (own / "notes.txt").write_text("zero\n")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "base"], check=True)
    thread = studio.thread()
    context = choices("notes", directory=str(own))
    assert "a custom repository needs a prompt" in failure(studio.run(thread, context=context))
    stream = studio.run(thread, input={"prompt": "Keep notes."}, context=context)
    assert observations(stream)[-1] == "zero\none\ntwo"
    assert (own / "notes.txt").read_text() == "zero\n"
    checkpoint = studio.checkpoint(thread, 2, "think")
    forgotten = studio.run(thread, input=None, checkpoint=checkpoint, context=choices("reader"))
    assert "pass the repository or image that it started from" in failure(forgotten)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"context": {"model": "claude"}},
            "model: unknown model 'claude' (choose builtin:oracle, judge, locked or openai:NAME)",
        ),
        (
            {"context": {"model": "openai:m@http://127.0.0.1:9/v1"}},
            "model: unknown model 'openai:m@http://127.0.0.1:9/v1'",
        ),
        ({"context": {"model": "locked"}}, "model: locked: LAB_API_KEY is not set"),
        (
            {"graph": "team", "context": {"supervisor": True, "supervisor_model": "claude"}},
            "supervisor_model: unknown model 'claude'",
        ),
        ({"context": {"policy": "ask"}}, "policy: Input should be 'record', 'stop' or 'review'"),
        ({"context": {"max_steps": 0}}, "max_steps: Input should be greater than 0"),
        (
            {"context": FORBIDDEN_DIRECTORY, "input": {"prompt": "Go."}},
            "directory: '/nowhere' is not allowed on this server",
        ),
        ({"input": {"task_id": "rota"}}, "task_id: unknown bundled task 'rota' (choose from: "),
        (
            {"input": {"prompt": "Write a poem."}},
            "builtin:oracle supports only the bundled tasks and prompts",
        ),
        (
            {"graph": "takeover", "input": {"record": "mine"}},
            "unknown record 'mine' (choose from, newest first: ",
        ),
        ({"graph": "takeover", "input": {"view": "whole"}}, "(choose from: as reviewed, repository, trace"),
    ],
)
def test_invalid_choices_are_reported_in_one_line(
    studio: Studio, default_run: tuple[str, list[Any]], arguments: dict[str, Any], message: str
) -> None:
    thread = studio.thread()
    assert message in failure(studio.run(thread, **arguments))
    studio.require_free(thread)


@pytest.mark.slow
def test_threads_and_sandboxes_survive_a_restart(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context=choices("notes", max_steps=2))
    assert studio.values(thread)["stop_reason"] == "max_steps"
    studio.stop()
    studio.start()
    checkpoint = studio.checkpoint(thread, 2, "think")
    assert observations(studio.run(thread, input=None, checkpoint=checkpoint, context=choices("notes"))) == [
        "one\ntwo"
    ]


@pytest.mark.slow
def test_a_run_resumes_after_the_server_was_stopped(studio: Studio) -> None:
    thread = studio.thread()
    run = studio.client.runs.create(thread, "agent", input={}, context=choices("slow"))["run_id"]
    studio.wait_until_it_runs(["sleep", "6"])
    studio.stop()
    studio.start()
    studio.wait_until_ended(thread, run)
    values = studio.values(thread)
    assert values["stop_reason"] == "finished", studio.log()
    seen = read_event_texts(values, "observation")
    assert seen[1] == "[exit code 0]\none\ntwo\n"


@pytest.mark.slow
def test_a_killed_server_loses_no_checkpoint(studio: Studio) -> None:
    finished, interrupted = studio.thread(), studio.thread()
    studio.run(finished, context=choices("notes"))
    before = studio.client.threads.get_history(finished, limit=200)
    run = studio.client.runs.create(interrupted, "agent", input={}, context=choices("slower"))["run_id"]
    studio.wait_until_it_runs(["sleep", "20"])
    studio.wait_until_listed(run)
    studio.kill()
    studio.start()
    assert studio.client.threads.get_history(finished, limit=200) == before
    checkpoint = studio.checkpoint(finished, 2, "think")
    forked = studio.run(finished, input=None, checkpoint=checkpoint, context=choices("notes"))
    assert observations(forked) == ["one\ntwo"]
    studio.wait_until_ended(interrupted, run)
    values = studio.values(interrupted)
    assert values["stop_reason"] == "finished", studio.log()
    seen = read_event_texts(values, "observation")
    assert seen[1] == "[exit code 0]\none\ntwo\n"

    history = studio.client.threads.get_history(finished, limit=200)
    studio.kill()
    studio.listed.unlink()
    studio.start()
    assert not studio.client.threads.search(ids=[finished])
    studio.client.threads.create(thread_id=finished, graph_id="agent")
    assert studio.client.threads.get_history(finished, limit=200) == history


@pytest.mark.slow
def test_a_missing_snapshot_is_reported_with_advice(studio: Studio) -> None:
    thread = studio.thread()
    studio.run(thread, context=choices("notes"))
    checkpoint = studio.checkpoint(thread, 1, "think")
    with open_home(studio.home) as home:
        snapshot = effects.find_snapshot(
            home.ledger, studio.values(thread, checkpoint=checkpoint)["sandbox_state"]
        )
    assert snapshot is not None
    (archive,) = (studio.home / "snapshots").rglob(f"*{snapshot.digest}*/{snapshot.location}")
    archive.unlink()
    advice = " (resume from another checkpoint of the thread, or take over another record)"
    error = failure(studio.run(thread, input=None, checkpoint=checkpoint, context=choices("notes")))
    assert error.endswith(f"the snapshot's archive is missing (restore it from a copy){advice}")
    with open_home(studio.home) as home:
        lease = acquire(home.ledger, thread)
        effects.remove(lease, effects.list_state_ids(home.ledger, thread))
        lease.release()
    error = failure(studio.run(thread, input=None, checkpoint=checkpoint, context=choices("notes")))
    assert error.endswith(f"none was taken, or it was deleted{advice}")


@pytest.mark.slow
def test_the_example_program_of_the_guide(
    studio: Studio, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs" / "studio.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    monkeypatch.setenv("TAKEOVER_STUDIO_TOKEN", TOKEN)
    assert "http://127.0.0.1:2024" in program
    exec(program.replace("http://127.0.0.1:2024", studio.url), {})
    printed = capsys.readouterr().out
    assert printed.startswith(str(["auto", "host", "docker", *UNISOLATED]))
    assert "## Observed" in printed
    assert "finished" in printed.splitlines()
    *_, status, output = printed.split("[exit code 0]\n")
    assert status.startswith("?? reproduce_issue.py")
    assert "import rota" in output or "from rota" in output
