"""Chat models without an LLM: computed replies in the format of the action protocol."""

from __future__ import annotations

import math
import random
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

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
