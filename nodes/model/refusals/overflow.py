"""Whether an endpoint refused a request because its prompt exceeds the context window: by code, then by wording."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

OVERFLOW_CODES = {
    "context_length_exceeded": "OpenAI, Azure, DeepSeek, Groq",
    "context_too_large": "OpenAI Responses",
    "string_above_max_length": "OpenAI, for a single message",
    "exceed_context_size_error": "llama.cpp",
    "request_too_large": "Anthropic, for the bytes of a request",
    "model_context_window_exceeded": "Z.AI, Anthropic",
    "tokens_limit_reached": "GitHub Models",
    "ContextWindowExceededError": "LiteLLM",
}
"""Codes and types of errors, with the servers that send them."""
_TOO_LARGE_STATUS = 413
_UNRELATED_STATUSES = frozenset({401, 402, 403, 404, 408, 409, 429})
"""Statuses with a cause of their own, such as a limit of tokens per minute, whatever the text says."""
OUTPUT_LIMIT = r"max_(?:completion_|output_|new_)?tokens"
NEGATIVE_REPLY = r"must be at least ?1, got -[0-9]"


class Wording(NamedTuple):
    """Words of an error, as a pattern that ignores case, and the servers that send them."""

    pattern: str
    source: str


WORDINGS = (
    Wording(r"prompt (?:is )?too long", "Anthropic, Ollama"),
    Wording(rf"input length and \W?{OUTPUT_LIMIT}\W? exceed context limit", "Anthropic"),
    Wording(
        r"maximum context (?:length|window)", "OpenAI, vLLM, SGLang, Mistral, DeepSeek, OpenRouter, LiteLLM"
    ),
    Wording(
        r"exceed(?:s|ed)? (?:the |its |our |this )?(?:model(?:'?s)? |maximum |max |available |configured )*"
        r"context (?:window|length|size|limit)",
        "OpenAI, Anthropic, llama.cpp, llama-cpp-python, Ollama, Cloudflare",
    ),
    Wording(r"context[ _](?:window|length|size)s?[ _](?:is |was |has been )?exceed", "Ollama, MiniMax"),
    Wording(
        r"(?:longer|greater|larger) than the (?:model'?s |maximum )?context (?:window|length|size)",
        "Together, LM Studio",
    ),
    Wording(r"cannot truncate prompt with n_keep|when (?:the )?context (?:the )?overflows", "LM Studio"),
    Wording(r"longer than the maximum model length|too long to fit into the model", "vLLM"),
    Wording(r"prompt.{0,60}max_seq_len|max_seq_len.{0,60}prompt", "SiliconFlow, TabbyAPI, TensorRT-LLM"),
    Wording(r"prompt is too big compared to KV size", "llama.cpp before 2025"),
    Wording(r"number of input tokens.{0,20} cannot exceed", "watsonx"),
    Wording(r"exceed max message tokens", "Volcengine"),
    Wording(NEGATIVE_REPLY, "vLLM and NVIDIA NIM, for the space that the prompt leaves"),
    Wording(r"context length is only [0-9]", "vLLM"),
    Wording(r"configured context size is [0-9]", "Docker Model Runner"),
    Wording(r"\binput is too long(?! for (?:this|the) (?:field|parameter))", "Bedrock"),
    Wording(r"expected maxLength: [0-9]+, actual: [0-9]+", "Bedrock, in characters"),
    Wording(r"too many input tokens|maximum number of input tokens", "Bedrock, Cohere"),
    Wording(
        r"exceed(?:s|ed)? (?:the |model'?s )*max(?:imum)? (?:allowed )?(?:number of )?(?:input )?token",
        "Google, Bedrock",
    ),
    Wording(r"(?:input|prompt) tokens exceed", "Bedrock, Azure"),
    Wording(r"exceed(?:s|ed)? the model'?s max of [0-9]", "Cohere"),
    Wording(r"too many tokens: ", "Cohere; without a colon it is Bedrock's rate limit"),
    Wording(r"input token count .{0,80}but model only supports", "Vertex AI"),
    Wording(r"maximum prompt length is [0-9]", "xAI"),
    Wording(rf"\binputs\W{{1,3}}(?:must have less than|tokens.{{1,9}}{OUTPUT_LIMIT})", "TGI"),
    Wording(
        r"(?:input|prompt) length.{0,40} exceeds? (?:the |its )?(?:max|context|model)",
        "NVIDIA NIM, TensorRT-LLM, SambaNova, Ollama",
    ),
    Wording(r"request content length exceeded [0-9]", "Azure"),
    Wording(r"current length is [0-9]+ while limit is", "Cerebras"),
    Wording(r"reduce the length of (?:the|your) (?:messages|prompt|input)", "Groq, OpenAI"),
    Wording(r"prompt token count of [0-9]+ exceeds", "GitHub Copilot"),
    Wording(r"exceeded model token limit", "Moonshot"),
    Wording(r"tokens in request more than max tokens allowed|prompt exceeds max length|prompt 超长", "Z.AI"),
    Wording(r"range of input length should be", "DashScope"),
)
"""Texts of refusals, where the server sends no code of its own. The fixed part of each is short and specific."""
_OVERFLOW = re.compile(
    "|".join(each.pattern for each in (*(Wording(rf"\b{code}\b", "") for code in OVERFLOW_CODES), *WORDINGS)),
    re.IGNORECASE,
)
_COUNTS = re.compile(
    r"(?:(?<![0-9,])([0-9][0-9,]{2,11}) tokens?|(?<!_)\btokens? \(?([0-9][0-9,]{2,11}))\b"
    r".{0,60}?(?:exceed|limit|too long|(?:longer|larger|greater|more) than).{0,60}?\b([0-9][0-9,]{2,11})\b",
    re.IGNORECASE,
)
"""A count of tokens, and a limit, in the words of any other server."""
_RATE_LIMIT = re.compile(
    r"tokens per (?:min|hour|day)|\bTP[MD]\b|\brate_limit_exceeded\b|\bquota\b|\b(?:this|per|each) (?:month|week)\b",
    re.IGNORECASE,
)
"""A limit of the account, which some servers report as a request that is too large."""
_SHORT_FIELD = re.compile(
    r"string too long\. Expected a string with maximum length [0-9]{1,5}\b", re.IGNORECASE
)
"""OpenAI's refusal of an id, a name or a description, which LiteLLM passes on as an overflow."""
_OUTPUT_REFUSED = re.compile(
    rf"{OUTPUT_LIMIT}\W{{0,9}}(?:is |are )?too large|{OUTPUT_LIMIT}\W{{1,3}}must be |{OUTPUT_LIMIT}: [0-9]+ > "
    rf"|{OUTPUT_LIMIT}\W{{1,3}}(?:[0-9]{{1,9}}\W{{1,3}})?exceeds "
    rf"|{OUTPUT_LIMIT}\W?[0-9]* cannot be greater|(?:invalid|range of|parameter) \W?{OUTPUT_LIMIT}"
    r"|\bmaxOutputTokens value|maximum tokens you requested exceed|maximum allowed number of output tokens"
    r"|supports at most [0-9,]+ (?:completion|output) tokens",
    re.IGNORECASE,
)
"""The maximum reply that the request asks for is refused, whatever the size of its prompt."""
_NAMES_PROMPT = re.compile(
    r"(?:prompt|input) (?:tokens|length)|in the messages|prompt contains|inputs\W{1,3}tokens"
    rf"|{NEGATIVE_REPLY}",
    re.IGNORECASE,
)
"""The prompt and the reply together are too large, so that a shorter prompt is accepted."""
_REQUESTED_REPLY = re.compile(
    r"\b([0-9]{1,12}) (?:tokens )?(?:in|for) the (?:output|completion)|\brequested ([0-9]{1,12}) output tokens",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:context (?:window|length|size)|maximum prompt length|model length|n_ctx|configured limit|while limit)"
    r"(?: is| of| only|[ (:=]){1,4}([0-9][0-9,]{2,11})"
    r"|with ([0-9]{3,12}) maximum context length|(?:tokens|\+ [0-9]{1,12}) > ([0-9]{3,12})",
    re.IGNORECASE,
)
_ECHOED = frozenset({"input", "inputs", "messages", "prompt", "request", "tools"})
"""Fields in which a server returns the request, whose text may itself mention context windows."""
_MAX_TEXTS = 200
_MAX_SEARCHED_CHARS = 10_000


def list_texts(body: Any) -> str:
    """Return the values of an error's body with their names, one a line, without what it repeats from the request."""
    found: list[str] = []
    waiting = [("", body)]
    while waiting and len(found) < _MAX_TEXTS:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [item for item in reversed([*value.items()]) if item[0] not in _ECHOED]
        elif isinstance(value, list | tuple):
            waiting += [(name, each) for each in value[_MAX_TEXTS::-1]]
        elif value is not None:
            found.append(f"{name}: {str(value)[:_MAX_SEARCHED_CHARS]}")
    return "\n".join(found)


def is_overflow(status: int, code: object, text: str) -> bool:
    """Whether a refusal means that the prompt exceeds the window: by its code, its status or its wording."""
    text = text[:_MAX_SEARCHED_CHARS]
    if status in _UNRELATED_STATUSES or _SHORT_FIELD.search(text):
        return False
    if isinstance(code, str) and code in OVERFLOW_CODES:
        return True
    if _RATE_LIMIT.search(f"{code} {text}"):
        return False
    if status == _TOO_LARGE_STATUS:
        return True
    if is_output_refused(text):
        return False
    return _OVERFLOW.search(text) is not None or _states_excess(text)


def _states_excess(text: str) -> bool:
    found = _COUNTS.search(text)
    count, limit = (int(each.replace(",", "")) for each in found.groups() if each) if found else (0, 0)
    return count > limit


def is_output_refused(text: str) -> bool:
    """Whether a refusal means the maximum reply alone, which no shorter prompt changes."""
    text = text[:_MAX_SEARCHED_CHARS]
    window, reply = find_window(text), _find_number(_REQUESTED_REPLY, text)
    if window is not None and reply is not None and reply >= window:
        return True
    return _OUTPUT_REFUSED.search(text) is not None and _NAMES_PROMPT.search(text) is None


def find_window(text: str) -> int | None:
    """Return the size of the context window that a refusal states, in tokens."""
    return _find_number(_WINDOW, text)


def _find_number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text[:_MAX_SEARCHED_CHARS])
    number = next((each for each in found.groups() if each), "") if found else ""
    return int(number.replace(",", "")) if number else None
