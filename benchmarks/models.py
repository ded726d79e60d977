"""Models without an LLM, which answer at once or after a fixed time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field


class InstantModel(BaseChatModel):
    """Requests the same command `steps` times, and records the times of its calls."""

    command: str
    steps: int
    reply_s: float = 0.0
    """Seconds before each reply."""
    call_times: list[float] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        if self.reply_s:
            time.sleep(self.reply_s)
        return self._reply()

    async def _agenerate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(self.reply_s)
        return self._reply()

    def _reply(self) -> ChatResult:
        self.call_times.append(time.perf_counter())
        is_done = len(self.call_times) > self.steps
        text = "<finish>Done.</finish>" if is_done else f"```bash\n{self.command}\n```"
        usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


class DirectModel(InstantModel):
    """The same model without LangChain's handling of the conversation."""

    def invoke(self, input: Any, config: Any = None, **_: Any) -> AIMessage:
        reply = self._generate(input).generations[0].message
        return AIMessage(reply.content, usage_metadata=getattr(reply, "usage_metadata", None))
