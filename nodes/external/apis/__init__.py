"""Translation between the wire APIs of external agents and LangChain messages."""

from langgraph_takeover.nodes.external.apis.model_request import (
    MODEL_PATHS,
    Api,
    HttpReply,
    ModelRequest,
    RequestError,
    WireRequest,
)
from langgraph_takeover.nodes.external.apis.translation import (
    estimate_request_tokens,
    parse_reply,
    parse_request,
    write_error,
    write_reply,
)
from langgraph_takeover.nodes.external.apis.wire_turns import check_vendor_request, select_vendor_fields
from langgraph_takeover.nodes.model.message_content import WIRE_REPLY

__all__ = [
    "MODEL_PATHS",
    "WIRE_REPLY",
    "Api",
    "HttpReply",
    "ModelRequest",
    "RequestError",
    "WireRequest",
    "check_vendor_request",
    "estimate_request_tokens",
    "parse_reply",
    "parse_request",
    "select_vendor_fields",
    "write_error",
    "write_reply",
]
