"""Refusals for the size of a prompt, in the words of many servers, and those that only look like them."""

from __future__ import annotations

import pytest

from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    ModelError,
    PermanentModelError,
    classify_status,
)
from langgraph_takeover.nodes.model.refusals import (
    OVERFLOW_CODES,
    find_window,
    is_output_refused,
    is_overflow,
    list_texts,
)
from langgraph_takeover.nodes.model.window import Request, judge_refusal

OVERFLOWS = """\
Input is too long for requested model.
This model's maximum prompt length is 131072 but the request contains 537812 tokens.
`inputs` must have less than 1024 tokens. Given: 1500
Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`
The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).
input token count is 40000 but model only supports up to 32768.
ValidationException: Input exceeds the max input token limit
ollama: context length exceeded for llama3
total tokens exceeds the model's max of 4096
input is too long for model gpt-5.4
exceeds maximum number of input tokens
Please reduce the length of the messages or completion.
the request exceeds the available context size (4096 tokens), try increasing it
tokens to keep from the initial prompt is greater than the context length
prompt token count of 9000 exceeds the limit of 8000
invalid params, context window exceeds limit (2013)
Your request exceeded model token limit: 8192 (requested: 9000)
Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length
prompt too long; exceeded max context length by 12 tokens
This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 tokens
Input length 9000 exceeds the maximum allowed input length of 8192 tokens.
The input (5000 tokens) is longer than the model's context length (4096 tokens).
You passed 5000 input tokens. However, the model's context length is only 4096 tokens, resulting in
tokens in request more than max tokens allowed
Range of input length should be [1, 30720]
too many tokens: total number of tokens in the prompt cannot exceed 4081
input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000, decrease input length or `max_tokens` and try again
prompt is too long: 210000 tokens > 200000 maximum
Requested tokens (5000) exceed context window of 4096
Malformed input request: expected maxLength: 240000, actual: 300000, please reformat your input and try again.
'max_completion_tokens' is too large: 5000. This maximum context length is 4096 tokens and your request has 100 input tokens
maximum context length is 262144 tokens. However, your prompt contains at least 262145 input tokens
the request exceeds the available context size. try increasing the context size or enable context shift
The decoder prompt (length 5000) is longer than the maximum model length of 4096.
Your input exceeds the context window of this model.
Requested token count exceeds the model's maximum context length of 131072 tokens
Input length (265330) exceeds model's maximum context length (262144).
the prompt has 9,000 tokens, but the configured context size is 4,096 tokens
Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)
Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096
max_tokens must be at least 1, got -7584. (parameter=max_tokens, value=-7584)
max_tokens must be at least1, got -736.
The input exceeds this model's context window
Input tokens exceed the configured limit of 272000 tokens.
Request content length exceeded 32 MB limit.
Current length is 20166 while limit is 8192
litellm.ContextWindowExceededError: no more words
The maximum context length is 131072 tokens. However, you requested 143000 tokens (135000 in the messages, 8000 in the completion)
5021: The estimated number of input and maximum output tokens (155740) exceeded this model context window limit (128000).
Request size exceeds model context window
prompt tokens (9000) exceeds model context window (8192)
This model's maximum context window is 8192 tokens
The prompt (total length 6287) is too long to fit into the model (context length 4096).
length of prompt_tokens (32780) must be less than max_seq_len (32768).
Prompt length 9000 is greater than max_seq_len 8192
default_max_tokens (-5) must be greater than 0, `default_max_tokens (-5) = max_seq_len (8192) - splited_prompt_len (8197)`
Input prompt is too big compared to KV size. Please try increasing KV size.
the number of input tokens 4098 cannot exceed the total tokens limit 4096 for this model
Total tokens of image and text exceed max message tokens
The model returned the following errors: Input Tokens Exceeded
Prompt 超长
Messages have 150,000 tokens, which exceeds the max limit of 131,072 tokens.
Request prompt has 9000 tokens in total, larger than the model input length limit 8192.
Input prompt (9000 tokens) is too long and exceeds limit of 8192
invalid request: total tokens 9000 exceed model limit 8192
Invalid 'input': string too long. Expected a string with maximum length 10485760, but got 12000000: context_length_exceeded
""".splitlines()
OUTPUT_LIMITS = """\
max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.
max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude
`max_tokens` must be less than or equal to `8192`, which is less than the `context_window` for this model
Invalid max_tokens value, the valid range of max_tokens is [1, 8192]
The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower than 4096
The parameter `max_tokens` specified in the request are not valid: expected a value <= 32768, but got 65536
Unable to submit request because it has a maxOutputTokens value of 65536 but the supported range is from 1 (inclusive) to 8193
max_tokens=5000 cannot be greater than max_model_len=4096. Please request fewer output tokens.
maximum context length is 4096 tokens. However, you requested 80052 tokens (52 in the messages, 80000 in the completion)
maximum context length is 8192 tokens. However, you requested about 8963 tokens (771 of text input, 8192 in the output)
max_output_tokens must be at least 16, got 1
max_tokens (16384) exceeds model's maximum context length (8192)
max_completion_tokens exceeds context window
maximum context length of 8192 tokens. You requested 500 tokens from the input messages and 8500 tokens for the completion.
""".splitlines()
OTHERS = """\
model requires more system memory (5 GiB) than is available; try a smaller context size
Too many tokens, please wait before trying again.
Tool argument validation failed: input length exceeds 1000 characters
input is too long for this field
Rate limit exceeded: too many tokens per minute
Too many tokens per day, please wait before trying again.
Tokens per minute limit exceeded - too many tokens processed
This request would exceed your limit of 20,000 input tokens per minute. Please reduce the length of the prompt.
This request exceeds the maximum context length budget of 30000 tokens per minute
unknown parameter: context_window
'num_ctx' context size must be positive
tool call id exceeds the maximum length of 40
Input 'name' exceeds maximum length of 64 characters
You have exceeded the maximum token quota
Your organization has exceeded the maximum number of tokens this month
litellm.ContextWindowExceededError: Invalid 'tool_calls[0].id': string too long. Expected a string with maximum length 40, but
the limit of 500 tokens exceeds the minimum of 1024
""".splitlines()


@pytest.mark.parametrize("text", OVERFLOWS)
def test_wordings_of_an_overflow(text: str) -> None:
    assert isinstance(classify_status(400, None, text, text), ContextWindowError)
    assert not is_overflow(429, None, text), "a limit of tokens per minute"


@pytest.mark.parametrize("text", OUTPUT_LIMITS)
def test_a_refused_maximum_reply_is_no_overflow(text: str) -> None:
    error = classify_status(400, None, text, text)
    assert isinstance(error, PermanentModelError)
    assert "max_output_tokens" in str(error)


@pytest.mark.parametrize("text", OTHERS)
def test_other_refusals(text: str) -> None:
    assert not is_overflow(400, None, text)
    assert not is_overflow(500, None, text)
    assert not is_output_refused(text)


@pytest.mark.parametrize("code", OVERFLOW_CODES)
def test_codes_come_before_words(code: str) -> None:
    assert is_overflow(400, code, "no words that anybody knows")
    assert is_overflow(400, "400", list_texts({"error": {"message": "no", "type": code}}))


def test_a_long_id_is_no_overflow_whatever_its_code() -> None:
    text = "Invalid 'tools[3].function.description': string too long. Expected a string with maximum length 1024, but"
    assert not is_overflow(400, "string_above_max_length", text)


def test_a_request_that_is_too_large_is_an_overflow() -> None:
    assert is_overflow(413, None, "<html>Request Entity Too Large</html>")


TOO_LARGE_FOR_A_MINUTE = (
    "Request too large for model `llama` in organization `x` service tier `on_demand` on tokens per minute (TPM): "
    "Limit 12000, Requested 14137, please reduce your message size and try again."
)


@pytest.mark.parametrize("status", [413, 429])
def test_a_request_above_the_limit_of_a_minute_is_no_overflow_and_not_waited_for(status: int) -> None:
    error = classify_status(status, "rate_limit_exceeded", TOO_LARGE_FOR_A_MINUTE, TOO_LARGE_FOR_A_MINUTE)
    assert isinstance(error, PermanentModelError)
    reached = TOO_LARGE_FOR_A_MINUTE.replace("Request too large", "Rate limit reached")
    waits = classify_status(429, "rate_limit_exceeded", reached, reached)
    assert isinstance(waits, ModelError)
    assert waits.is_transient


def test_what_the_server_repeats_from_the_request_is_not_read() -> None:
    said = "the maximum context length is 4096"
    refusal = {"loc": ["body", "model"], "msg": "Field required", "input": {"messages": [said]}}
    assert not is_overflow(422, None, list_texts({"detail": [refusal]}))
    assert is_overflow(422, None, list_texts({"detail": [{**refusal, "msg": said}]}))
    nested = {"error": {"message": "Provider returned error", "metadata": {"raw": said}}}
    assert is_overflow(400, "400", list_texts(nested))


def test_deep_and_long_bodies_end() -> None:
    deep: object = "maximum context length"
    for _ in range(100_000):
        deep = [deep]
    assert list_texts(deep)
    assert len(list_texts(["x"] * 100_000)) < 2_000


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("This model's maximum context length is 8192 tokens.", 8192),
        ("the request exceeds the available context size (4096 tokens)", 4096),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000),
        ("input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000", 200_000),
        ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 32_768),
        ("n_ctx: 4096", 4096),
        ("Input tokens exceed the configured limit of 272000 tokens.", 272_000),
        ("The sum of prompt length (9000.0) should not exceed max_num_tokens (8192)", None),
        ("invalid params, context window exceeds limit (2013)", None),
    ],
)
def test_the_window_that_a_refusal_states(text: str, window: int | None) -> None:
    assert find_window(text) == window


def make_overflow(window: int | None) -> ContextWindowError:
    error = ContextWindowError("too long")
    error.window_tokens = window
    return error


def refuse(status: int) -> PermanentModelError:
    error = PermanentModelError("no")
    error.status = status
    return error


@pytest.mark.parametrize(
    ("error", "tokens", "window", "is_first", "kind"),
    [
        (make_overflow(8192), 1000, None, True, PermanentModelError),
        (make_overflow(8192), 1000, None, False, ContextWindowError),
        (make_overflow(8192), 6000, None, True, ContextWindowError),
        (make_overflow(None), 1000, None, True, PermanentModelError),
        (make_overflow(8192), 6000, 131_072, True, PermanentModelError),
        (refuse(400), 9000, 10_000, False, ContextWindowError),
        (refuse(400), 9000, 10_000, True, PermanentModelError),
        (refuse(400), 5000, 10_000, False, PermanentModelError),
        (refuse(400), 9000, None, False, PermanentModelError),
        (refuse(401), 9000, 10_000, False, PermanentModelError),
    ],
)
def test_the_size_decides_where_words_do_not(
    error: ContextWindowError | PermanentModelError,
    tokens: int,
    window: int | None,
    is_first: bool,
    kind: type[Exception],
) -> None:
    request = Request([], 0, False, 4 * tokens)
    assert isinstance(judge_refusal(error, request, window, is_first=is_first), kind)
