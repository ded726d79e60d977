"""What drives the conversation with the model: the built-in agent, or the program of an external one."""

from __future__ import annotations

from inspect import signature
from typing import Any, Protocol, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.nodes.agent.lifecycle import build_delegate_tool, can_delegate
from langgraph_takeover.nodes.context.settings import (
    AgentContext,
    SettingsError,
    describe_missing_tool_calls,
)
from langgraph_takeover.nodes.external.agent_turns import (
    add_exit_codes,
    bind_request,
    is_external,
    is_waiting,
    parse_first_action,
    require_process,
)
from langgraph_takeover.nodes.model.actions import UnreadableReply, parse_action, parse_call
from langgraph_takeover.nodes.model.endpoint_rules import (
    ConversationRepair,
    complete_turns,
    end_with_user,
    fill_blank,
)
from langgraph_takeover.nodes.model.message_content import adapt_messages, describe_damage
from langgraph_takeover.nodes.model.provider_fields import take_fields
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas
from langgraph_takeover.nodes.model.usage import count_chars
from langgraph_takeover.nodes.model.window import (
    Request,
    build_request,
    condense_fully,
    find_last_usage,
    measure_conversation,
)
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import count_further_calls
from langgraph_takeover.nodes.tools.custom_tools import list_extra_tools, list_tool_names


class Driver(Protocol):
    """One step of an agent's conversation with its model."""

    starting: str
    """Name of the program that must start before its request is known; empty without one."""

    def begin(self) -> ConversationRepair:
        """Take the conversation, in the sandbox state of the graph state; return what repairs it for the endpoint."""

    def build_request(self) -> Request:
        """Return the messages of the next call."""

    def bind_model(self) -> Runnable[Any, Any]:
        """Return the model with the tools that it may call. Raises SettingsError if it does not support tools."""

    def complete_turns(self, messages: list[BaseMessage]) -> list[BaseMessage]:
        """Return the messages with the turns that endpoints expect."""

    def condense(self, refused: Request) -> Request | None:
        """Return a shorter request than one that exceeded the window; None if there is none."""

    def count_further_calls(self, reply: AIMessage) -> int:
        """Count the calls of a reply that run after its first."""

    def parse_reply(self, reply: AIMessage, further_calls: int) -> Action | UnreadableReply: ...

    def complete_reply(self, reply: AIMessage) -> AIMessage:
        """Return the reply as the state stores it."""

    def end(self) -> None:
        """Return the conversation to the session after a successful step."""


def choose_driver(state: AgentState, context: AgentContext, messages: list[AnyMessage]) -> Driver:
    """Return what drives the thread. `messages` is what the built-in agent's model sees."""
    if is_external(state, context):
        return _ExternalDriver(state, context)
    return _BuiltInDriver(state, context, messages)


class _BuiltInDriver:
    """The built-in agent. A team's agents each see messages of their own, which stay complete."""

    starting = ""

    def __init__(self, state: AgentState, context: AgentContext, messages: list[AnyMessage]) -> None:
        self._state, self._context, self._messages = state, context, messages
        self._name = context.member.name if context.member else ""

    def begin(self) -> ConversationRepair:
        # The session has it again after the step, so that no other thread uses it meanwhile.
        known = self._context.session.conversations.pop(self._name, None)
        self._conversation = measure_conversation(self._messages, self._context.model, known)
        return self._conversation.repair

    def build_request(self) -> Request:
        context = self._context
        has_window = context.member is None and getattr(context.model, "is_llm", True)
        return build_request(
            self._conversation,
            self._state["steps"],
            window_tokens=context.known_window if has_window else None,
            condense=context.condense,
            condensed=self._state.get("condensed", 0),
            last_usage=find_last_usage(self._state.get("events", ())),
        )

    def bind_model(self) -> Runnable[Any, Any]:
        context = self._context
        if context.protocol != "native":
            return context.model
        delegate_tool: tuple[BaseTool, ...] = (build_delegate_tool(),) if can_delegate(context) else ()
        tools = build_tool_schemas(
            offer_handoff=context.offer_handoff,
            extra_tools=(*list_extra_tools(self._state, context), *delegate_tool),
            agents=context.member.handoff_targets if context.member else (),
        )
        try:
            return context.model.bind_tools(tools, **_choose_bind_options(context))
        except NotImplementedError as error:
            raise SettingsError(describe_missing_tool_calls(context.model)) from error

    def complete_turns(self, messages: list[BaseMessage]) -> list[BaseMessage]:
        if self._conversation.has_odd_turns:
            return complete_turns(messages, self._context.model)
        return end_with_user(messages)

    def condense(self, refused: Request) -> Request | None:
        if not self._context.condense or self._context.member:
            return None
        shorter = condense_fully(self._conversation, self._state["steps"])
        return shorter if shorter.condensed > refused.condensed else None

    def count_further_calls(self, reply: AIMessage) -> int:
        has_several = self._context.parallel_tool_calls and self._context.protocol == "native"
        return count_further_calls(reply) if has_several else 0

    def parse_reply(self, reply: AIMessage, further_calls: int) -> Action | UnreadableReply:
        if damage := describe_damage(reply):
            return UnreadableReply(damage)
        offer, tools = self._context.offer_handoff, list_tool_names(self._state, self._context)
        if further_calls:
            return parse_call(reply.tool_calls[0], offer_handoff=offer, extra_tools=tools)
        return parse_action(reply, self._context.protocol, offer_handoff=offer, extra_tools=tools)

    def complete_reply(self, reply: AIMessage) -> AIMessage:
        return cast(AIMessage, fill_blank(reply))

    def end(self) -> None:
        self._context.session.conversations[self._name] = self._conversation


class _ExternalDriver:
    """An external agent, which builds its requests itself and gets each reply from the stored one."""

    def __init__(self, state: AgentState, context: AgentContext) -> None:
        self._state, self._context = state, context
        self.starting = "" if is_waiting(state, context) else state["external"]["agent"]

    def begin(self) -> ConversationRepair:
        self._repair = ConversationRepair(self._context.model)
        return self._repair

    def build_request(self) -> Request:
        state, model = self._state, self._context.model
        messages = add_exit_codes(require_process(state, self._context).list_messages(), state)
        messages = self._repair.add(adapt_messages(take_fields(messages, state["messages"]), model))
        return Request(messages, 0, False, count_chars(messages))

    def bind_model(self) -> Runnable[Any, Any]:
        return bind_request(self._context, require_process(self._state, self._context))

    def complete_turns(self, messages: list[BaseMessage]) -> list[BaseMessage]:
        return complete_turns(messages, self._context.model)

    def condense(self, refused: Request) -> Request | None:
        return None

    def count_further_calls(self, reply: AIMessage) -> int:
        return 0

    def parse_reply(self, reply: AIMessage, further_calls: int) -> Action | UnreadableReply:
        return parse_first_action(reply)

    def complete_reply(self, reply: AIMessage) -> AIMessage:
        return reply

    def end(self) -> None:
        pass


def _choose_bind_options(context: AgentContext) -> dict[str, Any]:
    """Return the option that asks the provider for one call per reply, if the run wants that and the client knows it."""
    name = "parallel_tool_calls"
    if context.parallel_tool_calls or name not in signature(context.model.bind_tools).parameters:
        return {}
    disabled = getattr(context.model, "disabled_params", None) or {}
    return {} if name in disabled else {name: False}
