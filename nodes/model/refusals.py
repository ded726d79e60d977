"""What an endpoint's refusal means: the prompt exceeds the context window, or the time to wait."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
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


MAX_WAIT_S = 1e9
"""Longer waits count as this one, which no budget allows."""
_MAX_VALUE_CHARS = 64
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?")
_DURATION_PART = re.compile(
    r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s?"
    r"(ms|s|m|h|d|milliseconds?|seconds?|secs?|minutes?|mins?|hours?|days?)(?![a-z])[\s,]{0,2}",
    re.IGNORECASE,
)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FIRST_EPOCH_S, _FIRST_EPOCH_MS = 1e9, 1e12
"""Numbers from these on are points in time, in seconds and in milliseconds, instead of durations."""
_RESET_NAME = re.compile(r"(.{0,40}rate-?limit.{0,40}-)reset((?:-.{0,40})?)", re.IGNORECASE)
"""Headers such as `x-ratelimit-reset-tokens` and `anthropic-ratelimit-tokens-reset`."""
_WAIT_IN_TEXT = re.compile(
    r"(?:\bretryDelay\W{1,6}|\bX-RateLimit-Reset\W{1,6}|\b(?:try again|retry|wait) (?:in|after|for) )"
    r"([0-9][0-9a-z., ]{0,50})",
    re.IGNORECASE,
)
"""A wait that a refusal names in its text, as endpoints without headers for it do."""


def read_wait(status: int, headers: Mapping[str, str], text: str = "") -> float | None:
    """Return the seconds that a refusal asks to wait, at most `MAX_WAIT_S`; None if it names no usable time.

    Args:
        headers: the answer's headers. A mapping that is not HTTPX's needs names in lower case.
        text: the answer's content, which is searched if no header names a time.
    """
    millis = _parse_number(headers.get("retry-after-ms"))
    wait = millis / 1000 if millis else _parse_value(headers.get("retry-after"), headers)
    # Successful answers, too, say when a limit is reset: only a 429 is about it.
    if (wait is None or wait <= 0) and status == 429:
        wait = _find_reset(headers)
    if wait is None or wait <= 0:
        wait = _find_in_text(text[:_MAX_SEARCHED_CHARS], headers)
    return min(wait, MAX_WAIT_S) if wait is not None and wait > 0 else None


def format_wait(seconds: float) -> str:
    """Return a time to wait as text, such as `0.5 s` or `3,600 s`."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.3g} s"


def _find_reset(headers: Mapping[str, str]) -> float | None:
    """Return the time until the most exhausted limit is reset; of several that are equally exhausted, the longest."""
    found = []
    for name in headers:
        match = _RESET_NAME.fullmatch(name.lower())
        wait = _parse_value(headers.get(name), headers) if match else None
        if match and wait is not None and wait > 0:
            found.append((_measure_rest(headers, match[1], match[2]), -wait))
    return -min(found)[1] if found else None


def _measure_rest(headers: Mapping[str, str], prefix: str, resource: str) -> float:
    """Return the share of a limit that is left; 0 if it is unknown."""
    limit = _parse_number(headers.get(f"{prefix}limit{resource}"))
    rest = _parse_number(headers.get(f"{prefix}remaining{resource}"))
    return min(rest / limit, 1.0) if rest and limit else float(bool(rest))


def _find_in_text(text: str, headers: Mapping[str, str]) -> float | None:
    """Return the first wait that a text names, such as `try again in 12.5s`."""
    match = _WAIT_IN_TEXT.search(text)
    if match is None:
        return None
    seconds = _parse_duration(match[1], is_prefix=True)
    number = re.match(r"[0-9]{1,20}(?:\.[0-9]{1,20})?", match[1])
    return seconds if seconds or not number else _parse_value(number[0], headers)


def _parse_value(text: str | None, headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a number, a duration such as `1m30.5s`, or a point in time."""
    text = (text or "").strip()
    if not text or len(text) > _MAX_VALUE_CHARS:
        return None
    if (number := _parse_number(text)) is not None:
        if number < _FIRST_EPOCH_S:
            return number
        return (number / 1000 if number >= _FIRST_EPOCH_MS else number) - _read_clock(headers)
    if (duration := _parse_duration(text)) is not None:
        return duration
    moment = _parse_time(text)
    return None if moment is None else moment - _read_clock(headers)


def _parse_number(text: str | None) -> float | None:
    text = (text or "")[: _MAX_VALUE_CHARS + 1].strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _parse_duration(text: str, *, is_prefix: bool = False) -> float | None:
    """Return the seconds of a duration; with `is_prefix`, other text may follow it."""
    seconds, place = 0.0, 0
    while place < len(text):
        part = _DURATION_PART.match(text, place)
        if part is None:
            return seconds if is_prefix and place else None
        unit = part[2].lower()
        seconds += float(part[1]) * _UNIT_SECONDS["ms" if unit.startswith(("ms", "mil")) else unit[0]]
        place = part.end()
    return seconds


def _parse_time(text: str) -> float | None:
    """Return an HTTP date, or one of ISO 8601, as seconds since the epoch."""
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def _read_clock(headers: Mapping[str, str]) -> float:
    """Return the present time of the endpoint, whose clock may differ from this host's."""
    date = (headers.get("date") or "")[:_MAX_VALUE_CHARS]
    moment = _parse_time(date) if date else None
    return time.time() if moment is None else moment
