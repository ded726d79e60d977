"""The client of OpenAI-compatible servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai
from langchain_core.outputs import ChatResult
from langchain_openai import ChatOpenAI
from pydantic import Field

EXTENDS_CLIENT_LIBRARY = True
"""For `nodes.model.model_errors`: an error in this module is a fault of the endpoint's reply."""


class EndpointModel(ChatOpenAI):
    """LangChain's client, without its key in prints, and with replies that were cut off under a schema."""

    default_headers: Mapping[str, Any] | None = Field(default=None, exclude=True, repr=False)
    """They contain the key, so that they are neither printed nor serialized."""

    def _generate(self, *arguments: Any, **settings: Any) -> ChatResult:
        try:
            return super()._generate(*arguments, **settings)
        except openai.LengthFinishReasonError as error:
            # Under a schema the library refuses a reply that was cut off; it is billed, counted and readable in part.
            return self._create_chat_result(error.completion)
