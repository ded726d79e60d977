"""The graphs as LangGraph's server runs them: one run holds its thread's lease from its first node to its end.

The server provides the checkpointer, calls a factory for every look at a graph, and gives nodes only the client's
choices. So a factory is cheap until a node runs; then it opens the home and takes the lease, and releases both when
the run ends.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast, get_type_hints

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.channels import EphemeralValue
from langgraph.errors import GraphBubbleUp
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, StateSnapshot
from langgraph_sdk.runtime import ServerRuntime
from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

from langgraph_takeover.base.failures import run_all
from langgraph_takeover.graph.agent import Graph, build_agent, build_takeover
from langgraph_takeover.graph.checkpoints.inspection import GraphKind
from langgraph_takeover.graph.home import Home, open_home
from langgraph_takeover.graph.outcome import waits_for_tool_answer
from langgraph_takeover.graph.team import build_team_graph
from langgraph_takeover.graph.usage_errors import ServedRunError
from langgraph_takeover.handoff.names import HOME_VARIABLE, PROJECT_HOME
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.step_edits import align_step_edit
from langgraph_takeover.nodes.agent.steps import Node, run_node
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.context.team_members import Team
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import SnapshotNotFoundError
from langgraph_takeover.nodes.state import AgentState, parse_process_question
from langgraph_takeover.sandbox.interface import SandboxSpec, SnapshotCorruptError

AnswerCheck = Callable[[Any], None]
"""Raises, in one line, if an answer to a review is invalid."""


class GuardedGraph(CompiledStateGraph[AgentState, Any, Any, Any]):
    """A graph that refuses a second task on a thread, an invalid answer, and repeated history."""

    def __init__(self, *, check_answer: AnswerCheck, **compiled: Any) -> None:
        super().__init__(**compiled)
        self.check_answer = check_answer  # named like its parameter, by which LangGraph copies a graph

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        if isinstance(input, Command):
            _require_one_node(input.goto)
            if not (input.update or input.goto):
                await self._check_answers(input.resume, config)
            input = replace(input, resume=redact(input.resume))  # before a checkpoint stores it
        elif input is not None and config is not None and self.checkpointer:
            await self._require_free_thread(config)
        async for each in super().astream(input, config, **kwargs):
            yield _hide_in_stream(each, kwargs.get("stream_mode"))

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        state = await super().aget_state(config, subgraphs=subgraphs)
        return state._replace(values=hide_empty_fields(state.values))

    async def aget_state_history(self, config: RunnableConfig, **kwargs: Any) -> AsyncIterator[StateSnapshot]:
        async for state in super().aget_state_history(config, **kwargs):
            yield state._replace(values=hide_empty_fields(state.values))

    async def _check_answers(self, resume: Any, config: RunnableConfig | None) -> None:
        """Check the answers to a review; other nodes check the answers to their questions themselves."""
        if config is not None and self.checkpointer:
            state = await self.aget_state(config)
            values = cast(AgentState, state.values)
            if state.interrupts and (
                waits_for_tool_answer(values) or parse_process_question(state.interrupts[0].value)
            ):
                return
        for answer in _answers(resume):
            self.check_answer(answer)

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        if isinstance(values, dict):
            before = (await self.aget_state(config)).values
            values = align_step_edit(values, cast(AgentState, before))
        return await super().aupdate_state(config, values, as_node, task_id)

    async def _require_free_thread(self, config: RunnableConfig) -> None:
        state = await self.aget_state(config)
        run = config.get("metadata", {}).get("run_id")
        # An interrupted run comes again with its form; LangGraph knows it by its id.
        goes_on = run is not None and run == (state.metadata or {}).get("run_id")
        if goes_on or "sandbox_state" not in state.values:
            return
        held = state.values.get("record") or state.values["task"]["id"]
        cure = (
            "it waits for an answer: resume it with one"
            if state.interrupts
            else "start another thread, or resume from one of this thread's checkpoints"
        )
        raise ServedRunError(f"ThreadExistsError: this thread already holds {held} ({cure})")


def hide_empty_fields(values: Any) -> Any:
    """Return the values of a state without fields that hold nothing: None, empty text, an empty list or dict."""
    if not isinstance(values, dict):
        return values
    return {name: value for name, value in values.items() if value is not None and value not in ("", [], {})}


def _hide_in_stream(part: Any, stream_mode: Any) -> Any:
    """Return a part of the stream in which whole states have no empty fields."""
    if not isinstance(stream_mode, list):
        return hide_empty_fields(part) if stream_mode == "values" else part
    if not isinstance(part, tuple):
        return part
    *namespace, mode, data = part
    if mode == "values":
        data = hide_empty_fields(data)
    elif mode == "debug" and data.get("type") == "checkpoint":
        payload = data["payload"]
        data = {**data, "payload": {**payload, "values": hide_empty_fields(payload["values"])}}
    return (*namespace, mode, data)


def _require_one_node(goto: Any) -> None:
    """Raises ServedRunError for several nodes at once, and for a node with its own state.

    A run decides once, from its thread's state, in which sandbox it acts; another state could name another sandbox.
    """
    nodes = goto if isinstance(goto, list | tuple) else [goto] if goto else []
    if len(nodes) > 1 or not all(isinstance(node, str) for node in nodes):
        raise ServedRunError("goto: name one node (write its state with 'update')")


def _answers(resume: Any) -> tuple[Any, ...]:
    """Return the answers: to the only question, or to each by its id."""
    by_id = isinstance(resume, dict) and resume and all(re.fullmatch("[0-9a-f]{32}", each) for each in resume)
    return tuple(resume.values()) if by_id else (resume,)


# TAKEOVER_HOME, by contrast, is the host's directory for sandboxes.
INPUT_ONLY: EphemeralValue[Any] = EphemeralValue(Any)
"""Marks an input field that only the first node sees and that is not part of the state."""
_FIRST_NODES = ("begin", "receive")
_MAX_ERROR_CHARS = 1000


class ServedRequest(NamedTuple):
    """A run request: thread, state, form and choices."""

    thread: str
    state: AgentState
    form: Any
    """The validated input; None if the run resumes from a checkpoint."""
    choices: Any


class ServedRunSetup(NamedTuple):
    """The resources of a served run: model, sandbox, settings."""

    model: BaseChatModel
    model_name: str | None
    sandbox: SandboxSpec
    run_id: str
    settings: dict[str, Any]
    """Fields of `AgentContext`."""
    team: Team | None = None
    """For a team's graph; its agents have their own models."""
    initial_state: AgentState = AgentState()
    """The initial state for the first node."""


BuildSetup = Callable[[Home, ServedRequest], ServedRunSetup]


def serve(
    kind: GraphKind,
    form: type[BaseModel],
    choices: type[BaseModel],
    build_setup: BuildSetup,
    check_answer: AnswerCheck,
) -> Callable[[ServerRuntime[Any]], AbstractAsyncContextManager[Graph]]:
    """Build a factory for `langgraph.json`: the graph with `form` as its input and `choices` as its context.

    A person reads what `build_setup` and `check_answer` raise, so it should be one line. The home is the directory in
    the environment variable TAKEOVER_RUNS, default `.takeover` in the working directory.
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
        except BaseException as error:
            await asyncio.to_thread(partial(run_all, hold.close, error=error))
            raise
        await asyncio.to_thread(hold.close)

    return factory


class _ServedRun:
    """One run's lease on its thread: taken when its first node runs, released when the run ends."""

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
        """Wrap a node so that it gets the run's own context instead of the server's."""
        if "runtime" not in inspect.signature(node).parameters:
            return node
        first = node.__name__ in _FIRST_NODES

        def wrapper(state: AgentState, runtime: Runtime[Any]) -> AgentState:
            with self._track_node(), _raise_in_one_line():
                context = self._open_context(state, runtime, first)
                if not first:
                    return run_node(node, state, runtime.override(context=context))
                begun = AgentState(**{**state, **self._initial_state})
                update = run_node(node, begun, runtime.override(context=context))
                return AgentState(**{**self._initial_state, **update})

        if first:
            # A node sees what its own annotation names: this one the form besides the state.
            hints = {**get_type_hints(AgentState, include_extras=True), **_hints(self._form)}
            wrapper.__annotations__["state"] = TypedDict("First", hints, total=False)  # type: ignore[operator]
        return wrapper

    def close(self) -> None:
        """Close the sandbox and release the thread, even if a node is still running."""
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
                raise ServedRunError("the run was ended before this step started")
            self._is_working = True
        try:
            yield
        finally:
            with self._lock:
                self._is_working = False
                ended = self._has_ended
            if ended:
                # The node of a cancelled run continues in its thread and may have started a sandbox meanwhile.
                self.close()

    def _open_context(self, state: AgentState, runtime: Runtime[Any], is_first: bool) -> AgentContext:
        if self._context is None:
            request = ServedRequest(
                thread=_thread(runtime),
                state=state,
                form=self._parse_form(state) if is_first else None,
                choices=runtime.context or self._choices(),
            )
            home = self._stack.enter_context(open_home(home_directory()))
            setup = self._build_setup(home, request)
            self._session, _ = self._stack.enter_context(home.open_session(request.thread, setup.sandbox))
            self._initial_state = setup.initial_state
            self._context = AgentContext(
                model=setup.model,
                model_name=setup.model_name,
                session=self._session,
                run_id=setup.run_id,
                member=setup.team.find_member() if setup.team else None,
                **setup.settings,
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
            f"{format_error_line(error)} (resume from another checkpoint of the thread, or take over another record)"
        ) from error
    except Exception as error:
        raise ServedRunError(format_error_line(error)) from error


def format_error_line(error: Exception) -> str:
    """Describe an error in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or error.title}: {first['msg']}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_ERROR_CHARS]}"


def home_directory() -> Path:
    """Return the home directory of the server's runs."""
    return Path(os.environ.get(HOME_VARIABLE) or PROJECT_HOME)


def _hints(form: type[BaseModel]) -> dict[str, Any]:
    return {
        name: hint
        for name, hint in get_type_hints(form, include_extras=True).items()
        if name in form.model_fields
    }


def _thread(runtime: Runtime[Any]) -> str:
    placed = runtime.execution_info
    if placed is None or not (placed.thread_id or placed.run_id):
        raise RuntimeError("a served graph needs a thread (pass config={'configurable': {'thread_id': …}})")
    return placed.thread_id or f"without-thread-{placed.run_id}"
