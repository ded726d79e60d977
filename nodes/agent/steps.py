"""Graph nodes for threads and event loops, whose calls of the model block or are awaited; and which node is next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import cached_property, partial, wraps
from typing import Any, NamedTuple, get_type_hints

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import interrupt

from langgraph_takeover.base.awaiting import run_without_loop
from langgraph_takeover.handoff.records.process_facts import describe_process
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.model.actions import UnreadableReply, parse_call
from langgraph_takeover.nodes.model.calls import ModelCall
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.workers import (
    AbortableWork,
    StopSignal,
    Workers,
    WorkKind,
    default_workers,
)
from langgraph_takeover.nodes.state import AgentState, ProcessChoice, ProcessQuestion
from langgraph_takeover.nodes.state_events import (
    BUDGET_SPENT,
    answer_open_calls,
    build_action_event,
    list_due_points,
    list_open_calls,
    store_event,
)
from langgraph_takeover.nodes.tools.custom_tools import list_tool_names
from langgraph_takeover.nodes.tools.execution import refuse_action


def next_call(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Begin the reply's next call as an action of its own, in the state that the one before left."""
    context = get_agent_context(runtime)
    calls = list_open_calls(state)
    if not calls:
        return AgentState(open_calls=0)
    if _is_budget_spent(state, context):
        points = list_due_points(state, context, len(state["events"]) - 1)
        return AgentState(
            open_calls=0,
            messages=answer_open_calls(state, BUDGET_SPENT),
            fired=[point.model_dump(mode="json") for point in points],
        )
    action = parse_call(
        calls[0], offer_handoff=context.offer_handoff, extra_tools=list_tool_names(state, context)
    )
    arguments = {} if isinstance(action, UnreadableReply) else action.arguments
    event = build_action_event(state, context, action.tool, "", arguments, NO_MODEL_CALL, 0.0)
    update = AgentState(events=[store_event(event)], open_calls=len(calls) - 1)
    if not isinstance(action, UnreadableReply):
        return update
    after = AgentState(**{**state, **update, "events": [*state["events"], *update["events"]]})
    refusal = refuse_action(after, runtime, redact(action.correction))
    refusal["events"] = [*update["events"], *refusal["events"]]
    return update | refusal


def _is_budget_spent(state: AgentState, context: AgentContext) -> bool:
    """Whether a limit of time or events is reached; those of steps and tokens are limits of replies."""
    events = len(state["events"])
    has_event = context.max_events is None or events < context.max_events
    return not has_event or state["spent"]["seconds"] >= context.max_seconds


NodeSteps = Generator[ModelCall, AIMessage, AgentState]
"""The steps of a node that asks the model: it yields its calls, gets the replies, and returns its update."""
Node = Callable[..., AgentState | NodeSteps]
_THINKING_NODE = "think"
_NODES_THAT_ONLY_READ = (_THINKING_NODE, "next_call")
"""They begin while the state of the last act is being saved; all others wait for it."""


_NODES_THAT_ACT = (_THINKING_NODE, "take_turn", "shell", "editor", "tool", "delegate", "agent")
"""They begin when a person has chosen which processes of a restored sandbox to start again."""


def _ask_about_processes(state: AgentState, runtime: Runtime[Any]) -> None:
    """Under `restart_processes="ask"`, interrupt the graph before the first act in a restored sandbox."""
    context, state_id = runtime.context, state.get("sandbox_state")
    if not isinstance(context, AgentContext) or state_id is None:
        return
    processes = context.session.list_processes_to_choose(state_id)
    if not processes:
        return
    question = ProcessQuestion(processes=tuple(map(describe_process, processes)))
    answer = interrupt(question.model_dump(mode="json"), response_schema=ProcessChoice)
    context.session.chosen_processes[state_id] = ProcessChoice.model_validate(answer).start


class _Progress(NamedTuple):
    """A node between two steps: its next call, or its update."""

    steps: NodeSteps | None
    call: ModelCall | None
    update: AgentState | None


def run_node(node: Node, state: AgentState, runtime: Runtime[Any]) -> AgentState:
    """Run a node in this thread, which waits for the model."""

    async def ask(call: ModelCall) -> AIMessage:
        return call.ask()

    async def proceed(work: Callable[[], _Progress]) -> _Progress:
        return work()

    return run_without_loop(_run_steps(partial(_begin, node, state, runtime), ask, proceed))


async def arun_node(
    node: Node,
    state: AgentState,
    runtime: Runtime[Any],
    *,
    kind: WorkKind,
    workers: Workers,
    stop: StopSignal | None = None,
) -> AgentState:
    """Run a node from an event loop, which awaits the model; all other work is done in threads."""

    async def ask(call: ModelCall) -> AIMessage:
        return await call.aask(partial(workers.run, "quick"))

    async def proceed(work: Callable[[], _Progress]) -> _Progress:
        if stop is None:
            return await workers.run(kind, work)
        abortable = AbortableWork(stop, work)
        return await workers.run(kind, abortable.run, abortable.abort)

    return await _run_steps(partial(_begin, node, state, runtime), ask, proceed)


async def _run_steps(
    begin: Callable[[], _Progress],
    ask: Callable[[ModelCall], Awaitable[AIMessage]],
    proceed: Callable[[Callable[[], _Progress]], Awaitable[_Progress]],
) -> AgentState:
    """Ask the model for each call of a node; `proceed` runs what the node does before, between and after them."""
    progress = await proceed(begin)
    while progress.call is not None:
        reply = error = None
        try:
            reply = await ask(progress.call)
        except Exception as raised:
            error = raised
        progress = await proceed(partial(_advance, progress.steps, reply, error))
    return AgentState() if progress.update is None else progress.update


def _begin(node: Node, state: AgentState, runtime: Runtime[Any]) -> _Progress:
    if node.__name__ in _NODES_THAT_ACT:
        _ask_about_processes(state, runtime)
    result = node(state, runtime)
    return _advance(result) if isinstance(result, Generator) else _Progress(None, None, result)


def _advance(steps: Any, reply: AIMessage | None = None, error: Exception | None = None) -> _Progress:
    try:
        call = steps.throw(error) if error is not None else steps.send(reply)
    except StopIteration as end:
        return _Progress(None, None, end.value)
    return _Progress(steps, call, None)


def _settle_first(node: Node) -> Node:
    """Return a node that begins when the states of earlier acts, and its checkpoint, are durable."""

    @wraps(node)
    def run(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState | NodeSteps:
        # A served graph's node makes its own context.
        if isinstance(runtime.context, AgentContext):
            runtime.context.session.settle()
        return node(state, runtime)

    return run


class NodeRunnable(Runnable[AgentState, AgentState]):
    """A node as LangGraph runs it: `invoke` in the caller's thread, `ainvoke` in the event loop and the home's threads."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node if name in _NODES_THAT_ONLY_READ else _settle_first(node)
        self.name = name

    @cached_property
    def input_schema_hint(self) -> Any:
        """What the node sees of the state: its annotation."""
        return get_type_hints(self.node).get("state", AgentState)

    def invoke(self, input: AgentState, config: RunnableConfig | None = None, **_: Any) -> AgentState:
        return run_node(self.node, input, get_runtime())

    async def ainvoke(self, input: AgentState, config: RunnableConfig | None = None, **_: Any) -> AgentState:
        runtime = get_runtime()
        context = runtime.context
        if not isinstance(context, AgentContext):  # a served graph, whose node makes its own context
            return await arun_node(self.node, input, runtime, kind="command", workers=default_workers())
        session: Session = context.session
        # Thinking is short, and without a running command that a cancelled task would have to end.
        kind: WorkKind = "quick" if self.name == _THINKING_NODE and context.agent is None else "command"
        return await arun_node(
            self.node, input, runtime, kind=kind, workers=session.workers, stop=session.stop
        )
