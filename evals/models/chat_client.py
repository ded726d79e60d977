"""The client of OpenAI-compatible servers, which notes whether a reply has thought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import Field

from langgraph_takeover.nodes.model.messages.thoughts import HAS_THOUGHT, THOUGHT_FIELDS

EXTENDS_CLIENT_LIBRARY = True
"""For `nodes.model.errors`: an error in this module is a fault of the endpoint's reply."""


class EndpointModel(ChatOpenAI):
    """LangChain's client, which drops the fields in which servers send a model's thought.

    Only the fact is kept: thoughts are long, and neither a view nor a later request contains them.
    """

    default_headers: Mapping[str, Any] | None = Field(default=None, exclude=True, repr=False)
    """They contain the key, so that they are neither printed nor serialized."""

    def _generate(self, *arguments: Any, **settings: Any) -> ChatResult:
        try:
            return super()._generate(*arguments, **settings)
        except openai.LengthFinishReasonError as error:
            # Under a schema the library refuses a reply that was cut off; it is billed, counted and readable in part.
            return self._create_chat_result(error.completion)

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        fields = response if isinstance(response, dict) else response.model_dump(warnings=False)
        for choice, generation in zip(fields["choices"], result.generations, strict=True):
            if _has_thought_field(choice["message"]):
                generation.message.additional_kwargs[HAS_THOUGHT] = True
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        converted = super()._convert_chunk_to_generation_chunk(
            chunk, default_chunk_class, base_generation_info
        )
        choices = chunk.get("choices") or ()
        if converted is not None and any(_has_thought_field(choice.get("delta")) for choice in choices):
            assert isinstance(converted.message, AIMessage)
            converted.message.additional_kwargs[HAS_THOUGHT] = True
        return converted


def _has_thought_field(message: Any) -> bool:
    return isinstance(message, dict) and any(message.get(name) for name in THOUGHT_FIELDS)
