"""Messages between an agent's middleware and its model, as strict endpoints accept them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from langgraph_takeover.nodes.model.connections.exchange import join_fragments
from langgraph_takeover.nodes.model.messages.endpoint_rules import (
    ConversationRepair,
    repair_replies,
    repair_reply,
)
from langgraph_takeover.sandbox.storage.observers import get_logger

_LOG = get_logger(__name__)


class ModelMessages:
    """Repairs requests without changing the stored messages, and makes the ids of calls in replies unique."""

    def __init__(self, thread: str) -> None:
        self._thread, self._is_reported = thread, False

    def repair_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return the request as the endpoint accepts it; the first repair is logged."""
        repair = ConversationRepair(request.model, keeps_system=True)
        messages: list[Any] = list(repair.add(request.messages))
        if repair.repairs and not self._is_reported:
            self._is_reported = True
            _LOG.warning("thread %r: %s", self._thread, repair.describe())
        return request.override(messages=messages, model=join_fragments(request.model))

    def repair_response(self, request: ModelRequest[Any], response: Any) -> Any:
        """Return what the model's handler returned, with unique ids."""
        if isinstance(response, AIMessage):
            return repair_reply(response, request.messages, model=request.model)
        if isinstance(response, ExtendedModelResponse):
            inner = self.repair_response(request, response.model_response)
            return replace(response, model_response=inner)
        if not isinstance(response, ModelResponse):
            return response
        result: list[Any] = repair_replies(response.result, request.messages, request.model)
        return replace(response, result=result)
