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

from graph.agent import Graph, Node, build_agent, build_takeover
from graph.checkpoint import Kind
from graph.home import Home, open_home
from graph.refusals import RunFailed
from graph.served import Answered, Served
from graph.team import team_graph
from nodes.session import MachineNotKept, Session
from nodes.settings import AgentContext
from nodes.state import AgentState
from nodes.team import Team
from sandbox.machine import SandboxSpec, SnapshotCorrupt

# TAKEOVER_HOME is the host's place for what machines stand on.
HOME_VARIABLE = "TAKEOVER_RUNS"
DEFAULT_HOME = ".takeover"
ONCE: EphemeralValue[Any] = EphemeralValue(Any)
"""Marks a field of an input that its first node alone is to see, and that is no part of the state."""
_FIRST = ("begin", "receive")
_LONGEST = 1000


class Asked(NamedTuple):
    """What a run is asked for: on which thread, in which state, with which form and which choices."""

    thread: str
    state: AgentState
    form: Any
    """The input, checked; None where the run goes on from a checkpoint."""
    choices: Any


class Equipment(NamedTuple):
    """What a run is given for what was asked."""

    model: BaseChatModel
    model_name: str
    sandbox: SandboxSpec
    run_id: str
    settings: dict[str, Any]
    """Those of `nodes.settings.AgentContext`."""
    team: Team | None = None
    """For a team's graph, whose agents bring models of their own."""
    first: AgentState = AgentState()
    """What the first node is to find in the state, where the run begins."""


Equip = Callable[[Home, Asked], Equipment]


def serve(
    kind: Kind, form: type[BaseModel], choices: type[BaseModel], equip: Equip, answered: Answered
) -> Callable[[ServerRuntime[Any]], AbstractAsyncContextManager[Graph]]:
    """A factory for `langgraph.json`: the graph with `form` as its input and `choices` as its context.

    Whatever `equip` and `answered` raise is what the person reads, so it should be one line. The home is the directory that
    the environment variable TAKEOVER_RUNS names, else `.takeover` in the working directory.
    """
    builders: dict[Kind, Callable[..., Graph]] = {
        "agent": build_agent,
        "takeover": build_takeover,
        "team": team_graph,
    }

    def built(hold: _Hold) -> Graph:
        graph = builders[kind](context_schema=choices, input_schema=form, entered=hold.entered)
        return Served(answered=answered, **vars(graph))

    to_look_at = cache(lambda: built(_Hold(form, choices, equip)))

    @asynccontextmanager
    async def factory(runtime: ServerRuntime[Any]) -> AsyncIterator[Graph]:
        if runtime.execution_runtime is None:
            yield to_look_at()
            return
        hold = _Hold(form, choices, equip)
        try:
            yield built(hold)
        finally:
            await asyncio.to_thread(hold.close)

    return factory


class _Hold:
    """One run's hold on its thread: taken when its first node acts, let go when the run ends."""

    def __init__(self, form: type[BaseModel], choices: type[BaseModel], equip: Equip) -> None:
        self._form = form
        self._choices = choices
        self._equip = equip
        self._stack = ExitStack()
        self._session: Session | None = None
        self._context: AgentContext | None = None
        self._first = AgentState()
        self._lock = threading.Lock()
        self._at_work = False
        self._ended = False

    def entered(self, node: Node) -> Node:
        """The node, given the run's own context in place of the server's."""
        if "runtime" not in inspect.signature(node).parameters:
            return node
        first = node.__name__ in _FIRST

        def inside(state: AgentState, runtime: Runtime[Any]) -> AgentState:
            with self._working(), _telling():
                context = self._taken(state, runtime, first)
                if not first:
                    return node(state, runtime.override(context=context))
                begun = AgentState(**{**state, **self._first})
                return AgentState(**{**self._first, **node(begun, runtime.override(context=context))})

        if first:
            # A node sees what its own annotation names: this one the form beside the state.
            hints = {**get_type_hints(AgentState, include_extras=True), **_hints(self._form)}
            inside.__annotations__["state"] = TypedDict("First", hints, total=False)  # type: ignore[operator]
        return inside

    def close(self) -> None:
        """End the machine and let others onto the thread, even where a node is still at work."""
        with self._lock:
            self._ended = True
            at_work = self._at_work
        if self._session is not None:
            self._session.close()
        if not at_work:
            self._stack.close()

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            if self._ended:
                raise RunFailed("the run was ended before this step began")
            self._at_work = True
        try:
            yield
        finally:
            with self._lock:
                self._at_work = False
                ended = self._ended
            if ended:
                # A cancelled run's node goes on in its thread, and may have started a machine meanwhile.
                self.close()

    def _taken(self, state: AgentState, runtime: Runtime[Any], first: bool) -> AgentContext:
        if self._context is None:
            asked = Asked(
                thread=_thread(runtime),
                state=state,
                form=self._filled_in(state) if first else None,
                choices=runtime.context or self._choices(),
            )
            home = self._stack.enter_context(open_home(home_directory()))
            equipment = self._equip(home, asked)
            self._session, _ = self._stack.enter_context(home.session(asked.thread, equipment.sandbox))
            self._first = equipment.first
            self._context = AgentContext(
                model=equipment.model,
                model_name=equipment.model_name,
                session=self._session,
                run_id=equipment.run_id,
                member=equipment.team.member() if equipment.team else None,
                **equipment.settings,
            )
        return self._context

    def _filled_in(self, state: Any) -> BaseModel:
        return self._form(**{name: state[name] for name in self._form.model_fields if name in state})


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except (GraphBubbleUp, RunFailed):
        raise
    except (MachineNotKept, SnapshotCorrupt) as error:
        raise RunFailed(
            f"{one_line(error)}; go on from another checkpoint of the thread, or take another record over"
        ) from error
    except Exception as error:
        raise RunFailed(one_line(error)) from error


def one_line(error: Exception) -> str:
    """What an error says, for a person who reads one line of it."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or error.title}: {first['msg']}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"


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
