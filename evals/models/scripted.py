"""Chat models without an LLM: computed replies, also as calls of an external agent's own tools."""

from __future__ import annotations

import math
import random
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_takeover.handoff.agents.native_sessions import HISTORY_CALL_PREFIX
from langgraph_takeover.handoff.recordings.tool_calls import normalize_call
from langgraph_takeover.handoff.trace.events import Action, write_action

CHARACTERS_PER_TOKEN = 4
"""Token estimate of models without a tokenizer; reports mark it as an estimate."""


class Turn(NamedTuple):
    """One reply: a thought and the action that follows it. Notes have no action."""

    thought: str
    action: Action | None = None


def message_text(message: BaseMessage) -> str:
    """A message's text, including the arguments of native tool calls."""
    calls = getattr(message, "tool_calls", [])
    return "\n".join([message.text, *(str(value) for call in calls for value in call["args"].values())])


class ScriptedModel(BaseChatModel):
    """Returns the turns of `respond` as text or as native tool calls."""

    is_llm: ClassVar[bool] = False
    """No conversation exceeds the window, which only bounds views."""
    native: bool = False
    latency_s: float = 0.0
    """Mean latency per reply, seeded by the request: the same request always takes the same time."""

    @abstractmethod
    def respond(self, messages: list[BaseMessage]) -> Turn: ...

    @property
    def _llm_type(self) -> str:
        return type(self).__name__

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.model_copy(update={"native": True})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        thought, action = self.respond(messages)
        if self.latency_s:
            request = "\n".join(message_text(message) for message in messages)
            # The mean of a lognormal distribution exceeds its median by half the variance, in log space.
            time.sleep(random.Random(request).lognormvariate(math.log(self.latency_s) - 0.125, 0.5))
        if action is None:
            reply = AIMessage(thought)
        elif self.native:
            call = {"name": action.tool, "args": action.arguments, "id": f"call_{len(messages)}"}
            reply = AIMessage(thought, tool_calls=[call])
        else:
            reply = AIMessage(f"{thought}\n\n{write_action(action)}".strip())
        prompt = sum(len(message_text(message)) for message in messages) // CHARACTERS_PER_TOKEN
        completion = max(len(message_text(reply)) // CHARACTERS_PER_TOKEN, 1)
        reply.usage_metadata = UsageMetadata(
            input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion
        )
        reply.response_metadata = {"finish_reason": "stop"}
        return ChatResult(generations=[ChatGeneration(message=reply)])


class AgentToolsModel(BaseChatModel):
    """Lets a scripted model work inside an external agent.

    The scripted model sees the conversation with this project's tools and result headings; the agent sees calls of its
    own tools, which `adapter` writes.
    """

    is_llm: ClassVar[bool] = False
    script: ScriptedModel
    adapter: Any
    """An `AgentAdapter`."""
    workspace: str

    @property
    def _llm_type(self) -> str:
        return f"{self.script._llm_type} in {self.adapter.name}"

    @property
    def model_name(self) -> str:
        return type(self.script).__name__

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        script = self.script.model_copy(update={"native": True})
        result = script._generate(self._translate(messages), stop, run_manager, **kwargs)
        reply = result.generations[0].message
        assert isinstance(reply, AIMessage)
        call = reply.tool_calls[0] if reply.tool_calls else None
        action = Action(call["name"], call["args"]) if call else Action("finish", {})
        own = self.adapter.write_call(action, self.workspace)
        if own is None:
            message = action.arguments.get("message", "")
            update: dict[str, Any] = {
                "content": "\n".join(filter(None, (reply.text, message))) or "Done.",
                "tool_calls": [],
            }
        else:
            number = sum(isinstance(each, AIMessage) for each in messages)
            update = {
                "tool_calls": [{"name": own.name, "args": dict(own.arguments), "id": f"call_{number:04}"}]
            }
        return ChatResult(generations=[ChatGeneration(message=reply.model_copy(update=update))])

    def _translate(self, messages: list[BaseMessage]) -> list[BaseMessage]:
        """The conversation in this project's terms."""
        calls = {
            call["id"]: call for each in messages if isinstance(each, AIMessage) for call in each.tool_calls
        }
        shown: list[BaseMessage] = []
        for each in messages:
            if isinstance(each, AIMessage) and each.tool_calls:
                own = []
                for call in each.tool_calls:
                    tool, arguments = normalize_call(call["name"], call["args"])
                    own.append({"name": tool, "args": arguments, "id": call["id"]})
                is_own = not str(each.tool_calls[0]["id"]).startswith(HISTORY_CALL_PREFIX)
                usage = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0) if is_own else None
                each = each.model_copy(update={"tool_calls": own, "usage_metadata": usage})
            elif isinstance(each, ToolMessage) and (made := calls.get(each.tool_call_id)):
                is_error = each.status == "error"
                result = self.adapter.read_result(made["name"], made["args"], each.text, is_error=is_error)
                code = each.artifact if result.exit_code is None else result.exit_code
                heading = "" if code is None else f"[exit code {code}]\n"
                each = ToolMessage(f"{heading}{result.output}", tool_call_id=each.tool_call_id)
            shown.append(each)
        return shown
