"""The lines that external agents add around the output of a command before their model sees it."""

from __future__ import annotations

import re

CODEX_HEADER = re.compile(
    r"(?:(?:Chunk ID: \w{1,16}\n)?(?:Exit code: (?P<code>-?\d{1,9})\n)?Wall time: [\d.]{1,20} seconds\n"
    r"(?:Process exited with code (?P<exit>-?\d{1,9})\n)?"
    r"(?:Process running with session ID (?P<process>\d{1,12})\n)?"
    r"(?:Original token count: \d{1,9}\n)?(?:Total output lines: \d{1,9}\n)?Output:(?:\n|\Z))+"
)
"""What Codex prints first; twice for `apply_patch` inside a shell command."""
CLAUDE_HEADER = re.compile(r"Exit code (?P<code>\d{1,3})(?:\n|\Z)")
CLAUDE_NO_OUTPUT = "(Bash completed with no output)"
QWEN_HEADER = re.compile(r"(?:Command: (?s:.{0,200000}?)\nDirectory: [^\n]{0,4096}\n)Output: ?")
QWEN_FOOTER = re.compile(
    r"\nError: (?P<error>.*)\nExit Code: (?P<code>-?\d{1,9}|\(none\))\nSignal: [^\n]*"
    r"(?:\nBackground PIDs: [^\n]*)?(?:\nProcess Group PGID: [^\n]*)?\s*\Z"
)
OPENCODE_FOOTER = re.compile(
    r"(?<!\n)\n*+<(shell|bash)_metadata>\n(?P<notice>[^<]{0,2000})\n?</\1_metadata>\s*\Z"
)
STILL_RUNNING_HEADER = re.compile(
    r"^Process running with session ID \d|^Command running in background with ID: |^Background shell started\.",
    re.M,
)
"""What agents print instead of an exit code for a command that they left running."""
STILL_RUNNING_NOTICE = re.compile(
    r"\[The command has no new output after|\[The command timed out|no change timeout", re.I
)
"""What agents' tools print instead of an exit code while a command runs."""
_FIRST_WORDS = ("Chunk ID: ", "Exit code", "Wall time: ", "Command: ", CLAUDE_NO_OUTPUT)
_FOOTER_CHARS = 4_000


def strip_wrapper(text: str) -> str:
    """Remove what Codex, Claude Code, Qwen Code or opencode add to the output of a command."""
    end = text[-20:].rstrip()
    if end.endswith("_metadata>"):
        start = max(len(text) - _FOOTER_CHARS, 0)
        footer = OPENCODE_FOOTER.search(text, start)
        text = text[: footer.start()] if footer else text
    if not text.startswith(_FIRST_WORDS):
        return text
    if text.strip() == CLAUDE_NO_OUTPUT:
        return ""
    header = CODEX_HEADER.match(text) or CLAUDE_HEADER.match(text)
    if header:
        return text[header.end() :]
    return strip_qwen_wrapper(text)


def strip_qwen_wrapper(text: str) -> str:
    """Remove the lines of Qwen Code around the output; unchanged if it has none."""
    header, footer = QWEN_HEADER.match(text), find_qwen_footer(text)
    if header is None or footer is None or footer.start() < header.end():
        return text
    output = text[header.end() : footer.start()]
    return "" if output == "(empty)" else output


def find_qwen_footer(text: str) -> re.Match[str] | None:
    """The last lines of a result of Qwen Code, with the exit code."""
    return QWEN_FOOTER.search(text, max(len(text) - _FOOTER_CHARS, 0))
