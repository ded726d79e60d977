"""Text as a reader sees it, reduced to ASCII for matching; chat templates in it; visible forms."""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from itertools import chain

import regex

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


_IGNORABLE = r"\p{Default_Ignorable_Code_Point}"
_OTHER_SCRIPTS = (
    r"\p{Latin}\p{Greek}\p{Cyrillic}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Common}\p{Inherited}"
)
_JOINING = rf"[[\p{{L}}\p{{M}}]--[{_OTHER_SCRIPTS}]--{_IGNORABLE}]"
"""A letter of a script whose letters join, or that uses no spaces, such as Arabic, Devanagari or Khmer."""
_UNSPACED = rf"[{_JOINING}\p{{Han}}\p{{Hiragana}}\p{{Katakana}}]"
_EMOJI = r"(?:\p{Extended_Pictographic}|\p{Emoji_Modifier}|(?<=\p{Extended_Pictographic})\ufe0f)"
_ALONE_BEFORE, _ALONE_AFTER = rf"(?<!{_IGNORABLE})", rf"(?!{_IGNORABLE})"
_FLAGS = "|".join(
    "".join(chr(0xE0000 + ord(letter)) for letter in flag) for flag in ("gbeng", "gbsct", "gbwls")
)
_REQUIRED = regex.compile(
    "|".join(
        (
            rf"{_ALONE_BEFORE}(?:(?<={_JOINING}\p{{Mn}}{{0,3}})[\u200c\u200d]|[\u200c\u200d](?={_JOINING})){_ALONE_AFTER}",
            rf"{_ALONE_BEFORE}(?:(?<={_UNSPACED})\u200b|\u200b(?={_UNSPACED})){_ALONE_AFTER}",
            # One or two in no word: Trac marks links so, and SWE-bench's issues stay verbatim.
            rf"(?<![\p{{L}}\p{{N}}]){_ALONE_BEFORE}\u200b{{1,2}}{_ALONE_AFTER}",
            rf"(?<={_EMOJI})\u200d(?=\p{{Extended_Pictographic}})",
            r"(?<=[[\p{Emoji}\p{So}\p{Sm}]--[0-9#*]])[\ufe0e\ufe0f]|(?<=[0-9#*])\ufe0f(?=\u20e3)",
            r"(?<=[\p{Han}\p{Sm}\p{Myanmar}\p{Phags_Pa}])[\ufe00-\ufe02]",
            # Those of which the registry of ideographic variants makes use.
            r"(?<=\p{Unified_Ideograph})[\U000e0100-\U000e011f]",
            r"(?<=[[\p{Mongolian}\p{Phags_Pa}]&&\p{L}])[\u180b-\u180d\u180f]|(?<=[\p{Mongolian}&&\p{L}])\u180e(?=\p{Mongolian})",
            r"(?<=\p{Duployan})[\U0001bca0-\U0001bca3]",
            rf"(?<=[\p{{M}}--{_IGNORABLE}])\u034f(?=[[\p{{M}}\p{{Hebrew}}]--{_IGNORABLE}])|(?<=\p{{L}})\u00ad(?=\p{{L}})",
            r"\u115f(?=[\u1160-\u11a7])|(?<=[\u1100-\u115f\ua960-\ua97c])\u1160",
            rf"(?<=\U0001f3f4)(?:{_FLAGS})\U000e007f",
        )
    ),
    regex.VERSION1,
)
_MAX_REQUIRED_RUN = 7
"""Of the ends of a flag."""
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), 127])
_PLANES = (range(0x80, 0x20000), range(0xE0000, 0xF0000))
"""The blocks in which Unicode has ignorable code points."""


def escape_invisible(text: str) -> str:
    """Escape these characters in a text; a line may still end as in DOS."""
    if text.isascii() and len(text.replace("\r\n", "\n").translate(_CONTROLS)) == len(text) - text.count(
        "\r\n"
    ):
        return text
    return _compile_invisible_pattern().sub(_escape_run, text)


def _escape_run(found: re.Match[str]) -> str:
    """Escape characters in a row, of which scripts and emoji need a few at most."""
    text, position, end = found.string, *found.span()
    if end - position > _MAX_REQUIRED_RUN:
        return "".join(map(escape_char, found[0]))
    parts = []
    while position < end:
        needed = _REQUIRED.match(text, position)
        parts.append(needed[0] if needed else escape_char(text[position]))
        position = needed.end() if needed else position + 1
    return "".join(parts)


@cache
def _compile_invisible_pattern() -> re.Pattern[str]:
    """Runs of these characters, as the standard library's pattern: it searches several times as fast."""
    chars = "".join(map(chr, chain(*_PLANES)))
    runs = [found[0] for found in regex.finditer(rf"{_IGNORABLE}+", chars)]
    ignorable = "".join(f"{run[0]}-{run[-1]}" for run in runs)
    return re.compile(
        rf"(?:[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufff9-\ufffb{ignorable}]|\r(?!\n))+"
    )


def escape_char(char: str) -> str:
    """Return the escape of a character, such as `\\x3c` or `\\u202e`."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_INVISIBLE = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Mn}\p{Me}\p{Cf}\p{Cc}\p{Cs}]")
_UNFOLDED_RANGES = (
    *((0x2018, 0x201F), (0x2026, 0x2026), (0x3001, 0x3002), (0x3041, 0x3096), (0x3400, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xFF0C, 0xFF0C), (0xFF1B, 0xFF1B)),
)
"""Hiragana, ideographs, Hangul syllables, and marks that no markup is made of; what looks like ASCII among the letters
is folded nevertheless."""
_LINE_ENDS = "\x0b\x0c\x85\u2028\u2029"
# Marks that the table of confusables leaves apart, but that a reader takes for each other.
_EXTRA_CONFUSABLES = {
    char: plain
    for plain, chars in {
        "⟨": "⟪〈《«❬❰⧼≺⋖⦑⦉⫷⩹ᑅ𖼰",
        "<<": "≪⋘⪡",
        ">>": "≫⋙",
        "[": "【〔❲⟦⁅",
        "]": "】〕❳⟧⁆",
        "|": "│┃║¦❘❙❚⏐",
        "·": "・･᛫⸱𐄁•‧∙⋅ꞏᐧ●▪◦",
        "#": "♯⌗⋕⧣",
        "*": "✱✲✳✻❋∗⁕",
        "_": "▁‗⎯",
        "-": "─━┄┅┈┉╌╍",
        "=": "═≡",
        "a": "Ⲁⲁ",
        "e": "Ⲉⲉεϵє",
        "i": "Ꮖꮖ",
        "k": "ĸ",
        "o": "Ꮎꮎ",
        "w": "ш",
    }.items()
    for char in chars
}
_LATIN_NAME = re.compile(
    r"(?:(?:NEGATIVE |CROSSED NEGATIVE )?(?:CIRCLED|SQUARED) )?(?:REGIONAL INDICATOR SYMBOL|"
    r"(?:MODIFIER LETTER )?LATIN(?: LETTER)? (?:SMALL|CAPITAL))(?: CAPITAL)?(?: LETTER)?(?: [A-Z]+)?? "
    r"([A-Z])(?: WITH .*)?"
)


_CONTROL_CHARACTERS = dict.fromkeys([*range(9), *range(14, 32), 127]) | {11: "\n", 12: "\n"}


class Skeleton:
    """A text's skeleton, equal for texts that look alike.

    Unseen code points and accents are left out, spaces become U+00A0, letters and marks the ASCII that they look like.
    Tabs, line ends and printable ASCII stay. In lower case it is as long.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._positions: list[int] | None = None
        if source.isascii():
            self.cased_text = source.translate(_CONTROL_CHARACTERS)
        else:
            self.cased_text = _build_foldable_pattern().sub(lambda run: _fold_run(run[0]), source)
        self._is_source = self.cased_text == source
        self.text = self.cased_text.lower()
        """In lower case."""

    def source_position(self, index: int) -> int:
        """The source position of the skeleton's character at an index."""
        if self._is_source:
            return index
        if self._positions is None:
            self._positions = [
                position for position, char in enumerate(self.source) for _ in _FOLDS[ord(char)]
            ]
        return self._positions[index] if index < len(self._positions) else len(self.source)


class _FoldTable(dict[int, str]):
    """The folded form of each code point, computed on first use."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = _fold_character(chr(code))
        return folded


_FOLDS = _FoldTable({code: chr(code) for code in (9, 10, 13, *range(32, 127))})


@lru_cache(maxsize=20_000)
def _fold_run(run: str) -> str:
    return run.translate(_FOLDS)


@cache
def _build_foldable_pattern() -> re.Pattern[str]:
    """Runs of what may fold to something else: all but ASCII, and the letters that look like no ASCII."""
    # A search for one set of a few ranges is fast; most text beyond ASCII is of these letters.
    alike = sorted(ord(char) for char in _load_confusables() if len(char) == 1)
    kept = []
    for first, last in _UNFOLDED_RANGES:
        for code in [
            code for code in alike if first <= code <= last and _fold_character(chr(code)) != chr(code)
        ]:
            kept.append((first, code - 1))
            first = code + 1
        kept.append((first, last))
    ranges = "".join(f"{chr(first)}-{chr(last)}" for first, last in kept if first <= last)
    return re.compile(rf"[^\t\n\r\x20-\x7e{ranges}]+")


def _fold_character(char: str) -> str:
    if char in _LINE_ENDS:
        return "\n"
    if _INVISIBLE.match(char):
        return ""
    if char.isspace() or char == "\u2800":
        return "\xa0"
    if char in _EXTRA_CONFUSABLES:
        return _EXTRA_CONFUSABLES[char]
    parts = [
        _EXTRA_CONFUSABLES.get(part) or _find_ascii(part) for part in unicodedata.normalize("NFKD", char)
    ]
    folded = "".join(parts) if any(part.isascii() and part for part in parts) else char
    return folded if len(folded.lower()) == len(folded) else folded[:0]


def _find_ascii(char: str) -> str:
    """The ASCII that one character looks like; itself where it looks like none."""
    if char.isascii():
        return char
    if _INVISIBLE.match(char):
        return ""
    alike = _load_confusables().get(char, "")
    if plain := next(filter(str.isascii, alike), ""):
        if plain in "lI1" and not char.isalnum():
            return "|"
        return plain
    for each in char + alike:
        if named := _LATIN_NAME.fullmatch(unicodedata.name(each, "")):
            return named[1].lower()
        if each in _EXTRA_CONFUSABLES:
            return _EXTRA_CONFUSABLES[each]
    return "-" if unicodedata.category(char) == "Pd" else char


@cache
def _load_confusables() -> dict[str, str]:
    """The characters that look like each character, by Unicode's table of confusables."""
    # 50 ms, and needed only where a text holds more than ASCII.
    from confusable_homoglyphs.confusables import confusables_data

    # Marks of direction stand around what is written from right to left.
    return {
        char.strip("\u200e"): "".join(other for each in found if len(other := each["c"].strip("\u200e")) == 1)
        for char, found in confusables_data.items()
    }
