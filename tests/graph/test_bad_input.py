"""Invalid input of callers, models and disks: one typed line that names the fix, and no data is lost."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool
from typing_extensions import Unpack

from langgraph_takeover import (
    build_agent,
    build_takeover,
    deliver,
    open_home,
    open_run,
    resume,
    run,
    run_team,
    take_over,
)
from langgraph_takeover.errors import (
    InputError,
    SettingsError,
    ThreadExistsError,
    ThreadNameError,
    ThreadNotFoundError,
)
from langgraph_takeover.graph.runs import api
from langgraph_takeover.graph.usage_errors import UnstorableValueError
from langgraph_takeover.handoff.ledger import LedgerUnavailableError
from langgraph_takeover.handoff.records.record import RecordError
from langgraph_takeover.handoff.trace.events import PointKind
from langgraph_takeover.handoff.views import UnknownViewError
from langgraph_takeover.nodes.context.settings import AgentConfig, MissingContextError
from langgraph_takeover.nodes.context.team_members import Team
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.nodes.session.state_store import SnapshotNotFoundError
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError

from ..conftest import mount, mount_small_disk, skip_missing
from .conftest import (
    BOTH_DATABASES,
    DONE,
    EDIT,
    NOTE,
    PROMPT,
    SHOW,
    RunHarness,
    Scripted,
    get_shown_lines,
    native_reply,
    parse_events,
    scripted_model,
)

HOSTILE = ["", " ", "nul\0", "new\nline", "\ud800", "x" * 5_000, None, 5]


UNDER_REVIEW: Any = {"policy": "review", "points": ("first_source_edit",)}


def start(bench: RunHarness, *replies: Any, task_id: Any = "t", prompt: Any = PROMPT, **settings: Any) -> Any:
    """Begin a run of `thread` in the bench's sandbox."""
    options = {"model": scripted_model(*replies), "sandbox": bench.spec, **settings}
    return run(bench.home, "thread", task_id=task_id, prompt=prompt, **options)


def open_scripted(bench: RunHarness, *replies: Any) -> Any:
    return open_run(bench.home, "thread", model=scripted_model(*replies), sandbox=bench.spec)


def expect_no_database(says: str, *arguments: Any) -> None:
    with expect_error(LedgerUnavailableError, says), open_home(*arguments):
        pass


@contextmanager
def expect_error(kind: type[Exception], says: str) -> Iterator[None]:
    """Check for a one-line error of that kind whose message matches."""
    with pytest.raises(kind) as caught:
        yield
    line = str(caught.value)
    assert re.search(says, line), line
    assert "\n" not in line
    assert len(line) < 500


# Settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_step": 3}, r"^unknown setting 'max_step' \(did you mean max_steps\? known: protocol, .*max_steps"),
        ({"zzz": 3}, r"^unknown setting 'zzz' \(known: protocol, "),
        ({"max_steps": 0}, "^max_steps: Input should be greater than 0, not 0$"),
        ({"max_seconds": "long"}, "^max_seconds: .*valid number.*, not 'long'$"),
        ({"policy": "reviews"}, "^policy: Input should be 'record', 'stop', 'review' or 'takeover', not 'reviews'$"),
        ({"points": ("edit",)}, "^points.0: Input should be 'first_source_edit', .* not 'edit'$"),
        ({"protocol": "json"}, "^protocol: Input should be 'text' or 'native', not 'json'$"),
        ({"max_cost": 1.0}, r"^max_cost needs prices .pass prices=Prices\("),
        ({"prices": {"prompt": 1}}, "^prices.completion: Field required"),
        ({"prices": {"prompt": 1, "completion": -1}}, "^prices.completion: .*greater than or equal to 0"),
        ({"model": None}, "^model: Input should be a BaseChatModel, not None$"),
        ({"model": "gpt-5"}, "^model: Input should be a BaseChatModel, not 'gpt-5'$"),
        ({"tools": [print]}, "^tools.0: Input should be a BaseTool, not <built-in function print>$"),
        ({"sandbox": None}, r"^sandbox: not a SandboxSpec: None .pass for instance SandboxSpec.backend='host'"),
        ({"snapshot_every": "steps"}, "^snapshot_every: unknown value 'steps' .use 'step', 'point' or 'never'.$"),
        ({"policy": "takeover"}, "^policy='takeover' needs the model that takes over .pass successor=.$"),
    ],
)  # fmt: skip
def test_invalid_settings(bench: RunHarness, settings: dict[str, Any], says: str) -> None:
    with expect_error(SettingsError, says):
        start(bench, DONE, **settings)
    assert bench.home.threads() == ()
    assert bench.run(scripted_model(DONE))["stop_reason"] == "finished"


class WithoutTools(Scripted):
    """A model that does not support tools."""

    bind_tools = BaseChatModel.bind_tools


class RefusingTools(Scripted):
    """A model that rejects tools only when they are bound."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("kind", [WithoutTools, RefusingTools])
def test_a_model_without_tool_support(bench: RunHarness, kind: type[Scripted]) -> None:
    model = kind(replies=[DONE], seen=[], tools=[])
    says = rf"needs a model with bind_tools, which {kind.__name__} lacks \(use protocol='text'\)$"
    with expect_error(SettingsError, says):
        bench.run(model, protocol="native")
    assert bench.home.threads() == (() if kind is WithoutTools else ("thread",))
    assert bench.run(model, thread="other")["stop_reason"] == "finished"


def test_options_have_the_types_of_the_settings() -> None:
    declared = AgentConfig.model_fields | Team.model_fields
    fields = {name: field.annotation for name, field in declared.items()}
    fields |= {"points": Sequence[PointKind], "tools": Sequence[BaseTool]}  # wider types
    team = Team.model_fields.keys() - {"agents"}
    agents = AgentConfig.model_fields.keys() - {"model", "model_name", "delegation"}
    own = get_type_hints(open_run)
    run_options = own.keys() - {"home", "thread", "model", "agents", "sandbox", "settings", "return"}
    known = fields | own | {"model": BaseChatModel}
    for call, kind, names in (
        (open_run, api.OpenRunSettings, agents | team),
        (run, api.AgentRunOptions, agents | run_options),
        (run_team, api.TeamRunOptions, agents | run_options | team),
        (take_over, api.AgentRunOptions, agents | run_options),
        (deliver, api.DeliveryOptions, (agents | run_options) - {"agent_name"}),
        (resume, api.TeamRunOptions, agents | run_options | team),
    ):
        assert Unpack[kind] in get_type_hints(call).values()
        assert get_type_hints(kind) == {name: known[name] for name in names}


@pytest.mark.parametrize("initialised", [False, True])
def test_a_directory_without_a_commit(bench: RunHarness, tmp_path: Path, initialised: bool) -> None:
    directory = tmp_path / "plain"
    directory.mkdir()
    if initialised:
        subprocess.run(["git", "init", "-q", directory], check=True)
    says = r"^task t: its base has no git repository with a commit: .* \(run git init and git commit there\)$"
    with expect_error(SandboxUnavailableError, says):
        start(bench, DONE, sandbox=SandboxSpec(backend="process", directory=directory, owner="test-agent"))


def test_a_graph_without_its_context(bench: RunHarness) -> None:
    for graph, state in ((build_agent(), {"task": {}}), (build_takeover(), {"record": "r"})):
        says = r"needs context=AgentContext\(.*open_run builds it.*got NoneType$"
        with expect_error(MissingContextError, says):
            graph.invoke(state)
    with open_scripted(bench, EDIT, DONE) as agent_run:
        with expect_error(MissingContextError, "got NoneType$"):
            agent_run.agent.invoke({"task": {"id": "t", "prompt": PROMPT}}, agent_run.config)
        assert agent_run.agent.invoke(None, **agent_run.options)["stop_reason"] == "finished"


@pytest.mark.parametrize(
    "state", [{}, {"task": {}}, {"task": {"id": "t"}}, {"messages": [HumanMessage("hi")]}]
)
def test_a_graph_without_its_task(bench: RunHarness, state: Any) -> None:
    with open_scripted(bench, DONE) as agent_run:
        says = r'^task: the input must be \{"task": \{"id": …, "prompt": …\}\}; id and prompt must be text$'
        with expect_error(InputError, says):
            agent_run.agent.invoke(state, **agent_run.options)
        task = {"task": {"id": "t", "prompt": PROMPT}}
        assert agent_run.agent.invoke(task, **agent_run.options)["stop_reason"] == "finished"


# Names


@pytest.mark.parametrize("thread", HOSTILE)
@BOTH_DATABASES
def test_invalid_thread_ids(bench: RunHarness, thread: Any) -> None:
    actions: list[Callable[[], Any]] = [
        lambda: bench.run(scripted_model(DONE), thread=thread),
        lambda: bench.resume(scripted_model(DONE), thread=thread),
        lambda: bench.home.history(thread),
        lambda: bench.home.request_handoff(thread),
    ]
    for act in actions:
        with expect_error(
            ThreadNameError, "use 1 to 255 characters, none of them a control character|pass text"
        ):
            act()
    assert bench.home.threads() == ()


@pytest.mark.slow
@BOTH_DATABASES
def test_unusual_thread_ids_are_distinct(bench: RunHarness) -> None:
    paths = ("..", ".", "a/b", "a_b", "../../x", "/etc")
    threads = [*paths, "ü🎉" * 60, "x" * 255, "'; DROP TABLE takeover_leases", "%s{}"]
    names = set()
    for thread in threads:
        state = bench.run(scripted_model(EDIT, DONE), thread=thread, run_id="", points=("first_source_edit",))
        (name,) = state["records"]
        names.add(name)
        assert bench.store.load(name).thread_id == thread
        assert bench.home.history(thread)[0].step == 2
    assert len(names) == len(threads)
    assert set(bench.store.list_ids()) == names
    assert set(bench.home.threads()) == set(threads)
    assert {path.name for path in bench.store.root.iterdir()} == names


@pytest.mark.slow
@pytest.mark.parametrize("record", [*HOSTILE, "..", "../records/r", "/etc/passwd", "nothing.here"])
def test_missing_records(bench: RunHarness, record: Any) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    settings: Any = {"model": scripted_model(DONE), "sandbox": bench.spec}
    says = "(invalid record id|record not found): .*known records: run.first_source_edit.$"
    with expect_error(RecordError, says):
        take_over(bench.home, "taking", record_id=record, view="trace", **settings)
    # Nothing started there, so the thread is free.
    assert bench.home.threads() == ("thread",)
    done = take_over(bench.home, "taking", record_id="run.first_source_edit", view="trace", **settings)
    assert done.stop_reason == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("view", ["nothing", "x" * 5_000, "nul\0", "../trace", 5])
def test_unknown_views(bench: RunHarness, view: Any) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    settings: Any = {"model": scripted_model(DONE), "sandbox": bench.spec}
    says = r"^unknown view .* \(use repository, trace, summary, structured, payload, transcript, cited\)$"
    with expect_error(UnknownViewError, says):
        take_over(bench.home, "taking", record_id="run.first_source_edit", view=view, **settings)
    assert bench.home.threads() == ("thread",)
    done = take_over(bench.home, "taking", record_id="run.first_source_edit", **settings)
    assert done.state["view"] == "structured"


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("task", "prompt"), [(None, "p"), ("t", None), (5, "p"), ("t", ""), ("t", " \n"), ("t", b"p")]
)
def test_invalid_tasks(bench: RunHarness, task: Any, prompt: Any) -> None:
    with expect_error(InputError, "^task: task_id and prompt must be text, the prompt not empty; got "):
        start(bench, DONE, task_id=task, prompt=prompt)
    assert bench.home.threads() == ()
    assert bench.run(scripted_model(DONE))["stop_reason"] == "finished"


@pytest.mark.sampled(6)
@pytest.mark.slow
@BOTH_DATABASES
@pytest.mark.parametrize("task", ["", "../..", "a/b", "nul\0", "x" * 100_000, "ü🎉"])
def test_unusual_tasks(bench: RunHarness, task: str) -> None:
    with pytest.raises(ModelError):
        start(bench, EDIT, ModelError("gone"), task_id=task, prompt=f"{task} prompt", model_tries=1)
    with pytest.raises(ThreadExistsError) as caught:
        start(bench, DONE, task_id="other")
    assert len(str(caught.value)) < 300
    done = bench.resume(scripted_model("", DONE))
    assert (done.stop_reason, done.state["task"]["id"]) == ("finished", task)
    assert bench.store.load("thread.first_source_edit").task.prompt == f"{task} prompt"


@pytest.mark.parametrize("database", ["postgres"])
def test_missing_checkpoints(bench: RunHarness) -> None:
    bench.run(scripted_model(DONE))
    for checkpoint in ("", "nul\0", "x" * 5_000, "'; --", "1f0"):
        with expect_error(ThreadNotFoundError, "has no checkpoint .*; its newest is .* lists all\\)$"):
            bench.resume(scripted_model(DONE), checkpoint=checkpoint)


# States


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"messages": [object()]},
            r"^messages: give LangChain messages such as HumanMessage\('…'\), not <obj",
        ),
        ({"messages": "hi"}, "^messages: give a list of messages, not 'hi'$"),
        ({"messages": None}, "^messages: give a list of messages, not None$"),
        ({"nonsense": 1}, "^unknown state key 'nonsense' .known: messages, task, "),
        ({"events": [{"a": 1}]}, "^events.0.index: Field required"),
        ({"fired": [object()]}, "^fired.0: "),
        ({"steps": "many"}, "^steps: .*valid integer.* not 'many'$"),
        ({"spent": {"seconds": len}}, "^spent.prompt_tokens: Field required"),
        ({"stop_reason": "tired"}, "^stop_reason: "),
        ({"edits": [{"a": object()}]}, "^edits.0.a"),
        ({"task": {"id": "t"}}, "^task.prompt: Field required"),
        (None, "^a state update is a dict of values, not None$"),
    ],
)
def test_invalid_state_updates(bench: RunHarness, values: Any, says: str) -> None:
    bench.run(scripted_model(EDIT, DONE))
    before = bench.home.history("thread")
    with open_scripted(bench, DONE) as agent_run:
        with expect_error(InputError, says):
            agent_run.update_state(values)
        unknown = "^as_node: unknown node 'nowhere' .use begin, think, next_call, agent, "
        with expect_error(InputError, unknown):
            agent_run.update_state({}, as_node="nowhere")
        with expect_error(SnapshotNotFoundError, "sandbox_state: no snapshot 'gone'"):
            agent_run.update_state({"sandbox_state": "gone"})
        assert bench.home.history("thread") == before
        assert agent_run.resume().stop_reason == "finished"


def test_a_valid_state_update(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE))
    before = next(moment for moment in bench.home.history("thread") if moment.step == 1)
    with open_scripted(bench, "", DONE) as agent_run:
        values = {"messages": [HumanMessage("Stop now.")]}
        at = agent_run.update_state(values, checkpoint=before.checkpoint, as_node="shell")
        done = agent_run.resume(checkpoint=at)
    assert [message.text for message in done.state["messages"]][-2:] == ["Stop now.", DONE]


@BOTH_DATABASES
def test_an_unstorable_message(bench: RunHarness) -> None:
    odd = AIMessage(EDIT, additional_kwargs={"socket": object()})
    with expect_error(UnstorableValueError, r"AIMessage \(a state holds messages, text, numbers"):
        bench.run(scripted_model(NOTE.format(1), odd, DONE))
    done = bench.resume(scripted_model("", SHOW, DONE))
    assert get_shown_lines(done.state) == ["1"]
    with (
        open_scripted(bench, DONE) as agent_run,
        expect_error(UnstorableValueError, "and lists and dicts of them"),
    ):
        agent_run.update_state({"messages": [odd]})


def test_invalid_answers(bench: RunHarness) -> None:
    model = scripted_model(EDIT, "Summary.", "Fields.", DONE)
    bench.run(model, **UNDER_REVIEW)
    choice = (
        r"""^answer: decision: Input should be 'approve' or 'refuse' \(for example {"decision": "approve", """
    )
    for answer, says in (
        ({"decision": "yes"}, choice),
        ({"view": "nothing"}, "^answer: view: Input should be 'repository', "),
        ({"veiw": "trace"}, "^answer: veiw: "),
        ("yes", "^answer: "),
        ([], "^answer: "),
    ):
        with expect_error(InputError, says):
            bench.resume(model, answer, **UNDER_REVIEW)
    assert bench.resume(model, {"decision": "approve"}, **UNDER_REVIEW).stop_reason == "handoff"


# Replies


def corrections(state: Any) -> list[str]:
    return [event.text for event in parse_events(state) if event.refused]


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ('```json\n{"name": "browser", "arguments": {"url": "x"}}\n```', "You have no tool 'browser'. Your tools: shell,"),
        ('```json\n{"name": "", "arguments": {}}\n```', "You have no tool ''|contains no action"),
        ('```json\n{"name": "shell", "arguments": {"command": ["ls"]}}\n```', "command must be text, not a list"),
        ('<editor command="insert" path="a" line="x"><new>y</new></editor>', "line must be a line number"),
        (f"{EDIT}\n{EDIT}", "contains 2 actions .*nothing was run"),
        ("```bash\ntouch unfinished", "never closed"),
        ("```bash\n\n```", "empty"),
        ("I am thinking.", "contains no action"),
        ('```json\n{"name": "finish", "arguments": {"answer": "x"}}\n```', "finish takes no answer; the action was not run"),
        ("", "is empty: it contains no text and no action"),
    ],
)  # fmt: skip
def test_replies_without_an_action(bench: RunHarness, reply: str, says: str) -> None:
    events: list[dict[str, Any]] = []
    model = scripted_model(reply, SHOW.replace("notes.txt", "pkg/core.py"), DONE)
    state = bench.run(model, on_progress=events.append)
    (correction,) = corrections(state)
    (refusal,) = [each for each in events if each.get("refused")]
    observed = {"event": "observed", "step": 1, "exit_code": None, "refused": True}
    assert refusal == observed | {"text": correction}
    assert re.search(says, correction), correction
    assert state["stop_reason"] == "finished"
    assert get_shown_lines(state) == ["def double(n):", "    return n + 1"]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (native_reply(("browser", '{"url": "x"}')), "You have no tool 'browser'"),
        (native_reply(("shell", '{"command": {"a": 1}}')), "command must be text, not a dict"),
        (native_reply(("shell", "{not json")), "not valid JSON"),
        (native_reply(("shell", '{"command": "ls"}'), ("shell", '{"command": "pwd"}')), "contains 2 actions"),
    ],
)
def test_native_calls_without_an_action(bench: RunHarness, reply: AIMessage, says: str) -> None:
    model = scripted_model(reply, native_reply(("finish", "{}")))
    state = bench.run(model, protocol="native", parallel_tool_calls=False)
    (correction,) = corrections(state)
    assert says in correction
    assert state["stop_reason"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    "filling", ["word ", "`", "```", "<", "{", "```\nx\n", '{"name": ', "<editor>", "\n"]
)
def test_a_megabyte_of_reasoning(bench: RunHarness, filling: str) -> None:
    reasoning = filling * (1_000_000 // len(filling))
    replies = [f"{reasoning}\n\n{NOTE.format(1)}", *[NOTE.format(2)] * 10, DONE]
    state = bench.run(scripted_model(*replies))
    assert state["stop_reason"] == "finished"
    assert parse_events(state)[0].text == replies[0]
    # The reply is stored once and journaled once, not again with each of ten further steps.
    kept = sum(path.stat().st_size for path in bench.home.directory.glob("takeover.sqlite*"))
    assert kept < 8_000_000


def test_a_megabyte_of_output(bench: RunHarness) -> None:
    state = bench.run(scripted_model("```bash\nhead -c 1000000 /dev/zero | tr '\\0' x\n```", DONE))
    shown = parse_events(state)[1].text
    assert len(shown) < 11_000
    assert "characters left out" in shown


# Databases and disks


@BOTH_DATABASES
def test_a_database_of_a_newer_program(bench: RunHarness, tmp_path: Path) -> None:
    bench.run(scripted_model(DONE))
    refusals = {
        99: "schema version 99, which a newer version wrote; .* reads only 8 .update the program",
        1: "schema version 1, which version 0.1 reads; .* reads only 8 .finish its threads",
    }
    for version, says in refusals.items():
        with bench.home.ledger.write_transaction() as connection:
            connection.exec_driver_sql(f"UPDATE takeover_schema SET version = {version}")
        expect_no_database(says, tmp_path / "home", bench.home.ledger.url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "'nonsense' is not a database URL .use sqlite:///FILE or postgresql://"),
        ("sqlite:////nowhere/at/all/x.sqlite", "directory not found: /nowhere/at/all"),
        ("postgresql://me:secret@127.0.0.1:1/none", "is the server running, and the URL right"),
        ("oracle://x", "driver is not installed"),
    ],
)
def test_missing_databases(tmp_path: Path, url: str, says: str) -> None:
    expect_no_database(says, tmp_path, url)


def test_invalid_database_files(tmp_path: Path) -> None:
    (tmp_path / "takeover.sqlite").write_text("Dear diary, " * 1_000)
    expect_no_database("not a database; .*name another file$", tmp_path)
    (tmp_path / "file").write_text("")
    expect_no_database(r"\(pass a writable directory\)$", tmp_path / "file" / "home")


def test_a_read_only_home(tmp_path: Path) -> None:
    directory = tmp_path / "home"
    with open_home(directory) as home:
        bench = RunHarness(tmp_path, home)
        with pytest.raises(ModelError):
            bench.run(scripted_model(NOTE.format(1), ModelError("gone")), model_tries=1)
    with mount("--bind", directory, directory):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)
        expect_no_database("the file and its directory must be writable", directory)
        expect_no_database("pass a writable directory", directory / "below")
    with open_home(directory) as home:
        bench.home = home
        assert get_shown_lines(bench.resume(scripted_model("", SHOW, DONE)).state) == ["1"]


def test_a_home_that_becomes_read_only(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "home", "64m") as directory:
        with open_home(directory) as home:
            bench = RunHarness(tmp_path, home)
            model = scripted_model(NOTE.format(1), NOTE.format(2), SHOW, DONE)

            def listen(moment: dict[str, Any]) -> None:
                if (moment["event"], moment["step"]) == ("thinking", 1):
                    _set_immutable(directory, True)

            try:
                with pytest.raises((LedgerUnavailableError, OSError, SandboxUnavailableError)) as caught:
                    bench.run(model, on_progress=listen)
            finally:
                _set_immutable(directory, False)
            assert "\n" not in str(caught.value)
        with open_home(directory) as home:
            bench.home = home
            assert get_shown_lines(bench.resume(model).state) == ["1", "2"]


def _set_immutable(home: Path, immutable: bool) -> None:
    for path in (*home.glob("takeover.sqlite*"), home / "snapshots"):
        command = ["chattr", "+i" if immutable else "-i", str(path)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0 and immutable:
            skip_missing(f"no immutable files here, which takes root: {done.stderr.decode().strip()}")


def test_messages_survive_json(bench: RunHarness) -> None:
    bench.run(scripted_model(DONE))
    with pytest.raises(ThreadNotFoundError) as caught:
        bench.resume(scripted_model(DONE), thread="other")
    assert bench.home.threads() == ("thread",)
    assert json.loads(json.dumps(str(caught.value))) == "thread not found: 'other' (known threads: thread)"
