"""The blocks, tags and calls in a model's text that may be actions."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from typing import Any, NamedTuple

from langgraph_takeover.base.untrusted_input import parse_prefix

SHELL_LANGUAGES = ("bash", "sh", "shell", "console", "zsh")
_PART_NAMES = "old|new|content|old_str|new_str|file_text|insert_text"
# Possessive quantifiers where two parts could match the same characters: no input may make the search quadratic.
_OPENING = re.compile(
    r"^[ \t]*+(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<language>[\w.+-]*+)[^\n`]*+\n"
    r"|^[ \t]*+<(?P<thought>think|thinking)>"
    r"|(?<!`)(?P<thought_end></(?:think|thinking)>)"
    r"|(?<!`)<(?P<tool>editor|handoff|finish)(?=[\s/>])"
    r"|(?<!`)<(?P<call>tool_call|function_call)>",
    re.MULTILINE,
)
_FENCE_LINE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t\r]*+$", re.MULTILINE)
_WRAPPED_TAG = re.compile(
    r"\s*+<(?:(?:editor|handoff)\s++\w++\s*+=|(?:finish|handoff)\s*+/?>|tool_call>|function_call>)"
)
_WRAPPER_LANGUAGES = ("", "xml", "html", "text", "markdown", "tool_call", *SHELL_LANGUAGES)
_WRAPPING_END = re.compile(r"\s*+(?:`{3,}+|~{3,}+)[ \t\r]*+$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"\s*+(\w++)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)')")
_HEAD_END = re.compile(r"\s*+(/?)>")
_PART = re.compile(rf"\s*+<({_PART_NAMES})>")
_EDITOR_END = re.compile(r"\s*+</editor>")
_HEREDOC = re.compile(r"<<-?[ \t]*+(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_]\w*+))")
_SPACE = re.compile(r"\s*+")
_MAX_ATTEMPTS = 30
"""Possible actions that are read; a reply with so many is refused in any case."""
_MAX_PIECES = 10_000
"""Pieces that are read; an action after them is not found, and the model is asked again."""


class CodeBlock(NamedTuple):
    """A fenced code block."""

    language: str
    body: str


class Tag(NamedTuple):
    """One of our own tags, with its attributes and parts."""

    tool: str
    arguments: dict[str, str]


class JsonCall(NamedTuple):
    """A JSON value between `<tool_call>` tags."""

    value: Any


class MalformedPiece(NamedTuple):
    """Text that begins like an action but cannot be read, and the correction to send."""

    correction: str


Piece = CodeBlock | Tag | JsonCall | MalformedPiece
TextRange = tuple[int, int]


def find_pieces(text: str) -> list[Piece]:
    """Return the pieces from left to right, without nested ones and without thoughts, in linear time."""
    if "\n" in text and text.count("\n") == text.count("\r\n"):
        text = text.replace("\r\n", "\n")
    blocks = _CodeBlocks(text)
    pieces: list[Piece] = []
    attempts = position = 0
    wrapped = False
    while (
        attempts < _MAX_ATTEMPTS
        and len(pieces) < _MAX_PIECES
        and (opening := _OPENING.search(text, position))
    ):
        position = opening.end()
        piece: Piece | None = None
        if opening["thought"]:
            end = text.find(f"</{opening['thought']}>", position)
            position = len(text) if end < 0 else end
        elif opening["thought_end"]:
            # Chat templates may put the opening tag into the prompt: all text so far was a thought.
            pieces.clear()
            attempts = 0
        elif opening["tool"]:
            piece, position = _parse_tag(text, opening["tool"], position)
        elif opening["call"]:
            piece, position = _parse_call(text, opening["call"], position)
        elif opening["language"].lower() in _WRAPPER_LANGUAGES and _WRAPPED_TAG.match(text, position):
            wrapped = True  # a block around a tag: the tag is next
            continue
        else:
            piece, position = blocks.parse_block(opening)
        if wrapped and (end_of_wrapping := _WRAPPING_END.match(text, position)):
            position = end_of_wrapping.end()
        wrapped = False
        if piece is not None:
            pieces.append(piece)
            attempts += not isinstance(piece, CodeBlock) or piece.language in SHELL_LANGUAGES
    return pieces


def strip_padding(text: str) -> str:
    """Return the text between tags without the line breaks next to the tags."""
    line_break = "\r\n" if text.startswith("\r\n") else "\n"
    return text.removeprefix(line_break).removesuffix(line_break)


class _CodeBlocks:
    """The fenced blocks of a text; call `parse_block` from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[str, list[TextRange]] = defaultdict(list)
        for line in _FENCE_LINE.finditer(text):
            self._ends[line[1]].append(line.span())
        self._word_patterns: dict[str, re.Pattern[str]] = {}
        self._unclosed: set[tuple[str, str]] = set()
        """Pairs of a fence and a word: no later here-document ends with that word before such a fence."""

    def parse_block(self, opening: re.Match[str]) -> tuple[CodeBlock | MalformedPiece | None, int]:
        """Return the block that the match opens and its end position; None for a fence that is never closed."""
        fence, language, start = opening["fence"], opening["language"].lower(), opening.end()
        closing = self._find_fence(fence, start)
        if language in SHELL_LANGUAGES:
            if closing is None:
                correction = (
                    f"Your {language} block is never closed; nothing was run. End it with a line {fence}"
                )
                return MalformedPiece(correction), len(self._text)
            closing = self._skip_heredocs(fence, start, closing)
        if closing is None:
            return None, start
        return CodeBlock(language, self._text[start : closing[0]].removesuffix("\n")), closing[1]

    def _find_fence(self, fence: str, position: int) -> TextRange | None:
        lines = self._ends[fence]
        index = bisect_left(lines, (position, 0))
        return lines[index] if index < len(lines) else None

    def _skip_heredocs(self, fence: str, start: int, closing: TextRange) -> TextRange:
        """Return the fence that ends a shell block, not a fence inside a file that the block writes."""
        while word := _find_open_heredoc(self._text[start : closing[0]]):
            if (fence, word) in self._unclosed:
                break
            if word not in self._word_patterns:
                self._word_patterns[word] = re.compile(rf"^\t*+{re.escape(word)}$", re.MULTILINE)
            end = self._word_patterns[word].search(self._text, closing[1])
            later = self._find_fence(fence, end.end()) if end else None
            if end is None or later is None:
                self._unclosed.add((fence, word))
                break
            start, closing = end.end(), later
        return closing


def _find_open_heredoc(script: str) -> str:
    """Return the end word of the script's unfinished here-document; empty if all are finished."""
    word = ""
    for line in script.split("\n"):
        if word:
            word = "" if line.lstrip("\t") == word else word
        elif "<<" in line and (opened := _HEREDOC.search(line)):
            word = opened[1] or opened[2] or opened[3]
    return word


def _parse_tag(text: str, tool: str, position: int) -> tuple[Tag | MalformedPiece | None, int]:
    """Return the tag whose name ends at the position, and the tag's end position; None for a mere mention."""
    arguments: dict[str, str] = {}
    while attribute := _ATTRIBUTE.match(text, position):
        arguments[attribute[1]] = attribute[2] if attribute[2] is not None else attribute[3]
        position = attribute.end()
    head = _HEAD_END.match(text, position)
    if head is None:
        return (
            (None, position) if not arguments else (MalformedPiece(_describe_attribute_error(tool)), position)
        )
    position = head.end()
    if head[1]:
        return Tag(tool, arguments), position
    if tool == "editor":
        return _parse_editor_parts(text, arguments, position)
    end = re.compile(rf"<(/?){tool}[\s/>]").search(text, position)
    if end is None:
        return MalformedPiece(
            f"Your <{tool}> tag is never closed; the action was not run. End it with </{tool}>."
        ), position
    if not end[1]:
        return None, position
    message = text[position : end.start()].strip()
    return Tag(tool, arguments | ({"message": message} if message else {})), end.end()


def _parse_editor_parts(
    text: str, arguments: dict[str, str], position: int
) -> tuple[Tag | MalformedPiece, int]:
    while not (end := _EDITOR_END.match(text, position)):
        part = _PART.match(text, position)
        if part is None:
            return MalformedPiece(
                "Your <editor> tag is not finished, or has text outside its parts; the action was not run. Between "
                "<editor …> and </editor>, write only <old>…</old>, <new>…</new> or <content>…</content>."
            ), position
        name = part[1]
        # The text may contain such tags: a part ends where the next begins or the editor tag ends.
        closing = re.compile(rf"</{name}>(?=\s*+(?:</editor>|<(?:{_PART_NAMES})>))").search(text, part.end())
        if closing is None:
            return MalformedPiece(
                f"Your <editor> tag is not finished; the action was not run. "
                f"End its <{name}> with </{name}> and the tag with </editor>."
            ), len(text)
        arguments[name] = strip_padding(text[part.end() : closing.start()])
        position = closing.end()
    return Tag("editor", arguments), end.end()


def _parse_call(text: str, name: str, position: int) -> tuple[JsonCall | MalformedPiece, int]:
    start = _SPACE.match(text, position)
    try:
        value, end = parse_prefix(text, start.end() if start else position)
    except ValueError:
        return MalformedPiece(
            f"The text after your <{name}> is not valid JSON; the action was not run. "
            f'Send <{name}>{{"name": "shell", "arguments": {{"command": "…"}}}}</{name}>.'
        ), position
    return JsonCall(value), end


def _describe_attribute_error(tool: str) -> str:
    return f'The attributes of your <{tool}> tag cannot be read; the action was not run. Write each as name="value".'
