"""Models without an LLM inside external agents: their actions become calls of the agent's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_takeover.evals.models.scripted import ScriptedModel
from langgraph_takeover.handoff.agents.native_sessions import HISTORY_CALL_PREFIX
from langgraph_takeover.handoff.recordings.tool_calls import normalize_call
from langgraph_takeover.handoff.trace.events import Action


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
