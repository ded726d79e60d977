"""A vendor's own model behind an external agent: requests and replies pass unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import httpx2
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field, SecretStr

from langgraph_takeover.base.secret_names import MIN_SECRET_LENGTH
from langgraph_takeover.base.untrusted_input import parse_document
from langgraph_takeover.nodes.external.apis import MODEL_PATHS, WIRE_REPLY, Api, WireRequest, parse_reply
from langgraph_takeover.nodes.external.apis.model_request import build_text_request
from langgraph_takeover.nodes.external.apis.wire_turns import pack_wire_reply
from langgraph_takeover.nodes.model.exchange import EndpointClient
from langgraph_takeover.nodes.model.model_errors import (
    ModelError,
    PermanentModelError,
    ReplyTooLargeError,
    classify_status,
    format_error_line,
)
from langgraph_takeover.nodes.model.refusals import list_texts

_PASSED_HEADERS = frozenset(
    {"accept", "content-type", "user-agent", "originator", "session_id", "session-id", "conversation_id"}
)
_PASSED_PREFIXES = (
    "anthropic-",
    "openai-",
    "x-stainless-",
    "x-codex-",
    "x-openai-internal-codex-",
    "x-claude-",
    "x-app",
)
_ACCOUNT_HEADERS = frozenset({"openai-organization", "openai-project"})
"""They choose who pays, which is the runtime's decision."""
_QUERY = re.compile(r"(?:\?[\w=&.-]{1,200})?")
_MAX_HEADER_CHARS = 8_000
_DEFAULT_TIMEOUT_S = 600.0


class VendorModel(BaseChatModel):
    """The endpoint of an agent's own vendor. Each call needs the agent's request: `model.bind(wire=request.wire)`.

    The request's bytes are passed on unchanged, with the runtime's key. The reply carries the vendor's bytes in
    `additional_kwargs["wire_reply"]`, which `write_reply` delivers unchanged.

    Example:
        >>> from pydantic import SecretStr
        >>> model = VendorModel(api="messages", base_url="http://127.0.0.1:8091", api_key=SecretStr("key-of-the-runtime"))
        >>> model.url
        'http://127.0.0.1:8091/v1/messages'
    """

    passes_requests_on: ClassVar[bool] = True
    """It needs an external agent's request, and no tools."""
    api: Api
    base_url: str
    """With or without `/v1` at its end."""
    api_key: SecretStr = Field(repr=False)
    model_name: str = ""
    """Name to show; the request itself names the model."""
    max_output_tokens: int | None = None
    """Set: also answer messages of text, without an agent's request, with at most that many tokens."""
    client: Any = Field(default=None, exclude=True, repr=False)
    """The HTTP client of the call; by default one of its own."""

    @property
    def url(self) -> str:
        """The address of the requests."""
        return self.base_url.rstrip("/").removesuffix("/v1") + MODEL_PATHS[self.api]

    @property
    def _llm_type(self) -> str:
        return "vendor-endpoint"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"api": self.api, "base_url": self.base_url, "model_name": self.model_name}

    def use_client(self, client: EndpointClient) -> Self:
        """Return the model with an HTTP client that bounds replies and counts requests."""
        return self.model_copy(update={"client": client})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        *,
        wire: WireRequest | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if wire is None and self.max_output_tokens is not None:
            wire = build_text_request(self.api, self.model_name, messages, self.max_output_tokens)
        if wire is None:
            raise PermanentModelError(
                "this model needs the request of an external agent (pass it with .bind(wire=…))"
            )
        content_type, body = self._send(wire)
        reply = parse_reply(self.api, content_type, body)
        reply.additional_kwargs[WIRE_REPLY] = pack_wire_reply(content_type, body)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def _send(self, wire: WireRequest) -> tuple[str, bytes]:
        """Return type and content of the vendor's reply, without the key. Raises ModelError or ContextWindowError."""
        client = self.client or EndpointClient()
        key = self.api_key.get_secret_value()
        try:
            request = client.build_request(
                "POST",
                self._build_url(wire.target),
                headers=self._build_headers(wire.headers),
                content=wire.body,
                timeout=_DEFAULT_TIMEOUT_S,
            )
            response = client.send(request, stream=True)
            try:
                body = response.read()
            finally:
                response.close()
        except httpx2.DecodingError as error:
            raise ReplyTooLargeError(f"the endpoint's reply was refused: {error}") from None
        except httpx2.TimeoutException:
            raise ModelError("the endpoint did not answer in time") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            details = format_error_line(str(error), [key])
            raise ModelError(
                f"the endpoint could not be reached or broke the connection: {details}"
            ) from None
        finally:
            if self.client is None:
                client.close()
        if len(key) >= MIN_SECRET_LENGTH:  # a placeholder such as "x" is also part of other words
            body = body.replace(key.encode(), b"[key]")
        if not response.is_success:
            raise _classify_answer(response, body, key)
        return response.headers.get("content-type", ""), body

    def _build_url(self, path: str) -> str:
        """Return the address with the request's query: the path itself is the API's, whatever the agent asked for."""
        expected = MODEL_PATHS[self.api]
        query = path.removeprefix(expected)
        if not path.startswith(expected) or not _QUERY.fullmatch(query):
            raise PermanentModelError(f"unknown path of a request (the API's path is {expected})")
        return self.url + query

    def _build_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that a vendor needs, with the runtime's key; all others may be of another process."""
        passed = {
            name: value
            for name, value in headers.items()
            if (name in _PASSED_HEADERS or name.startswith(_PASSED_PREFIXES))
            and name not in _ACCOUNT_HEADERS
            and len(value) <= _MAX_HEADER_CHARS
        }
        key = self.api_key.get_secret_value()
        own = {"x-api-key": key} if self.api == "messages" else {"authorization": f"Bearer {key}"}
        return {"content-type": "application/json", **passed, **own}


def _classify_answer(response: httpx2.Response, body: bytes, key: str) -> Exception:
    """Return the error behind a refusal of the vendor."""
    text = body[:100_000].decode(errors="replace")
    try:
        document = parse_document(body)
        text = list_texts(document)
        error = document["error"]
        code = str(error.get("code") or error.get("type") or "")
        message = str(error["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        code, message = "", text
    line = format_error_line(message, [key])
    return classify_status(response.status_code, code, text, line, response.headers)
