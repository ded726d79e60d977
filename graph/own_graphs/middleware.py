"""A middleware for `langchain.agents.create_agent`: shell and editor in a sandbox that is saved with the thread."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Any, Literal, NotRequired, cast

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.types import AgentState as ChatState
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command

from langgraph_takeover.graph.own_graphs.agent_handoffs import is_handoff, pass_on_state, require_shared_state
from langgraph_takeover.graph.own_graphs.call_order import CallOrder
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox, keep_latest
from langgraph_takeover.handoff.records.record import HandoffRecord, TaskBrief
from langgraph_takeover.handoff.shell.command_effects import find_effect
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, PointKind
from langgraph_takeover.nodes.agent.interruption import wait_for_review
from langgraph_takeover.nodes.agent.lifecycle import build_task_brief
from langgraph_takeover.nodes.events import build_observation_event
from langgraph_takeover.nodes.model.actions import UnreadableReply, parse_action
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas
from langgraph_takeover.nodes.records import build_record_id, save_record
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.editor import execute_editor
from langgraph_takeover.nodes.tools.shell import execute_command
from langgraph_takeover.sandbox.interface import Sandbox

ToolResult = ToolMessage | Command[Any]
_POINTS: tuple[PointKind, ...] = ("first_source_edit", "first_validation", "first_post_failure_edit")


class SandboxAgentState(ChatState[Any]):
    """The state of an agent with a `SandboxMiddleware`: messages, and what belongs to the sandbox and to handoffs."""

    sandbox_state: NotRequired[Annotated[str, keep_latest]]
    """Id of the sandbox's state."""
    task: NotRequired[dict[str, Any]]
    """`TaskBrief` as JSON."""
    events: NotRequired[Annotated[list[dict[str, Any]], operator.add]]
    """Calls and observations of the sandbox's tools, as JSON."""
    edits: NotRequired[Annotated[list[dict[str, Any]], operator.add]]
    """The editor's changes, for undo."""
    checked_events: NotRequired[int]
    """Number of events in which handoff points were looked for."""
    records: NotRequired[Annotated[list[str], operator.add]]
    """Ids of the handoff records made so far."""
    record: NotRequired[str]
    """Successors only: id of the record."""


class SandboxMiddleware(AgentMiddleware[SandboxAgentState, Any, Any]):
    """Gives an agent the tools `shell` and `editor` in a thread's sandbox.

    Each call takes effect once, and its state of the sandbox is saved with the step. Several calls in one reply are made
    in their order. At handoff points a record is made; under the policy `stop` the agent then ends, under `review` a
    person decides whether it does. Compile the agent with `checkpointer=work.saver`.

    Args:
        work: the sandbox, from `open_sandbox`.
        points: the kinds of handoff points at which a record is made.
        policy: what follows a record: `record` continues, `stop` ends the agent, `review` asks a person.
        model_name: name of the model in the records.
        command_timeout_s: time limit of one command, in seconds.
        observation_chars: maximum length of a result; the middle of a longer one is left out.

    Example:
        >>> from langchain.agents import create_agent
        >>> from langgraph_takeover.middleware import SandboxMiddleware
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "chat", sandbox=sandbox_spec) as work:
        ...     agent = create_agent("openai:gpt-5", middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
    """

    state_schema = SandboxAgentState

    def __init__(
        self,
        work: ThreadSandbox,
        *,
        points: Collection[PointKind] = _POINTS,
        policy: Literal["record", "stop", "review"] = "record",
        model_name: str = "unknown model",
        command_timeout_s: float = 120.0,
        observation_chars: int = 20_000,
    ) -> None:
        super().__init__()
        self.tools = _build_tools()
        self._names = frozenset(tool.name for tool in self.tools)
        self._work, self._session = work, work.session
        self._points, self._policy, self._model_name = frozenset(points), policy, model_name
        self._timeout_s, self._max_chars = command_timeout_s, observation_chars
        self._order = CallOrder(work)

    def before_agent(self, state: SandboxAgentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Describe the task: the first message of a person, and the repository at the start."""
        if "task" in state:
            return None
        if not state.get("sandbox_state"):
            require_shared_state(self._work, state["messages"], self._names)
        first = next((each for each in state["messages"] if isinstance(each, HumanMessage)), None)
        sandbox = self._work.enter(state.get("sandbox_state"))
        task = build_task_brief(self._work.thread, redact(first.text if first else ""), sandbox)
        update: dict[str, Any] = {"task": task.model_dump(mode="json")}
        if not state.get("sandbox_state"):
            update["sandbox_state"] = self._work.start()
        return update

    def after_agent(self, state: SandboxAgentState, runtime: Runtime[Any]) -> None:
        """Remember the last message, by which another agent of the graph detects that the state was lost."""
        self._work.last_messages.add(str(state["messages"][-1].id))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        """Make a call of the sandbox's tools once; pass on others."""
        if request.tool_call["name"] not in self._names:
            return self._pass_on_state(request, handler(request))
        return self._call_once(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        if request.tool_call["name"] not in self._names:
            result = await handler(request)
            return await self._work.run_blocking(lambda: self._pass_on_state(request, result))
        earlier, _ = self._order.name_calls(request, self._is_sandbox_call)
        if earlier:
            state = request.state.get("sandbox_state", "")
            await self._work.run_in_own_thread(lambda: self._order.wait_for(state, earlier))
        return await self._work.run_blocking(lambda: self._call_once(request))

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: SandboxAgentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Make the records of new handoff points, and apply the policy."""
        self._session.stop.require_running()
        events, checked = state.get("events", []), state.get("checked_events", 0)
        if len(events) == checked:
            return None
        task = TaskBrief.model_validate(state["task"])
        trace = self._session.update_trace_state(events[:checked], task, state.get("record"))
        points = [point for each in events[checked:] for point in trace.add(Event.model_validate(each), each)]
        fired = [point for point in points if point.kind in self._points]
        records = [self._save_record(state, point, runtime) for point in fired]
        update: dict[str, Any] = {
            "checked_events": len(events),
            "records": [record.id for record in records],
        }
        if records and (
            self._policy == "stop"
            or (self._policy == "review" and wait_for_review(self._session, records[0]))
        ):
            update["jump_to"] = "end"
        return update

    def _call_once(self, request: ToolCallRequest) -> ToolResult:
        if (refusal := self._order.refuse_repeated_id(request)) is not None:
            return refusal
        action = _parse_call(request.tool_call)
        if isinstance(action, UnreadableReply):
            return ToolMessage(action.correction, tool_call_id=request.tool_call["id"], status="error")
        earlier, name = self._order.name_calls(request, self._is_sandbox_call)
        with self._order.take_turn(request.state.get("sandbox_state", ""), earlier, name) as before:
            observation, after = self._session.run_once(
                self._work.make_key(before, name),
                before,
                lambda sandbox: self._execute(sandbox, action, request.state).redact_secrets(),
                Observation.model_validate_json,
                # Always in the journal, where the next call of the reply finds the state after it.
                "shell" if _has_no_effect(action) else "anything",
            )
        index = len(request.state.get("events", ())) + 2 * len(earlier)
        return Command(update=_build_update(action, observation, after, index, request.tool_call["id"]))

    def _pass_on_state(self, request: ToolCallRequest, result: ToolResult) -> ToolResult:
        """Give the state after the earlier calls of the reply to the agent that another tool hands over to."""
        if not is_handoff(result):
            return result
        earlier, _ = self._order.name_calls(request, self._is_sandbox_call)
        state = self._order.wait_for(request.state.get("sandbox_state", ""), earlier)
        return cast(ToolResult, pass_on_state(result, request.state, state))

    def _is_sandbox_call(self, call: ToolCall) -> bool:
        return call["name"] in self._names and isinstance(_parse_call(call), Action)

    def _execute(self, sandbox: Sandbox, action: Action, state: Any) -> Observation:
        if action.tool == "shell":
            return execute_command(
                sandbox, action.arguments["command"], timeout_s=self._timeout_s, max_chars=self._max_chars
            )
        return execute_editor(sandbox, action.arguments, state.get("edits", []), max_chars=self._max_chars)

    def _save_record(
        self, state: SandboxAgentState, point: HandoffPoint, runtime: Runtime[Any]
    ) -> HandoffRecord:
        """Save the record of a point, or return the one that an interrupted step has saved."""
        store, name = self._session.records, build_record_id(self._work.thread, point)
        record_id = f"{name}.{state['sandbox_state'][-12:]}"
        if record_id in store.list_ids():
            return store.load(record_id)
        return save_record(
            self._session,
            cast(AgentState, state),
            point,
            record_id=record_id,
            checkpoint=runtime.execution_info.checkpoint_id if runtime.execution_info else "",
            predecessor=self._model_name,
        )


def _build_tools() -> list[BaseTool]:
    schemas = [each["function"] for each in build_tool_schemas(offer_handoff=False)]

    def refuse(**arguments: Any) -> str:
        raise RuntimeError("this tool works only in an agent with its SandboxMiddleware")

    return [
        StructuredTool(
            name=each["name"], description=each["description"], args_schema=each["parameters"], func=refuse
        )
        for each in schemas
        if each["name"] in ("shell", "editor")
    ]


def _parse_call(call: Any) -> Action | UnreadableReply:
    return parse_action(AIMessage("", tool_calls=[call]), "native", offer_handoff=False)


def _has_no_effect(action: Action) -> bool:
    if action.tool == "shell":
        return find_effect(action.arguments["command"]) != "anything"
    return action.arguments["command"] == "view"


def _build_update(
    action: Action, observation: Observation, state: str, index: int, call_id: str | None
) -> dict[str, Any]:
    called = Event(
        index=index, kind="action", tool=action.tool, text="", arguments=redact(dict(action.arguments))
    )
    observed = build_observation_event(index + 1, action.tool, observation)
    update: dict[str, Any] = {
        "messages": [ToolMessage(observed.text, tool_call_id=call_id, name=action.tool)],
        "sandbox_state": state,
        "events": [called.model_dump(mode="json"), observed.model_dump(mode="json")],
    }
    return update | {"edits": [observation.edit]} if observation.edit is not None else update
