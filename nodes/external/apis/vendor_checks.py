"""Checks of requests that pass on to a vendor: they may ask the model, and nothing else.

A vendor can also search the web, fetch addresses, run code, and read what its account has stored. To a sandbox without a
network, each of these would be one.
"""

from __future__ import annotations

import re
from typing import Any

from langgraph_takeover.nodes.external.apis.model_request import Api, ModelRequest, RequestError, list_objects

_CLIENT_TOOLS: dict[Api, re.Pattern[str]] = {
    "responses": re.compile(r"function|custom|local_shell"),
    "messages": re.compile(r"custom|(?:bash|text_editor|computer|memory)_\d{1,20}"),
    "chat": re.compile(r"function|custom"),
}
"""Types of tools that the agent itself carries out."""
_VENDOR_FIELDS: dict[Api, tuple[str, ...]] = {
    "responses": ("background", "conversation", "previous_response_id", "prompt"),
    "messages": ("container", "mcp_servers"),
    "chat": ("web_search_options",),
}
_NORMAL_TIERS = (None, "auto", "default", "standard_only")
_SMALL_MODEL = re.compile(r"claude-(?:[\d-]{1,10})?haiku[\w.-]{0,50}")
"""Claude Code uses the vendor's cheapest model for side tasks."""
_FORBIDDEN = 403


def check_vendor_request(request: ModelRequest, model: str | None) -> None:
    """Raise RequestError if a request needs more of the vendor than its model.

    Args:
        model: the model of the main conversation; None before its first request.
    """
    body = request.body
    if model is not None and request.model != model and not _SMALL_MODEL.fullmatch(request.model):
        raise RequestError("the request is for another model than the run's", _FORBIDDEN)
    for name in _VENDOR_FIELDS[request.api]:
        if body.get(name):
            raise RequestError(f"`{name}` is not available in the sandbox", _FORBIDDEN)
    if body.get("service_tier") not in _NORMAL_TIERS:
        raise RequestError("`service_tier` must be the default", _FORBIDDEN)
    _check_tools(request.api, body.get("tools"))
    if request.api == "responses" and isinstance(body.get("input"), list):
        for item in body["input"]:
            if item.get("type") == "item_reference":
                raise RequestError("references to stored items are not available in the sandbox", _FORBIDDEN)


def _check_tools(api: Api, tools: Any) -> None:
    for tool in list_objects(tools, "tools"):
        kind = str(tool.get("type", "custom"))
        if api == "responses" and kind == "namespace":
            _check_tools(api, tool.get("tools"))
        elif not _CLIENT_TOOLS[api].fullmatch(kind):
            raise RequestError(f"the vendor's tool {kind[:50]!r} is not available in the sandbox", _FORBIDDEN)


def check_inline(part: Any) -> None:
    """Raise RequestError if an image or a file is an address or a stored file, which the vendor would fetch."""
    if isinstance(part, list):
        for each in part:
            check_inline(each)
    if not isinstance(part, dict):
        return
    for name, value in part.items():
        is_address = isinstance(value, str) and name in ("url", "image_url", "file_url", "video_url")
        if (is_address and not value.startswith("data:")) or (name == "file_id" and value):
            raise RequestError("an image or file must be in the request itself", _FORBIDDEN)
        check_inline(value)
