"""Messages between an agent's middleware and its model, as strict endpoints accept them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.nodes.model.connections.openai_client import complete_client
from langgraph_takeover.nodes.model.messages.content import adapt_messages, mark_client
from langgraph_takeover.nodes.model.messages.endpoint_rules import (
    ConversationRepair,
    repair_replies,
)
from langgraph_takeover.nodes.model.messages.provider_fields import complete_fields, obey_refusal
from langgraph_takeover.nodes.model.messages.turns import complete_turns
from langgraph_takeover.sandbox.storage.observers import get_logger

_LOG = get_logger(__name__)


class ModelMessages:
    """Repairs requests without changing the stored messages, and makes the ids of calls in replies unique."""

    def __init__(self, thread: str) -> None:
        self._thread, self._is_reported = thread, False

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
        repair = ConversationRepair(request.model, has_begun=request.system_message is not None)
        messages = repair.add(adapt_messages(request.messages, request.model))
        if repair.repairs and not self._is_reported:
            self._is_reported = True
            _LOG.warning("thread %r: %s", self._thread, repair.describe())
        turns: list[Any] = complete_turns(messages, request.model)
        return request.override(messages=turns, model=complete_client(request.model))

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
