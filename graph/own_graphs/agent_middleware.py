"""A middleware for `langchain.agents.create_agent`: shell and editor in a sandbox that is saved with the thread."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Annotated, Any, Literal, NotRequired, cast, get_args

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.types import AgentState as ChatState
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.types import Command

from langgraph_takeover.base.failures import get_logger
from langgraph_takeover.graph.own_graphs.agent_handoffs import (
    is_handoff,
    is_handoff_tool,
    pass_on_state,
    read_field,
    require_shared_state,
)
from langgraph_takeover.graph.own_graphs.agent_trace import find_trace
from langgraph_takeover.graph.own_graphs.call_order import CallOrder, PlacedCall, RanCall, refuse
from langgraph_takeover.graph.own_graphs.sandboxes import Sandboxes
from langgraph_takeover.graph.own_graphs.successors import write_notes
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox, keep_states
from langgraph_takeover.handoff.ledger.traces import TracePart
from langgraph_takeover.handoff.recordings.recorded_run import join_requests
from langgraph_takeover.handoff.records.record import HandoffRecord, TaskBrief
from langgraph_takeover.handoff.shell.command_effects import find_effect
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Action, Event, HandoffPoint, PointKind
from langgraph_takeover.nodes.agent.lifecycle import build_task_brief, wait_for_review
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.model.actions import UnreadableReply, format_reply, parse_action
from langgraph_takeover.nodes.model.endpoint_rules import GrowingRequest, repair_replies
from langgraph_takeover.nodes.model.message_content import mark_client
from langgraph_takeover.nodes.model.openai_client import complete_client
from langgraph_takeover.nodes.model.provider_fields import complete_fields, obey_refusal
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas
from langgraph_takeover.nodes.records import build_record_id, save_record
from langgraph_takeover.nodes.session.graph_tasks import join_states, split_state
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import build_observation_event
from langgraph_takeover.nodes.tools.editor import execute_editor
from langgraph_takeover.nodes.tools.shell_command import execute_command
from langgraph_takeover.sandbox.interface import Sandbox

_LOG = get_logger(__name__)
_MERGED = "The work of parallel branches was merged. These changes contradicted each other:"


class ModelMessages:
    """Repairs requests without changing the stored messages, and makes the ids of calls in replies unique."""

    def __init__(self) -> None:
        self._is_reported = False
        self._conversations: OrderedDict[tuple[str, str], GrowingRequest] = OrderedDict()

    def call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Return what the handler returns for the request as the endpoint accepts it."""
        repaired = self._repair_request(request)
        try:
            response = handler(repaired)
        except Exception as error:
            with obey_refusal(error, repaired.messages, repaired.model):
                response = handler(repaired)
        return self._repair_response(repaired, response)

    async def acall(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """Like `call`, awaited."""
        repaired = self._repair_request(request)
        try:
            response = await handler(repaired)
        except Exception as error:
            with obey_refusal(error, repaired.messages, repaired.model):
                response = await handler(repaired)
        return self._repair_response(repaired, response)

    def _repair_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The first repair is logged."""
        place, has_begun = _find_place(), request.system_message is not None
        conversation = self._conversations.pop(place, None)  # no other thread has it meanwhile
        if conversation is None or not conversation.is_for(request.model, has_begun=has_begun):
            conversation = GrowingRequest(request.model, has_begun=has_begun)
        turns, repair = conversation.repair(request.messages)
        self._conversations[place] = conversation
        while len(self._conversations) > _MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)
        if repair.repairs and not self._is_reported:
            self._is_reported = True
            _LOG.warning("thread %r: %s", _find_thread_name(), repair.describe())
        return request.override(messages=cast("list[Any]", turns), model=complete_client(request.model))

    def _repair_response(self, request: ModelRequest[Any], response: Any) -> Any:
        """Return what the model's handler returned, with unique ids and the fields that the endpoint wants back."""
        if isinstance(response, AIMessage):
            (reply,) = self._repair_replies(request, [response])
            return reply
        if isinstance(response, ExtendedModelResponse):
            inner = self._repair_response(request, response.model_response)
            return replace(response, model_response=inner)
        if not isinstance(response, ModelResponse):
            return response
        return replace(response, result=self._repair_replies(request, response.result))

    def _repair_replies(self, request: ModelRequest[Any], replies: Sequence[BaseMessage]) -> list[Any]:
        marked = [
            mark_client(complete_fields(each), request.model) if isinstance(each, AIMessage) else each
            for each in replies
        ]
        return repair_replies(marked, request.messages, request.model)


_MAX_CONVERSATIONS = 64
ToolResult = ToolMessage | Command[Any]
_POINTS: tuple[PointKind, ...] = ("first_source_edit", "first_validation", "first_post_failure_edit")


def merge_events(events: list[dict[str, Any]], added: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Add events in their order, whichever call of a step was saved first; None removes all."""
    if added is None:
        return []
    merged = [*events, *added]
    if events and added and added[0]["index"] < events[-1]["index"]:
        merged.sort(key=itemgetter("index"))
    return merged


def _add_or_clear(known: list[Any], added: list[Any] | None) -> list[Any]:
    return [] if added is None else known + added


def _check_options(sandboxes: object, points: object, policy: object, notes_model: object) -> None:
    """Raise SettingsError for values that would fail later, or have no effect."""
    if not isinstance(sandboxes, (Sandboxes, ThreadSandbox)):
        raise SettingsError(
            f"sandboxes: invalid value {sandboxes!r:.60} (pass Sandboxes(home, spec), or the work of open_sandbox)"
        )
    kinds, policies = get_args(PointKind), ("record", "stop", "review")
    if policy not in policies:
        raise SettingsError(f"policy: invalid value {policy!r:.60} (pass {', '.join(map(repr, policies))})")
    if isinstance(points, str) or not isinstance(points, Collection) or not {*points} <= {*kinds}:
        raise SettingsError(
            f"points: invalid value {points!r:.60} (pass a list of {', '.join(map(repr, kinds))})"
        )
    if notes_model is not None and not isinstance(notes_model, BaseChatModel):
        raise SettingsError(f"notes_model: invalid value {notes_model!r:.60} (pass a chat model)")


def _find_place() -> tuple[str, str]:
    """Return the thread and the namespace of the graph that calls the model."""
    with suppress(RuntimeError):
        at = get_config().get("configurable", {})
        return str(at.get("thread_id")), str(at.get("checkpoint_ns", "")).rpartition("|")[0]
    return "", ""


def _find_thread_name() -> str | None:
    with suppress(RuntimeError):
        return get_config().get("configurable", {}).get("thread_id")
    return None


class SandboxAgentState(ChatState[Any]):
    """The state of an agent with a `SandboxMiddleware`: messages, and what belongs to the sandbox and to handoffs."""

    sandbox_state: NotRequired[Annotated[str, keep_states]]
    """Id of the sandbox's state."""
    task: NotRequired[dict[str, Any]]
    """`TaskBrief` as JSON."""
    requests: NotRequired[list[str]]
    """Ids of the messages that are part of the task."""
    trace: NotRequired[str]
    """Id of the events and edits of the earlier steps, which are in the ledger."""
    events: NotRequired[Annotated[list[dict[str, Any]], merge_events]]
    """Calls and observations of the sandbox's tools since then, as JSON."""
    edits: NotRequired[Annotated[list[dict[str, Any]], _add_or_clear]]
    """The editor's changes since then, for undo."""
    checked_events: NotRequired[int]
    """Number of events in which handoff points were looked for."""
    records: NotRequired[Annotated[list[str], operator.add]]
    """Ids of the handoff records made so far."""
    record: NotRequired[str]
    """Successors only: id of the record."""


class SandboxMiddleware(AgentMiddleware[SandboxAgentState, Any, Any]):
    """Gives an agent the tools `shell` and `editor` in the sandbox of its thread.

    Each call takes effect once, and its state of the sandbox is saved with the step. Several calls in one reply are made
    in their order. At handoff points a record is made; under the policy `stop` the agent then ends, under `review` a
    person decides whether it does. `home.request_handoff` asks for a record after the current step; the agent then ends,
    unless a person decides otherwise. The agent needs a checkpointer: any, or `work.saver` of `open_sandbox`.

    Args:
        sandboxes: those of all threads; or the sandbox of one, from `open_sandbox`.
        points: the kinds of handoff points at which a record is made.
        policy: what follows a record: `record` continues, `stop` ends the agent, `review` asks a person.
        model_name: name of the model in the records.
        notes_model: writes notes on each record, which several views show; without it, `receive_record` can have them written.
        command_timeout_s: time limit of one command, in seconds.
        observation_chars: maximum length of a result; the middle of a longer one is left out.

    Example:
        >>> from langchain.agents import create_agent
        >>> from langgraph_takeover.middleware import SandboxMiddleware
        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from langgraph_takeover.integrations import Sandboxes
        >>> sandboxes = Sandboxes(home, sandbox_spec)
        >>> agent = create_agent(
        ...     "openai:gpt-5", middleware=[SandboxMiddleware(sandboxes)], checkpointer=InMemorySaver()
        ... )
    """

    state_schema = SandboxAgentState

    def __new__(cls, *args: Any, policy: str = "record", **options: Any) -> SandboxMiddleware:
        kind = cls
        if policy != "record" and not issubclass(cls, _PolicyMiddleware):
            # LangChain makes a node for a hook that the class has.
            kind = (
                _PolicyMiddleware
                if cls is SandboxMiddleware
                else type(cls.__name__, (cls, _PolicyMiddleware), {})
            )
        return super().__new__(kind)

    def __init__(
        self,
        sandboxes: Sandboxes | ThreadSandbox,
        *,
        points: Collection[PointKind] = _POINTS,
        policy: Literal["record", "stop", "review"] = "record",
        model_name: str = "unknown model",
        notes_model: BaseChatModel | None = None,
        command_timeout_s: float = 120.0,
        observation_chars: int = 20_000,
    ) -> None:
        super().__init__()
        _check_options(sandboxes, points, policy, notes_model)
        self.tools = _build_tools(self._run_tool, self._arun_tool)
        self._names = frozenset(tool.name for tool in self.tools)
        self._sandboxes = sandboxes
        self._points, self._policy, self._model_name = frozenset(points), policy, model_name
        self._notes_model = notes_model
        self._timeout_s, self._max_chars = command_timeout_s, observation_chars
        self._messages = ModelMessages()

    def _find_order(self, work: ThreadSandbox) -> CallOrder:
        return work.keep(self, lambda: CallOrder(work, self._names))

    def before_agent(self, state: SandboxAgentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Describe the task: the requests of a person so far, and the repository at the start."""
        return _add_requests(state) if "task" in state else self._begin(self._sandboxes.current(state), state)

    async def abefore_agent(self, state: SandboxAgentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        if "task" in state:
            return _add_requests(state)
        work = await self._sandboxes.acurrent(state)
        return await work.run_blocking(lambda: self._begin(work, state))

    def _begin(self, work: ThreadSandbox, state: SandboxAgentState) -> dict[str, Any]:
        if not state.get("sandbox_state"):
            require_shared_state(work, state["messages"], self._names)
        asked = [each for each in state["messages"] if isinstance(each, HumanMessage)]
        sandbox = work.enter(state.get("sandbox_state"))
        prompt = join_requests(redact(each.text) for each in asked)
        task = build_task_brief(work.thread, prompt, sandbox).model_dump(mode="json")
        update: dict[str, Any] = {"task": task, "requests": [str(each.id) for each in asked]}
        if not state.get("sandbox_state"):
            update["sandbox_state"] = work.start()
        return update

    def after_agent(self, state: SandboxAgentState, runtime: Runtime[Any]) -> None:
        """Remember the last message, by which another agent of the graph detects that the state was lost."""
        self._end(self._sandboxes.current(state), state)

    async def aafter_agent(self, state: SandboxAgentState, runtime: Runtime[Any]) -> None:
        work = await self._sandboxes.acurrent(state)
        await work.run_blocking(lambda: self._end(work, state))

    def _end(self, work: ThreadSandbox, state: SandboxAgentState) -> None:
        work.last_messages.add(str(state["messages"][-1].id))
        # The step with the record is saved: if a process dies before this, the next one makes no second record.
        if work.handoff_request is not None and (records := state.get("records")):
            newest = work.session.records.load(records[-1])
            inherited = len(work.session.records.load(state["record"]).trace) if "record" in state else 0
            is_at_end = len(newest.trace) == inherited + state["checked_events"]
            if newest.point.kind == "requested" and is_at_end:
                work.answer_handoff_request()

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Make the records of new handoff points; send messages that strict endpoints accept.

        The ids of calls in the reply become unique. Raises SettingsError if another tool replaces one of the sandbox's.
        """
        self._require_own_tools(request.tools)
        if self._policy != "record":  # checked before, in a node
            return self._messages.call(request, handler)
        work = self._sandboxes.current(request.state)
        update = self._check_points(work, request.state, request.runtime) or {}
        request, notes = add_notes(request, update)
        if (last := _take_last_message(update)) is not None:
            return add_update(last, update, notes)
        return add_update(self._messages.call(request, handler), update, notes)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        self._require_own_tools(request.tools)
        if self._policy != "record":
            return await self._messages.acall(request, handler)
        work = await self._sandboxes.acurrent(request.state)
        update = (
            await work.run_blocking(lambda: self._check_points(work, request.state, request.runtime)) or {}
        )
        request, notes = add_notes(request, update)
        if (last := _take_last_message(update)) is not None:
            return add_update(last, update, notes)
        return add_update(await self._messages.acall(request, handler), update, notes)

    def _require_own_tools(self, tools: Iterable[Any]) -> None:
        """Raise SettingsError for another tool with a name of ours: LangChain keeps the last one, without a word."""
        for each in tools:
            if isinstance(each, BaseTool) and each.name in self._names and not isinstance(each, _SandboxTool):
                raise SettingsError(
                    f"tools: another tool named {each.name!r} replaces the sandbox's and would run outside of it (rename it, "
                    "for instance ShellToolMiddleware(tool_name='host_shell'))"
                )

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        """Note how a call ends, for the calls after it; a handoff waits for the calls before it."""
        order = self._find_order(self._sandboxes.current(request.state))
        call = order.find_call(request.state, request.runtime, request.tool_call["id"])
        with order.attend(call):
            if is_handoff_tool(request.tool):
                order.wait_for_earlier(call)
            result = handler(request)
            if is_handoff(result):
                order.wait_for_earlier(call)
            return self._add_state(request, call, result)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        work = await self._sandboxes.acurrent(request.state)
        order = self._find_order(work)
        call = order.find_call(request.state, request.runtime, request.tool_call["id"])
        with order.attend(call):
            if is_handoff_tool(request.tool):
                await order.wait_for_earlier_async(call)
            result = await handler(request)
            if is_handoff(result):
                await order.wait_for_earlier_async(call)
            if is_handoff(result) or not call.updates:
                return await work.run_blocking(lambda: self._add_state(request, call, result))
            return self._add_state(request, call, result)

    def _check_points(
        self, work: ThreadSandbox, state: SandboxAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        session, trace = work.session, find_trace(work)
        session.stop.require_running()
        update = self._find_dropped(self._find_order(work), state, runtime)
        update |= merge_branches(work, update.get("sandbox_state") or state.get("sandbox_state"))
        added = TracePart(
            merge_events(state.get("events", []), update.pop("events", [])),
            [*state.get("edits", []), *update.pop("edits", [])],
        )
        earlier, checked = trace.load(state.get("trace")).events, state.get("checked_events", 0)
        new = added.events[max(checked - len(earlier), 0) :]
        request, count = work.handoff_request, len(earlier) + len(added.events)
        if not new and (request is None or not count):
            return update or None
        before = [*earlier, *added.events[: len(added.events) - len(new)]]
        task = TaskBrief.model_validate(state["task"])
        with trace.lock:  # agents side by side share it
            detector = session.update_trace_state(before, task, state.get("record"))
            points = [point for each in new for point in detector.add(Event.model_validate(each), each)]
        fired = [point for point in points if point.kind in self._points]
        if request is not None:
            fired.append(HandoffPoint(kind="requested", event_index=count - 1, detail=request))
        if fired:
            state = cast(SandboxAgentState, {**state, **update, "events": [*before, *new]})
        records = [self._save_record(session, state, point, runtime) for point in fired]
        if self._notes_model is not None:
            records = [write_notes(session, each, self._notes_model) for each in records]
        if records and self._policy == "review":
            if wait_for_review(session, records[0]):
                update["jump_to"] = "end"
            elif request is not None:
                work.answer_handoff_request()
        elif request is not None or (records and self._policy == "stop"):
            update["jump_to"] = "end"
        return update | {
            "trace": trace.append(state.get("trace"), added),
            "events": None,
            "edits": None,
            "checked_events": checked + len(new),
            "records": [record.id for record in records],
        }

    def _find_dropped(
        self, order: CallOrder, state: SandboxAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any]:
        """Return the changes of the last reply's calls that an outer wrapper kept from the state."""
        found = order.find_updates(state, runtime.execution_info)
        if found is None:
            return {}
        before, sandbox_state, updates = found
        given = state.get("sandbox_state")
        if given and given != before:  # another tool of the reply may have returned a state
            sandbox_state = join_states([given, sandbox_state])
        saved, first = set(), min((each["events"][0]["index"] for each in updates.values()), default=0)
        for event in reversed(state.get("events", [])):
            if event["index"] < first:
                break
            saved.add(event["index"])
        dropped = {n: each for n, each in updates.items() if each["events"][0]["index"] not in saved}
        changed = sandbox_state != given
        return _join_updates(dropped) | ({"sandbox_state": sandbox_state} if dropped or changed else {})

    def _run_tool(self, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> ToolResult:
        order = self._find_order(self._sandboxes.current(runtime.state))
        placed = order.find_call(runtime.state, runtime, call["id"])
        with order.attend(placed):
            order.wait_for_earlier(placed)
            return self._run_call(call, runtime, placed)

    async def _arun_tool(self, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> ToolResult:
        work = await self._sandboxes.acurrent(runtime.state)
        order = self._find_order(work)
        placed = order.find_call(runtime.state, runtime, call["id"])
        with order.attend(placed):
            await order.wait_for_earlier_async(placed)
            return await work.run_blocking(lambda: self._run_call(call, runtime, placed))

    def _run_call(self, call: ToolCall, runtime: ToolRuntime[Any, Any], placed: PlacedCall) -> ToolResult:
        """Run a call as the last wrapper passed it on, once. A call that has an answer, such as a refusal, does not run."""
        if placed.answer is not None:
            return placed.answer
        action = _parse_call(call)
        if isinstance(action, UnreadableReply):
            return refuse(call, action.correction)
        trace, trace_id = find_trace(placed.order.work), read_field(runtime.state, "trace")
        edits = read_field(runtime.state, "edits") or []
        if action.arguments.get("command") == "undo_edit":
            edits = [*trace.load(trace_id).edits, *edits]
        ran = placed.order.run(
            placed,
            [action.tool, dict(action.arguments)],
            lambda sandbox, _: self._execute(sandbox, action, edits).redact_secrets(),
            Observation.model_validate_json,
            # Always in the journal, where the next call of the reply finds the state after it.
            "shell" if _has_no_effect(action) else "anything",
        )
        if ran is None:
            return refuse(call, placed.refusal)
        events = read_field(runtime.state, "events") or ()
        index = len(trace.load(trace_id).events) + len(events) + 2 * ran.number
        text = "" if ran.number else _format_replies(read_field(runtime.state, "messages"), self._names)
        update = _build_update(action, text, ran, index)
        placed.updates[ran.number] = update
        message = ToolMessage(update["events"][1]["text"], tool_call_id=call["id"], name=action.tool)
        return Command(update={**_join_updates(placed.updates), "messages": [message]})

    def _add_state(self, request: ToolCallRequest, call: PlacedCall, result: ToolResult) -> ToolResult:
        """Return the result of a call with what its attempts changed, whatever the wrappers inside made of it.

        A handoff gets the state after the earlier calls of the reply.
        """
        if is_handoff(result):
            return cast(ToolResult, pass_on_state(result, request.state, call.order.find_state(call)))
        update = _join_updates(call.updates)
        name = request.tool_call["name"]
        if not update and (left := call.order.work.find_left_state(call.step.state_before, name)):
            update = {"sandbox_state": left}  # of another tool, which acted or called an agent
            if isinstance(result, Command) and "sandbox_state" in (result.update or {}):
                return result
        if not update:
            return result
        if isinstance(result, ToolMessage):
            return Command(update={**update, "messages": [result]})
        if isinstance(result, Command) and isinstance(result.update, dict):
            return replace(result, update={**result.update, **update})
        return result

    def _execute(self, sandbox: Sandbox, action: Action, edits: list[dict[str, Any]]) -> Observation:
        if action.tool == "shell":
            return execute_command(
                sandbox, action.arguments["command"], timeout_s=self._timeout_s, max_chars=self._max_chars
            )
        return execute_editor(sandbox, action.arguments, edits, max_chars=self._max_chars)

    def _save_record(
        self, session: Session, state: SandboxAgentState, point: HandoffPoint, runtime: Runtime[Any]
    ) -> HandoffRecord:
        """Save the record of a point, or return the one that an interrupted step has saved."""
        store, name = session.records, build_record_id(session.thread, point)
        checkpoint = runtime.execution_info.checkpoint_id if runtime.execution_info else ""
        record_id = f"{name}.{state['sandbox_state'][-12:]}"
        known = store.list_ids()
        if record_id in known and store.load(record_id).checkpoint_id != checkpoint:
            record_id = f"{record_id}.{checkpoint[-12:]}"  # a fork may be reviewed otherwise
        if record_id in known:
            return store.load(record_id)
        return save_record(
            session,
            cast(AgentState, state),
            point,
            record_id=record_id,
            checkpoint=checkpoint,
            predecessor=self._model_name,
        )


def merge_branches(work: ThreadSandbox, given: str | None) -> dict[str, Any]:
    """Return the merge of what parallel branches left, and a note about conflicts that the policy resolved."""
    if not given or len(split_state(given)) == 1:
        return {}
    update: dict[str, Any] = {"sandbox_state": work.resolve_state(given)}
    if conflicts := work.list_conflicts(given):
        lines = [f"- {each} (what is there now: {each.left})" for each in conflicts]
        update["messages"] = [HumanMessage("\n".join([_MERGED, *lines]))]
    return update


class _PolicyMiddleware(SandboxMiddleware):
    """Ends the agent, or asks a person, before the model is called; a node of the graph, with a checkpoint of its own."""

    @property
    def name(self) -> str:
        return type(self).__name__ if type(self) is not _PolicyMiddleware else SandboxMiddleware.__name__

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: SandboxAgentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Make the records of new handoff points, and apply the policy."""
        return self._check_points(self._sandboxes.current(state), state, runtime)

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: SandboxAgentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        work = await self._sandboxes.acurrent(state)
        return await work.run_blocking(lambda: self._check_points(work, state, runtime))


class _SandboxTool(StructuredTool):
    """A tool whose function gets the whole call, so that any name of an argument is possible."""

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = dict(tool_input) if isinstance(tool_input, dict) else {}
        if (runtime := arguments.pop("runtime", None)) is None:
            raise RuntimeError("this tool works only in an agent with its SandboxMiddleware")
        return (), {"call": ToolCall(name=self.name, args=arguments, id=tool_call_id), "runtime": runtime}


def _build_tools(run: Callable[..., Any], arun: Callable[..., Any]) -> list[BaseTool]:
    schemas = [each["function"] for each in build_tool_schemas(offer_handoff=False)]
    return [
        _SandboxTool(
            name=each["name"],
            description=each["description"],
            args_schema=each["parameters"],
            func=run,
            coroutine=arun,
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


def _format_replies(messages: Sequence[BaseMessage], names: Collection[str]) -> str:
    """Return the last reply, after those since the last one that called a tool of the sandbox."""
    replies: list[str] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            if replies and any(call["name"] in names for call in message.tool_calls):
                break
            replies.insert(0, format_reply(message))
    return str(redact("\n\n".join(replies)))


def _build_update(action: Action, text: str, ran: RanCall[Observation], index: int) -> dict[str, Any]:
    arguments, observation = redact(dict(action.arguments)), ran.result
    called = Event(index=index, kind="action", tool=action.tool, text=text, arguments=arguments)
    observed = build_observation_event(index + 1, action.tool, observation)
    update: dict[str, Any] = {
        "sandbox_state": ran.state,
        "events": [called.model_dump(mode="json"), observed.model_dump(mode="json")],
    }
    return update | {"edits": [observation.edit]} if observation.edit is not None else update


def add_notes(request: ModelRequest[Any], update: dict[str, Any]) -> tuple[ModelRequest[Any], list[Any]]:
    """Return the request with the notes for the model, which are no longer part of the update, and these notes."""
    notes = update.pop("messages", [])
    return request.override(messages=[*request.messages, *notes]) if notes else request, notes


def _add_requests(state: SandboxAgentState) -> dict[str, Any] | None:
    """Add a person's latest messages to the task."""
    known, new = state.get("requests", []), list[HumanMessage]()
    for message in reversed(state["messages"]):
        if not isinstance(message, HumanMessage) or message.id in known:
            break
        new.insert(0, message)
    if not new:
        return None
    prompt = join_requests([state["task"]["prompt"], *(redact(each.text) for each in new)])
    return {
        "task": {**state["task"], "prompt": prompt},
        "requests": [*known, *(str(each.id) for each in new)],
    }


def _take_last_message(update: dict[str, Any]) -> AIMessage | None:
    """Return the message that ends the agent in place of the model's reply, if it hands over; no model wrote it."""
    if update.pop("jump_to", None) is None:
        return None
    return AIMessage(f"Handed over on request: record {update['records'][-1]}.", name="sandbox")


def add_update(result: Any, update: dict[str, Any], notes: list[Any]) -> Any:
    """Return what the model's handler returned, with an update of the state; the notes precede the reply."""
    if not update and not notes:
        return result
    command: Command[Any] | None = None
    if isinstance(result, ExtendedModelResponse):
        result, command = result.model_response, result.command
    response = ModelResponse(result=[result]) if isinstance(result, AIMessage) else result
    if command is not None and isinstance(command.update, dict):
        update = {**command.update, **update}
    if notes:
        response = replace(response, result=[*notes, *response.result])
    return ExtendedModelResponse(model_response=response, command=Command(update=update))


def _join_updates(updates: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Return one update of the agent's state after several attempts or calls."""
    joined: dict[str, Any] = {}
    for _, update in sorted(updates.items()):
        for name, value in update.items():
            joined[name] = [*joined.get(name, []), *value] if isinstance(value, list) else value
    return joined
