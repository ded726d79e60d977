"""Escape characters that control a terminal or that no reader sees, unless a script or an emoji needs them."""

from __future__ import annotations

import re
from functools import cache

import regex

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
    chars = "".join(chr(code) for plane in _PLANES for code in plane)
    runs = [found[0] for found in regex.finditer(rf"{_IGNORABLE}+", chars)]
    ignorable = "".join(f"{run[0]}-{run[-1]}" for run in runs)
    return re.compile(
        rf"(?:[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufff9-\ufffb{ignorable}]|\r(?!\n))+"
    )


def escape_char(char: str) -> str:
    """Return the escape of a character, such as `\\x3c` or `\\u202e`."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
