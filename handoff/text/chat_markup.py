"""The tokens of chat templates for turns, roles and tool calls, as one pattern over a text's skeleton."""

from __future__ import annotations

import re

_THOUGHT = re.compile(r"(?<![`\"'])<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)
_END = re.compile(r"^.*(?<![`\"'])</think(?:ing)?>(?![`\"'])", re.DOTALL)
"""A server may send the end of a thought whose beginning is in the prompt. In quotes it is text about tags."""
_END_AFTER_OBJECT = re.compile(r"\}(?:\s*```)?\s*</think(?:ing)?>")
_OBJECT_START = re.compile(r"\s*(?:```\w*\s*)?\{")


def remove_thoughts(text: str) -> str:
    """Remove thoughts between tags, thoughts that were cut off, and text before the end of a thought.

    In a reply that starts with a JSON object, tags are text, unless they follow the object.
    """
    if _OBJECT_START.match(text) and not _END_AFTER_OBJECT.search(text):
        return text
    return _END.sub("", _THOUGHT.sub("", text))


_LOOKALIKES = {"l": "[li1|!]", "i": "[li1|!]", "o": "[o0]", "w": "(?:w|vv)", "m": "(?:m|rn)", "d": "(?:d|cl)"}
_GAP = r"\s{0,9}"


def lookalike_pattern(words: str, gap: str) -> str:
    """Build a pattern, over a lower-case skeleton, of words in all spellings that look the same; `gap` is each space."""
    return "".join(gap if char == " " else _LOOKALIKES.get(char, re.escape(char)) for char in words.lower())


def _any_pattern(names: str) -> str:
    return "|".join(lookalike_pattern(name.replace("_", " "), r"[\s_-]?") for name in names.split())


# Between bars: ChatML, Llama 3, Qwen, Phi, GLM, Granite, Kimi, DeepSeek, Command R and harmony.
_BAR_TOKENS = _any_pattern(
    "im_start im_end im_sep im_user im_assistant im_system im_middle endoftext endofprompt endofturn "
    "begin_of_text end_of_text begin_of_sentence end_of_sentence begin_of_box end_of_box start_header_id "
    "end_header_id start_of_role end_of_role eot_id eom_id python_tag system user assistant tool observation "
    "end start channel message call return constrain developer think start_of_turn_token end_of_turn_token "
    "system_token user_token chatbot_token start_thinking end_thinking start_action end_action start_response "
    "end_response start_text end_text tool_call tool_calls_begin tool_calls_end tool_call_begin tool_call_end "
    "tool_call_argument_begin tool_calls_section_begin tool_calls_section_end tool_outputs_begin "
    "tool_outputs_end tool_output_begin tool_output_end tool_sep tool_response fim_prefix fim_middle fim_suffix"
)
# In square brackets: Llama 2, Mistral; GLM; EXAONE.
_SQUARE_TOKENS = _any_pattern("inst system_prompt available_tools tool_calls tool_results tool_content")
# In angle brackets: Llama 2, Gemma, InternLM, GLM; Qwen, Hermes and others for thoughts and tools.
_ANGLE_TOKENS = _any_pattern(
    "bos eos sop eop eoh eoa start_of_turn end_of_turn think thinking tool_call tool_calls tool_response "
    "tool_responses tool_result function_call function_calls function_response function_results "
    "start_function_call end_function_call start_function_response end_function_response "
    "start_function_declaration end_function_declaration end_of_utterance"
)
_BAR = "[|li1!]"
CHAT_MARKUP = (
    r"<(?:/?\|[^\s|<>]{1,60}\|>|/?\|\w{1,40}\|(?=[\w/])|\|\w{1,40}>|\w{1,40}\|>"
    rf"|{_GAP}/?{_GAP}(?:{_BAR}{_GAP}(?:{_BAR_TOKENS}){_GAP}{_BAR}|(?:{_ANGLE_TOKENS})){_GAP}>"
    rf"|{_GAP}<{_GAP}/?{_GAP}{lookalike_pattern('sys', '')}{_GAP}>"
    r"|/?(?:special|extra_id)_\d+>|/?(?:seed|minimax|antml):\w|function=\w)",
    rf"\[(?:{_GAP}/?{_GAP}(?:{_SQUARE_TOKENS}){_GAP}\]|\|(?:{_any_pattern('system user assistant tool endofturn')})\|\]|e~\[)",
    r"\]~(?:!?b\[|b\])",
)
"""Over a skeleton in lower case; a search for a pattern that begins with a literal is fast."""
CASED_CHAT_MARKUP = (
    r"<(?:/?s>)",
    r"\[(?:/?THINK\]|/?MODEL_SETTINGS\]|CALL_ID\]|[gs]MASK\]|ARGS\](?=\s{0,9}[{\[]))",
)
"""Other text in lower case, over an unchanged skeleton."""
