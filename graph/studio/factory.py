"""Serving: the graphs as LangGraph's own server runs them, with a hold on the thread for as long as one run lasts.

The server brings the checkpointer, calls a factory for every look at a graph, and gives a node nothing but what a
person chose. So a factory costs little until a node acts; then the home is opened and the thread held, and both are
let go when the run ends.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from langchain_core.language_models import BaseChatModel
from langgraph.channels import EphemeralValue
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph_sdk.runtime import ServerRuntime
from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

from langgraph_takeover.graph.agent import Graph, Node, build_agent, build_takeover
from langgraph_takeover.graph.checkpoints.inspection import GraphKind
from langgraph_takeover.graph.errors import ServedRunError
from langgraph_takeover.graph.home import Home, open_home
from langgraph_takeover.graph.studio.guarded_graph import AnswerCheck, GuardedGraph
from langgraph_takeover.graph.team import build_team_graph
from langgraph_takeover.nodes.context.agents import Team
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.session.session import Session, SnapshotNotFoundError
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.sandbox.interface import SandboxSpec, SnapshotCorruptError

# TAKEOVER_HOME is the host's place for what machines stand on.
HOME_VARIABLE = "TAKEOVER_RUNS"
DEFAULT_HOME = ".takeover"
INPUT_ONLY: EphemeralValue[Any] = EphemeralValue(Any)
"""Marks a field of an input that its first node alone is to see, and that is no part of the state."""
_FIRST_NODES = ("begin", "receive")
_MAX_ERROR_CHARS = 1000


class ServedRequest(NamedTuple):
    """What a run is asked for: on which thread, in which state, with which form and which choices."""

    thread: str
    state: AgentState
    form: Any
    """The input, checked; None where the run goes on from a checkpoint."""
    choices: Any


class ServedRunSetup(NamedTuple):
    """What a run is given for what was asked."""

    model: BaseChatModel
    model_name: str | None
    sandbox: SandboxSpec
    run_id: str
    settings: dict[str, Any]
    """Those of `nodes.context.settings.AgentContext`."""
    team: Team | None = None
    """For a team's graph, whose agents bring models of their own."""
    initial_state: AgentState = AgentState()
    """What the first node is to find in the state, where the run begins."""


BuildSetup = Callable[[Home, ServedRequest], ServedRunSetup]


def serve(
    kind: GraphKind,
    form: type[BaseModel],
    choices: type[BaseModel],
    build_setup: BuildSetup,
    check_answer: AnswerCheck,
) -> Callable[[ServerRuntime[Any]], AbstractAsyncContextManager[Graph]]:
    """A factory for `langgraph.json`: the graph with `form` as its input and `choices` as its context.

    Whatever `equip` and `answered` raise is what the person reads, so it should be one line. The home is the directory that
    the environment variable TAKEOVER_RUNS names, else `.takeover` in the working directory.
    """
    builders: dict[GraphKind, Callable[..., Graph]] = {
        "agent": build_agent,
        "takeover": build_takeover,
        "team": build_team_graph,
    }

    def build(served_run: _ServedRun) -> Graph:
        graph = builders[kind](context_schema=choices, input_schema=form, wrap_node=served_run.wrap_node)
        return GuardedGraph(check_answer=check_answer, **vars(graph))

    to_look_at = cache(lambda: build(_ServedRun(form, choices, build_setup)))

    @asynccontextmanager
    async def factory(runtime: ServerRuntime[Any]) -> AsyncIterator[Graph]:
        if runtime.execution_runtime is None:
            yield to_look_at()
            return
        hold = _ServedRun(form, choices, build_setup)
        try:
            yield build(hold)
        finally:
            await asyncio.to_thread(hold.close)

    return factory


class _ServedRun:
    """One run's hold on its thread: taken when its first node acts, let go when the run ends."""

    def __init__(self, form: type[BaseModel], choices: type[BaseModel], build_setup: BuildSetup) -> None:
        self._form = form
        self._choices = choices
        self._build_setup = build_setup
        self._stack = ExitStack()
        self._session: Session | None = None
        self._context: AgentContext | None = None
        self._initial_state = AgentState()
        self._lock = threading.Lock()
        self._is_working = False
        self._has_ended = False

    def wrap_node(self, node: Node) -> Node:
        """The node, given the run's own context in place of the server's."""
        if "runtime" not in inspect.signature(node).parameters:
            return node
        first = node.__name__ in _FIRST_NODES

        def wrapper(state: AgentState, runtime: Runtime[Any]) -> AgentState:
            with self._track_node(), _raise_in_one_line():
                context = self._open_context(state, runtime, first)
                if not first:
                    return node(state, runtime.override(context=context))
                begun = AgentState(**{**state, **self._initial_state})
                return AgentState(**{**self._initial_state, **node(begun, runtime.override(context=context))})

        if first:
            # A node sees what its own annotation names: this one the form beside the state.
            hints = {**get_type_hints(AgentState, include_extras=True), **_hints(self._form)}
            wrapper.__annotations__["state"] = TypedDict("First", hints, total=False)  # type: ignore[operator]
        return wrapper

    def close(self) -> None:
        """End the machine and let others onto the thread, even where a node is still at work."""
        with self._lock:
            self._has_ended = True
            at_work = self._is_working
        if self._session is not None:
            self._session.close()
        if not at_work:
            self._stack.close()

    @contextmanager
    def _track_node(self) -> Iterator[None]:
        with self._lock:
            if self._has_ended:
                raise ServedRunError("the run was ended before this step began")
            self._is_working = True
        try:
            yield
        finally:
            with self._lock:
                self._is_working = False
                ended = self._has_ended
            if ended:
                # A cancelled run's node goes on in its thread, and may have started a machine meanwhile.
                self.close()

    def _open_context(self, state: AgentState, runtime: Runtime[Any], is_first: bool) -> AgentContext:
        if self._context is None:
            asked = ServedRequest(
                thread=_thread(runtime),
                state=state,
                form=self._parse_form(state) if is_first else None,
                choices=runtime.context or self._choices(),
            )
            home = self._stack.enter_context(open_home(home_directory()))
            equipment = self._build_setup(home, asked)
            self._session, _ = self._stack.enter_context(home.open_session(asked.thread, equipment.sandbox))
            self._initial_state = equipment.initial_state
            self._context = AgentContext(
                model=equipment.model,
                model_name=equipment.model_name,
                session=self._session,
                run_id=equipment.run_id,
                member=equipment.team.find_member() if equipment.team else None,
                **equipment.settings,
            )
        return self._context

    def _parse_form(self, state: Any) -> BaseModel:
        return self._form(**{name: state[name] for name in self._form.model_fields if name in state})


@contextmanager
def _raise_in_one_line() -> Iterator[None]:
    try:
        yield
    except (GraphBubbleUp, ServedRunError):
        raise
    except (SnapshotNotFoundError, SnapshotCorruptError) as error:
        raise ServedRunError(
            f"{format_error_line(error)}; go on from another checkpoint of the thread, or take another record over"
        ) from error
    except Exception as error:
        raise ServedRunError(format_error_line(error)) from error


def format_error_line(error: Exception) -> str:
    """What an error says, for a person who reads one line of it."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or error.title}: {first['msg']}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_ERROR_CHARS]}"


def home_directory() -> Path:
    """Where the server's runs leave everything."""
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)


def _hints(form: type[BaseModel]) -> dict[str, Any]:
    return {
        name: hint
        for name, hint in get_type_hints(form, include_extras=True).items()
        if name in form.model_fields
    }


def _thread(runtime: Runtime[Any]) -> str:
    placed = runtime.execution_info
    if placed is None or not (placed.thread_id or placed.run_id):
        raise RuntimeError("a served graph needs a thread: give config={'configurable': {'thread_id': …}}")
    return placed.thread_id or f"without-thread-{placed.run_id}"
