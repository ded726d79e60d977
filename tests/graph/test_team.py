"""Teams in real sandboxes: turns, prompts of each agent, and passes that are made once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool

from langgraph_takeover import Agent, build_team, deliver, hand_over, open_run, resume, run_team
from langgraph_takeover.errors import SettingsError, UnknownAgentError
from langgraph_takeover.graph.team import NODES
from langgraph_takeover.handoff.ledger import HandedOverError
from langgraph_takeover.handoff.text.fence import OPENING
from langgraph_takeover.handoff.views.team_views import TurnPass, build_timeline
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.team_turns import REFUSAL_MESSAGE
from langgraph_takeover.protocol import roll_back

from .conftest import (
    DONE,
    EDIT,
    FIX,
    NOTE,
    PROMPT,
    SHOW,
    TEST,
    RunHarness,
    Scripted,
    get_note_text,
    native_reply,
    parse_events,
    scripted_model,
)
from .delivery.test_delivery import UNDERSTOOD
from .test_growth import LOOK, MOST, SPREAD, size

ENOUGH = 20
"""Steps after which a team that does nothing is stopped."""


def agent(name: str, *replies: Any, **settings: Any) -> Agent:
    return Agent(name=name, model=scripted_model(*replies), **settings)


def get_sent_messages(member: Agent, call: int = -1) -> list[Any]:
    """The messages of one model call of an agent, without the system message."""
    assert isinstance(member.model, Scripted)
    return member.model.seen[call][1:]


def get_system_prompt(member: Agent, call: int = -1) -> str:
    assert isinstance(member.model, Scripted)
    return member.model.seen[call][0].text


class TeamBench:
    """A bench for teams."""

    def __init__(self, bench: RunHarness) -> None:
        self.home = bench.home
        self.bench = bench
        self.options: dict[str, Any] = {"sandbox": bench.spec, "points": (), "run_id": "run"}

    def run(self, *agents: Agent, **settings: Any) -> AgentState:
        options = {**self.options, "max_steps": ENOUGH, **settings}
        return run_team(self.home, "thread", task_id="t", prompt=PROMPT, agents=agents, **options).state

    def resume(self, *agents: Agent, answer: Any = None, **settings: Any) -> AgentState:
        return resume(self.home, "thread", answer=answer, agents=agents, **{**self.options, **settings}).state


@pytest.fixture
def team(bench: RunHarness) -> TeamBench:
    return TeamBench(bench)


def passes(state: AgentState) -> list[tuple[str, str, str]]:
    found = [TurnPass.model_validate(each) for each in state.get("passes", [])]
    return [(each.source, each.target, each.how) for each in found]


def actors(state: AgentState) -> list[str]:
    return [message.name or "" for message in state["messages"] if isinstance(message, AIMessage)]


def observations(state: AgentState) -> list[str]:
    return [event.text for event in parse_events(state) if event.kind == "observation"]


# Rotation


@pytest.mark.slow
def test_the_turn_rotates_after_the_turn_limit(team: TeamBench) -> None:
    notes = [NOTE.format(each) for each in range(8)]
    first = agent("first", *notes, DONE)
    second = agent("second", notes[5], DONE, max_consecutive_turns=1)
    third = agent("third", "no action", notes[6], DONE)
    state = team.run(first, second, third, max_consecutive_turns=2)
    assert actors(state) == ["first", "first", "second", "third", "third", "first", "first", "second"]
    order = ["first", "second", "third", "first", "second"]
    assert passes(state) == [(one, other, "rotation") for one, other in pairwise(order)]
    assert (state["stop_reason"], state["agent"], state["steps"]) == ("finished", "second", 8)


@pytest.mark.slow
def test_every_pass_leaves_a_record_for_takeovers(team: TeamBench) -> None:
    state = team.run(agent("writer", EDIT), agent("tester", TEST, FIX, DONE, max_consecutive_turns=9),
                     max_consecutive_turns=1, points=("first_source_edit",))  # fmt: skip
    edited, passed = [team.bench.store.load(each) for each in state["records"]]
    assert (edited.point.kind, passed.point.kind) == ("first_source_edit", "requested")
    assert passed.point.detail == "writer: max_consecutive_turns (1)"
    assert [event.text for event in passed.trace] == [event.text for event in parse_events(state)[:2]]
    successor = scripted_model(SHOW, DONE)
    taken = team.bench.take_over(successor, "trace", passed.id)
    assert taken["stop_reason"] == "finished"
    assert EDIT.splitlines()[1] in successor.seen[0][1].text
    with (
        open_run(team.home, "more", agents=[agent("one", DONE)], sandbox=team.bench.spec) as agent_run,
        pytest.raises(SettingsError, match="one agent takes over a record"),
    ):
        agent_run.take_over(passed.id)


@pytest.mark.slow
def test_an_agent_alone_keeps_its_turn(team: TeamBench) -> None:
    alone = agent("alone", *[NOTE.format(n) for n in range(5)], "<handoff>Done.</handoff>", DONE)
    state = team.run(alone, max_consecutive_turns=2, enable_handoff_tool=True)
    assert passes(state) == []
    assert "You have no tool 'handoff'" in observations(state)[-1]
    assert (state["stop_reason"], state["steps"]) == ("finished", 7)


# Prompts of an agent


def test_full_turns_are_shown_whole_and_fenced(team: TeamBench) -> None:
    writer = agent("writer", f"I think it is a star.\n\n{EDIT}", instructions="You write.\nIn haste.")
    tester = agent("tester", DONE, max_consecutive_turns=4)
    team.run(writer, tester, max_consecutive_turns=1)
    (message,) = get_sent_messages(tester)
    assert isinstance(message, HumanMessage)
    assert message.text.startswith(PROMPT.rstrip())
    head, _, shown = message.text.partition(OPENING)
    assert head.endswith("[writer] in full:\n")
    assert "## 1 · writer · shell\nI think it is a star." in shown
    assert "## 1 · result\n[exit code 0]" in shown
    assert shown.endswith("[It is your turn, tester: the turns of writer are used up.]")
    system = get_system_prompt(tester)
    assert "You are `tester`" in system
    assert "- `writer`: You write.\n" in system
    assert "After 4 turns in a row" in system
    assert "In haste." not in system
    assert "Your task in the team: You write.\nIn haste." in get_system_prompt(writer)


@pytest.mark.slow
def test_sharing_only_results_hides_messages(team: TeamBench) -> None:
    writer = agent("writer", f"A secret thought.\n\n{EDIT}", "No action.", share_only_tool_results=True)
    tester = agent("tester", DONE)
    team.run(writer, tester, max_consecutive_turns=2)
    (message,) = get_sent_messages(tester)
    assert "[writer] the results of its actions:" in message.text
    assert f"## 1 · writer · shell\n{EDIT}\n## 1 · result\n[exit code 0]" in message.text
    assert "secret" not in message.text
    assert "No action" not in message.text
    assert "contains no action" not in message.text


@pytest.mark.slow
def test_own_turns_stay_unchanged(team: TeamBench) -> None:
    writer = agent("writer", NOTE.format("a"), NOTE.format("b"), DONE, share_only_tool_results=True)
    tester = agent("tester", SHOW, SHOW)
    team.run(writer, tester, max_consecutive_turns=1)
    task, mine, seen, again, last = get_sent_messages(writer)
    assert (task.text, mine.text, again.text) == (PROMPT, NOTE.format("a"), NOTE.format("b"))
    assert mine.name is None
    assert seen.text.startswith("[exit code 0]")
    assert "[tester] in full:" in seen.text
    assert "## 4 · tester · shell" in last.text


def test_native_history_is_valid_in_a_team(team: TeamBench) -> None:
    shell = native_reply(("shell", '{"command": "ls"}'))
    writer = agent("writer", shell, shell, native_reply(("finish", "{}")), share_only_tool_results=True)
    tester = agent("tester", native_reply(("shell", '{"command": "pwd"}')), "I cannot.")
    state = team.run(writer, tester, max_consecutive_turns=1, protocol="native")
    assert state["stop_reason"] == "finished"
    kinds = [type(each) for each in get_sent_messages(writer)]
    assert kinds == [HumanMessage, *[AIMessage, ToolMessage, HumanMessage] * 2]
    assert "```bash\nls\n```" in get_sent_messages(tester)[0].text
    names = [each["function"]["name"] for each in writer.model.tools]  # type: ignore[attr-defined]
    assert names == ["shell", "editor", "finish"]


@pytest.mark.slow
def test_every_agent_sees_a_persons_message(team: TeamBench) -> None:
    agents = agent("writer", SHOW, SHOW, DONE), agent("tester", DONE)
    team.run(*agents, max_steps=1, max_consecutive_turns=2)
    message = HumanMessage("Mind the gap.")
    with open_run(team.home, "thread", agents=agents, **team.options) as agent_run:
        changed = agent_run.update_state({"messages": [message], "stop_reason": None}, as_node="shell")
        agent_run.resume(checkpoint=changed)
    assert "\n\nMind the gap.\n\n[It is your turn, tester" in get_sent_messages(agents[1])[0].text


@pytest.mark.slow
def test_every_agent_has_its_own_tools(team: TeamBench) -> None:
    @tool
    def weigh(what: str) -> str:
        """Weigh it."""
        return f"{what}: 3 g"

    @tool
    def measure(what: str) -> str:
        """Measure it."""
        return f"{what}: 3 m"

    def call(name: str) -> str:
        return f'```json\n{{"name": "{name}", "arguments": {{"what": "it"}}}}\n```'

    def having(name: str, own: BaseTool, *replies: str) -> Agent:
        return agent(name, *replies, tools=(own,))

    writer, tester = having("w", weigh, call("weigh")), having("t", measure, call("weigh"), call("measure"))
    state = team.run(writer, tester, max_consecutive_turns=1, max_steps=2)
    assert observations(state)[0] == "it: 3 g"
    assert "no tool 'weigh'" in observations(state)[1]
    assert "`measure`" in get_system_prompt(tester)
    assert "`weigh`" not in get_system_prompt(tester)


# Handoffs


TO_TESTER = '<handoff to="tester">Look at double.</handoff>'
NATIVE = native_reply(("handoff", '{"to": "tester", "message": "Look at double."}'))


def thinking(word: str) -> str:
    return f"I think of {word}.\n\n{NOTE.format(word)}"


@pytest.mark.slow
def test_a_handoff_shows_in_full_what_was_shared_as_results(team: TeamBench) -> None:
    private = {"share_only_tool_results": True, "max_consecutive_turns": 1}
    writer = agent("writer", thinking("apples"), thinking("pears"), **private)
    tester = agent("tester", thinking("plums"), DONE, **private)
    reviewer = agent("reviewer", thinking("figs"), TO_TESTER, max_consecutive_turns=2)
    state = team.run(writer, tester, reviewer, enable_handoff_tool=True)
    assert actors(state) == ["writer", "tester", "reviewer", "reviewer", "tester"]
    # Before the handoff, the rotations share results only.
    for member, call in ((tester, 0), (reviewer, 0), (reviewer, 1)):
        text = "\n".join(each.text for each in get_sent_messages(member, call))
        assert "[writer] the results of its actions:" in text
        assert "I think of apples" not in text
    assert "I think of plums" not in get_sent_messages(reviewer)[0].text
    # The handoff shows its target everything, once, and its own turns as they were.
    text = "\n".join(each.text for each in get_sent_messages(tester))
    assert "the results of its actions" not in text
    for word in ("apples", "plums", "figs"):
        assert text.count(f"I think of {word}.") == 1
    assert text.count("[writer] in full:") == text.count("[reviewer] in full:") == 1
    assert text.count("## 1 · result") == 1


@pytest.mark.slow
def test_a_handoff_to_another_agent_shows_no_more(team: TeamBench) -> None:
    private = {"share_only_tool_results": True, "max_consecutive_turns": 1}
    writer = agent("writer", thinking("apples"), thinking("pears"), **private)
    reviewer = agent("reviewer", TO_TESTER, DONE)
    tester = agent("tester", thinking("plums"), max_consecutive_turns=1)
    state = team.run(writer, reviewer, tester, enable_handoff_tool=True)
    assert actors(state) == ["writer", "reviewer", "tester", "writer", "reviewer"]
    assert "I think of apples." in get_sent_messages(tester)[0].text
    text = "\n".join(each.text for each in get_sent_messages(reviewer))
    assert text.count("[writer] the results of its actions:") == 2
    assert "I think of apples" not in text
    assert "I think of plums" in text


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("protocol", "reply"),
    [
        ("text", TO_TESTER),
        ("text", f"So.\n\n```xml\n{TO_TESTER}\n```"),
        ("text", '{"name": "handoff", "arguments": {"to": "tester", "message": "Look at double."}}'),
        ("native", NATIVE),
        ("native", f"I hand over.\n{TO_TESTER}"),
    ],
)
def test_a_handoff_ends_the_turns_immediately(team: TeamBench, protocol: Any, reply: Any) -> None:
    done: Any = DONE if protocol == "text" else native_reply(("finish", "{}"))
    writer = agent("writer", reply, share_only_tool_results=True)
    other, tester = agent("other", done), agent("tester", done)
    state = team.run(writer, other, tester, protocol=protocol, enable_handoff_tool=True)
    assert actors(state) == ["writer", "tester"]
    (passed,) = state["passes"]
    assert (passed["how"], passed["message"], passed["share"]) == ("handoff", "Look at double.", "full")
    (name,) = state["records"]
    assert team.bench.store.load(name).point.detail == "writer hands over to tester: Look at double."
    assert "[writer] in full:" in get_sent_messages(tester)[0].text
    assert "Look at double." in get_sent_messages(tester)[0].text
    if protocol == "native":
        schema = writer.model.tools[-1]["function"]["parameters"]["properties"]["to"]  # type: ignore[attr-defined]
        assert schema["enum"] == ["other", "tester"]
    else:
        assert "one of other, tester." in get_system_prompt(writer)


def test_a_handoff_without_a_name_goes_to_the_next_agent(team: TeamBench) -> None:
    agents = agent("a", NOTE.format(1), "<handoff/>"), agent("b", SHOW, "<handoff/>"), agent("c", DONE)
    state = team.run(*agents, enable_handoff_tool=True)
    assert passes(state) == [("a", "b", "handoff"), ("b", "c", "handoff")]
    assert team.bench.store.load(state["records"][0]).point.detail == "a hands over to b"


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ('<handoff to="boss">x</handoff>', "unknown agent 'boss'; name one of tester."),
        (
            '<handoff to="writer">x</handoff>',
            "you are writer yourself; name one of tester, or continue yourself.",
        ),
    ],
)
def test_a_handoff_to_an_unknown_agent_is_refused(team: TeamBench, reply: str, says: str) -> None:
    events: list[dict[str, Any]] = []
    agents = agent("writer", reply, DONE), agent("tester", DONE)
    state = team.run(*agents, enable_handoff_tool=True, on_progress=events.append)
    assert observations(state) == [f"Not handed over: {says}"]
    assert [(each["agent"], each["text"]) for each in events if each.get("refused")] == [
        ("writer", f"Not handed over: {says}")
    ]
    assert parse_events(state)[1].refused
    assert passes(state) == []
    assert actors(state) == ["writer", "writer"]


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_a_handoff_needs_the_tool(team: TeamBench, protocol: Any) -> None:
    done: Any = DONE if protocol == "text" else native_reply(("finish", "{}"))
    writer, tester = agent("writer", TO_TESTER, done), agent("tester", done, enable_handoff_tool=True)
    state = team.run(writer, tester, protocol=protocol)
    (observation,) = observations(state)
    assert observation.startswith(
        "You have no tool 'handoff', so no other agent takes over; continue yourself."
    )
    assert passes(state) == []


def test_an_idle_rotation_is_stopped(team: TeamBench) -> None:
    over = "<handoff/>"
    a, b = agent("a", over, over, SHOW, over, DONE), agent("b", over, DONE)
    state = team.run(a, b, enable_handoff_tool=True, max_consecutive_turns=9)
    assert passes(state) == [("a", "b", "handoff"), ("b", "a", "handoff"), ("a", "b", "handoff")]
    assert observations(state)[2].startswith("Not handed over: the turn has passed through all agents")
    assert actors(state) == ["a", "b", "a", "a", "a", "b"]


def test_a_refused_finish_names_the_agents_that_may_finish(team: TeamBench) -> None:
    writer, tester = agent("writer", DONE, DONE, may_finish=False), agent("tester", DONE)
    state = team.run(writer, tester, max_consecutive_turns=2)
    assert (
        observations(state)
        == [
            "Not finished: only tester may finish the task, and you are writer; continue; "
            "your turn passes to another agent automatically."
        ]
        * 2
    )
    assert actors(state) == ["writer", "writer", "tester"]
    assert "Only `tester` may finish the task; you may not." in get_system_prompt(writer)


def test_a_supervisor_chooses(team: TeamBench) -> None:
    boss = agent("boss", "<handoff>Go.</handoff>", '<handoff to="b">Go.</handoff>', SHOW, SHOW, SHOW, DONE)
    a, b = agent("a", DONE), agent("b", NOTE.format(1), NOTE.format(2), "<handoff>Back.</handoff>")
    state = team.run(a, b, supervisor=boss, max_consecutive_turns=2)
    assert observations(state)[0] == "Not handed over: name the agent that continues, as `to`: one of a, b."
    assert passes(state) == [("boss", "b", "handoff"), ("b", "boss", "supervisor")]
    assert actors(state) == ["boss", "boss", "b", "b", "boss", "boss", "boss", "boss"]
    assert "choose who continues, and hand over to that agent by name.]" in get_sent_messages(boss)[-7].text


def test_a_supervisors_turn_limit_ends_the_turns(team: TeamBench) -> None:
    boss = agent("boss", SHOW, SHOW, max_consecutive_turns=1)
    a, b = agent("a", SHOW, DONE), agent("b", DONE)
    state = team.run(a, b, supervisor=boss, max_consecutive_turns=1)
    assert actors(state) == ["boss", "a", "boss", "b"]


# Interruptions


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.sampled(8)
@pytest.mark.cases(2)
@pytest.mark.parametrize("node", ["hand_over", "consent", "pass_on", "turn"])
@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["handoff", pytest.param("rotation", marks=pytest.mark.slow)])
def test_a_pass_that_is_killed_is_made_once(
    team: TeamBench, monkeypatch: pytest.MonkeyPatch, node: str, moment: str, how: str
) -> None:
    node = "rotate" if (node, how) == ("hand_over", "rotation") else node
    last = ['<handoff to="tester">Go.</handoff>'] if how == "handoff" else []
    agents = agent("writer", NOTE.format("one"), *last), agent("tester", NOTE.format("two"), SHOW, DONE)
    settings = {"max_consecutive_turns": 9 if last else 1, "enable_handoff_tool": bool(last)}
    killed_at = len(last) + 2 if node == "turn" else 1
    if node == "turn" and how == "rotation":
        agents = agents[0], agent("tester", NOTE.format("two"), SHOW, DONE, max_consecutive_turns=9)
    with monkeypatch.context() as patch:
        patch.setitem(NODES, _place(node), _kill_at(node, moment, killed_at))
        with pytest.raises(Killed):
            team.run(*agents, **settings)
    state = team.resume(*agents, **{**settings, "max_consecutive_turns": 9})
    assert get_note_text(state) == "one\ntwo"
    assert passes(state) == [("writer", "tester", how)]
    assert len(state["records"]) == 1
    assert sorted(team.bench.store.list_ids()) == sorted(state["records"])
    assert state["stop_reason"] == "finished"
    if how == "handoff":
        assert observations(state).count("[handed over to tester]") == 1


def _place(node: str) -> str:
    return {"hand_over": "handoff", "consent": "interruption", "turn": "think"}.get(node, node)


def _kill_at(node: str, moment: str, at: int) -> Callable[..., Any]:
    real, calls = NODES[_place(node)], []

    def dying(state: AgentState, runtime: Any) -> AgentState:
        calls.append(1)
        if len(calls) == at and moment == "before":
            raise Killed
        update = real(state, runtime)
        if len(calls) == at:
            raise Killed
        return update

    dying.__annotations__ = {"state": AgentState, "runtime": Any}
    return dying


@pytest.mark.slow
def test_a_person_who_refuses_a_pass_leaves_the_turn(team: TeamBench) -> None:
    tester = agent("tester", SHOW, DONE, max_consecutive_turns=3)
    agents = agent("writer", NOTE.format(1), NOTE.format(2)), tester
    review = {"policy": "review", "max_consecutive_turns": 1}
    options = {**team.options, **review}
    outcome = run_team(team.home, "thread", task_id="t", prompt=PROMPT, agents=agents, **options)
    assert outcome.waiting is not None
    assert outcome.waiting.detail == "writer: max_consecutive_turns (1)"
    again = resume(team.home, "thread", answer={"decision": "refuse"}, agents=agents, **options)
    assert again.waiting is not None
    assert actors(again.state) == ["writer", "writer"]
    assert passes(again.state) == []
    assert any(call[-1].text.endswith(REFUSAL_MESSAGE) for call in agents[0].model.seen)  # type: ignore[attr-defined]
    done = team.resume(*agents, answer={"decision": "approve"}, **review)
    assert passes(done) == [("writer", "tester", "rotation")]
    assert REFUSAL_MESSAGE not in get_sent_messages(agents[1], 0)[0].text
    assert done["agent"] == "tester"


@pytest.mark.slow
def test_a_handoff_that_is_refused_leaves_the_turns(team: TeamBench) -> None:
    agents = agent("writer", TO_TESTER, NOTE.format(1), SHOW, DONE), agent("tester", DONE)
    settings: dict[str, Any] = {"policy": "review", "max_consecutive_turns": 3, "enable_handoff_tool": True}
    team.run(*agents, **settings)
    state = team.resume(*agents, answer={"decision": "refuse"}, **settings)
    assert actors(state) == ["writer"] * 4
    assert state["stop_reason"] == "finished"


@pytest.mark.slow
def test_a_run_that_stops_at_a_pass_continues_with_it(team: TeamBench) -> None:
    agents = agent("writer", EDIT), agent("tester", SHOW, DONE, max_consecutive_turns=3)
    settings: dict[str, Any] = {"policy": "stop", "max_consecutive_turns": 1}
    settings["points"] = ("first_source_edit",)
    assert team.run(*agents, **settings)["stop_reason"] == "point"
    stopped = team.resume(*agents, **settings)
    assert (stopped["stop_reason"], passes(stopped)) == ("handoff", [])
    with open_run(team.home, "thread", agents=agents, **team.options | settings) as agent_run:
        agent_run.prune()
    assert len(team.home.history("thread")) == 1
    ended = team.resume(*agents, **settings)
    assert (actors(ended), ended["stop_reason"]) == (["writer", "tester", "tester"], "finished")


@pytest.mark.parametrize("at", ["shell", "handoff"])
def test_an_external_handoff_request_loses_no_pass(team: TeamBench, at: str) -> None:
    ask = lambda: team.home.request_handoff("thread", "I need it.")  # noqa: E731

    @tool
    def wait(what: str) -> str:
        """Wait."""
        ask()
        return "waited"

    first = '```json\n{"name": "wait", "arguments": {"what": "x"}}\n```'
    agents = (agent("writer", first, TO_TESTER, tools=(wait,)), agent("tester", DONE))
    turns = 1 if at == "shell" else 3
    settings: dict[str, Any] = {"enable_handoff_tool": True, "max_consecutive_turns": turns}
    state = team.run(*agents, **settings)
    assert (state["stop_reason"], passes(state)) == ("handoff", [])
    ended = team.resume(*agents, **settings)
    assert ended["stop_reason"] == "finished"
    assert [each[:2] for each in passes(ended)] == [("writer", "tester")]


@pytest.mark.parametrize("backend", ["process", "host"])
def test_resuming_before_a_pass_repeats_it(team: TeamBench) -> None:
    agents = agent("writer", NOTE.format("one"), DONE), agent("tester", NOTE.format("two"), SHOW, DONE)
    state = team.run(*agents, max_consecutive_turns=1, max_steps=3)
    assert actors(state) == ["writer", "tester", "writer"]
    moments = team.home.history("thread")
    (before,) = [each for each in moments if each.next == ("pass_on",) and each.step == 1]
    other = agent("tester", SHOW, DONE, max_consecutive_turns=5)
    with open_run(team.home, "thread", agents=[agents[0], other], **team.options) as agent_run:
        outcome = agent_run.resume(checkpoint=before.checkpoint)
    assert get_note_text(outcome.state) == "one"
    assert actors(outcome.state) == ["writer", "tester", "tester"]
    assert passes(outcome.state) == [("writer", "tester", "rotation")]
    with open_run(team.home, "thread", agents=agents, **team.options) as agent_run:
        changed = agent_run.update_state({"passing": None, "turns_left": 3}, checkpoint=before.checkpoint)
        assert actors(agent_run.resume(checkpoint=changed).state) == ["writer", "writer"]
        with pytest.raises(Exception, match="as_node: unknown node 'receive'"):
            agent_run.update_state({}, as_node="receive")


def test_a_team_shares_its_budget(team: TeamBench) -> None:
    agents = agent("a", SHOW, SHOW, DONE), agent("b", SHOW, SHOW, DONE)
    state = team.run(*agents, max_consecutive_turns=1, max_tokens=33)
    assert (state["stop_reason"], state["steps"]) == ("max_tokens", 3)
    assert (state["spent"]["prompt_tokens"], state["spent"]["completion_tokens"]) == (30, 3)
    assert team.resume(*agents, max_consecutive_turns=1)["stop_reason"] == "finished"


@pytest.mark.slow
def test_the_database_grows_with_the_trace_of_a_team(team: TeamBench) -> None:
    def growth(steps: int) -> float:
        before = size(team.bench)
        agents = [agent(name, *[LOOK] * steps) for name in ("a", "b", "c")]
        options = {**team.options, "max_steps": steps, "max_consecutive_turns": 2}
        thread = f"{steps} steps"
        state = run_team(team.home, thread, task_id="t", prompt=PROMPT, agents=agents, **options).state
        assert len(state["passes"]) == steps // 2
        return (size(team.bench) - before) / sum(len(text) for text in observations(state))

    growth(2)
    grown = [growth(steps) for steps in (64, 160)]  # shorter runs fill few pages
    assert max(grown) <= 1.5 * MOST  # a pass is three more nodes
    assert max(grown) <= SPREAD * min(grown), grown


# Errors


def test_progress_and_timeline_name_the_agent(team: TeamBench) -> None:
    events: list[dict[str, Any]] = []
    agents = agent("writer", EDIT), agent("tester", TEST, DONE)
    state = team.run(*agents, max_consecutive_turns=1, on_progress=events.append, max_steps=2)
    acting = [(each["agent"], each["step"]) for each in events if each["event"] == "acting"]
    assert acting == [("writer", 1), ("tester", 2)]
    moved = [(each["agent"], each["to"]) for each in events if each["event"] == "passed"]
    assert moved == [("writer", "tester"), ("tester", "writer")]
    found = [TurnPass.model_validate(each) for each in state["passes"]]
    rows = build_timeline(parse_events(state), found, ["writer", "tester"])
    assert [(row.agent, row.outcome) for row in rows] == [("writer", "exit 0"), ("tester", "exit 1")]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"agents": []}, "^agents: Tuple should have at least 1 item"),
        ({"agents": [agent("a"), agent("a")]}, "^agents: two are named 'a' \\(rename one\\)$"),
        ({"supervisor": agent("a")}, "^agents: two are named 'a'"),
        ({"agents": [agent("a", may_finish=False)]}, "none may finish"),
        ({"supervisor": agent("s", enable_handoff_tool=False)}, "it chooses by the handoff tool"),
        ({"agents": ["a"]}, "^agents.0: Input should be a Agent, not 'a'$"),
        ({"max_consecutive_turns": 0}, "^max_consecutive_turns: Input should be greater than 0, not 0$"),
        ({"max_steps": 0}, "^max_steps: "),
        ({"model": scripted_model()}, "^model: not for a team \\(with agents=, pass model of each Agent\\)$"),
        (
            {"offer_handoff": True},
            r"^offer_handoff: not for a team \(with agents=, pass enable_handoff_tool=\)$",
        ),
        ({"policy": "takeover"}, "^policy='takeover' is for one agent"),
        ({"max_turns": 3}, "^unknown setting 'max_turns'"),
    ],
)
def test_invalid_teams(team: TeamBench, settings: dict[str, Any], says: str) -> None:
    options: dict[str, Any] = {"agents": [agent("a")], **team.options, **settings}
    with pytest.raises(SettingsError, match=says) as caught:
        run_team(team.home, "thread", task_id="t", prompt=PROMPT, **options)
    assert "\n" not in str(caught.value)
    assert team.home.threads() == ()


@pytest.mark.parametrize("name", ["", "two words", "nul\0", "new\nline", "a\n", "x" * 65, "ünï"])
def test_invalid_agent_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"invalid agent name .*use up to 64 letters"):
        agent(name)


def test_invalid_tools(team: TeamBench) -> None:
    @tool
    def shell(command: str) -> str:
        """Another shell."""
        return command

    with pytest.raises(SettingsError, match=r"^agent a: tools: the name 'shell' belongs to a built-in tool"):
        build_team([agent("a", tools=(shell,))])


@pytest.mark.slow
def test_a_teams_thread_needs_its_agents(team: TeamBench) -> None:
    agents = agent("writer", SHOW, DONE), agent("tester", DONE)
    team.run(*agents, max_steps=1)
    says = r"^agents: thread 'thread' belongs to a team \(pass agents=, not model=\)$"
    with pytest.raises(SettingsError, match=says):
        team.bench.resume(scripted_model(DONE))
    says = r"^agents: the thread continues with 'writer', not among tester"
    with pytest.raises(UnknownAgentError, match=says):
        team.resume(agents[1])
    team.bench.run(scripted_model(EDIT, DONE), thread="alone", max_steps=1)
    says = r"^agents: thread 'alone' belongs to one agent \(pass model=, not agents=\)$"
    with pytest.raises(SettingsError, match=says):
        resume(team.home, "alone", agents=agents, **team.options)


def test_a_team_in_asyncio(team: TeamBench) -> None:
    agents = agent("writer", NOTE.format(1)), agent("tester", SHOW, DONE, max_consecutive_turns=2)

    async def main(agent_run: Any) -> list[str]:
        task = {"task": {"id": "t", "prompt": PROMPT}}
        stream = agent_run.team.astream(task, **agent_run.options, stream_mode="custom")
        return [event["agent"] async for event in stream if event["event"] == "thinking"]

    with open_run(team.home, "thread", agents=agents, **team.options, max_consecutive_turns=1) as agent_run:
        assert asyncio.run(main(agent_run)) == ["writer", "tester", "tester"]
        assert agent_run.outcome().stop_reason == "finished"


def test_a_handoff_whose_tool_was_removed(team: TeamBench, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = agent("writer", TO_TESTER, DONE), agent("tester", DONE)
    with monkeypatch.context() as patch:
        patch.setitem(NODES, "handoff", _kill_at("hand_over", "before", 1))
        with pytest.raises(Killed):
            team.run(*agents, enable_handoff_tool=True)
    state = team.resume(*agents)
    assert observations(state) == ["Not handed over: you can no longer hand over; continue yourself."]
    assert actors(state) == ["writer", "writer"]


def test_a_graph_built_with_its_agents(team: TeamBench) -> None:
    agents = agent("writer", NOTE.format(1)), agent("tester", SHOW, DONE, max_consecutive_turns=2)
    graph = build_team(agents, max_consecutive_turns=1, enable_handoff_tool=True)
    with team.bench.open_run(scripted_model()) as agent_run:
        task = {"task": {"id": "t", "prompt": PROMPT}}
        state: Any = graph.invoke(task, config={"recursion_limit": 50}, context=agent_run.context)
    assert get_note_text(state) == "1"
    assert actors(state) == ["writer", "tester", "tester"]


def test_a_teams_work_is_handed_over_and_rolled_back(team: TeamBench) -> None:
    agents = agent("writer", EDIT, FIX, DONE), agent("tester", TEST, DONE)
    first_run = team.run(*agents, policy="stop", max_consecutive_turns=1)
    handoff = hand_over(team.home, first_run["records"][-1], target="outsider", source="writer")
    options = {"model": scripted_model(UNDERSTOOD, DONE), "sandbox": team.bench.spec, "points": ()}
    done = deliver(team.home, handoff.id, agent_name="outsider", **options)
    assert done.handoff.state == "completed"
    with pytest.raises(HandedOverError, match=handoff.id):
        team.resume(*agents)
    back = roll_back(team.home, handoff.id, by="a person")
    assert back.events == 2
    state = team.resume(*agents, max_consecutive_turns=1)
    assert state["stop_reason"] == "finished"
    assert actors(state)[0] == "writer"
    assert set(actors(state)) == {"writer", "tester"}
