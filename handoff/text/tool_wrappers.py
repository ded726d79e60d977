"""The lines that external agents add around the output of a command before their model sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from langgraph_takeover.base.untrusted_input import parse_json

CODEX_HEADER = re.compile(
    r"(?:(?:Chunk ID: \w{1,16}\n)?"
    r"(?:Exit code: (?P<code>-?\d{1,9})\n(?:Wall time: [\d.]{1,20} seconds\n)?|Wall time: [\d.]{1,20} seconds\n)"
    r"(?:Process exited with code (?P<exit>-?\d{1,9})\n)?"
    r"(?:Process running with session ID (?P<process>\d{1,12})\n)?"
    r"(?:Original token count: \d{1,9}\n)?(?:Total output lines: \d{1,9}\n)?Output:(?:\n|\Z))+"
)
"""What Codex prints first; twice for `apply_patch` inside a shell command. A written session has no wall time."""
CLAUDE_HEADER = re.compile(r"Exit code (?P<code>\d{1,3})(?:\n|\Z)")
CLAUDE_NO_OUTPUT = "(Bash completed with no output)"
CLAUDE_STARTED = re.compile(
    r"^(?:Command (?:running in background|was manually backgrounded by user|was moved to the background"
    r"|did not complete within its \d{1,9}s timeout and was moved to the background)"
    r" (?:with ID: |\(ID: )|Monitor started \(task )(?P<id>\w{1,40})|\A\{\"resultType\":\"task\",\"taskId\":\"(?P<task>\w{1,40})\"",
    re.M,
)
"""What Claude Code says after the output of a command that still runs; the last notes of a result follow."""
TASK_OUTPUT_FILE = re.compile(r"Output is being written to: (?P<path>[^\n]{1,4000}?/tasks/\w{1,40}\.output)")
_CLAUDE_NOTE = re.compile(
    r"(?:\A|\n)(?:\[rerun: (?P<alias>b\d{1,6})\]|Shell cwd was reset to [^\n]*"
    r"|\[This command modified \d{1,6} files? you've previously read: [^\n]*\]"
    r"|\[While this command ran, the kernel killed [^\n]*\]"
    r"|<system-reminder>GitHub API rate limit [^<]{0,1000}</system-reminder>)\s*\Z"
)
_NOTE_STARTS = (
    "[rerun: ",
    "Shell cwd was reset to ",
    "[This command modified ",
    "[While this command ran, ",
    "<system-reminder>",
)
_MAX_NOTES = 6
QWEN_HEADER = re.compile(r"(?:Command: (?s:.{0,200000}?)\nDirectory: [^\n]{0,4096}\n)Output: ?")
QWEN_FOOTER = re.compile(
    r"\nError: (?P<error>.*)\nExit Code: (?P<code>-?\d{1,9}|\(none\))\nSignal: [^\n]*"
    r"(?:\nBackground PIDs: [^\n]*)?(?:\nProcess Group PGID: [^\n]*)?\s*\Z"
)
OPENCODE_FOOTER = re.compile(
    r"(?<!\n)\n*+<(shell|bash)_metadata>\n(?P<notice>[^<]{0,2000})\n?</\1_metadata>\s*\Z"
)
STILL_RUNNING_HEADER = re.compile(
    rf"^Process running with session ID \d|^Background shell started\.|{CLAUDE_STARTED.pattern}",
    re.M,
)
"""What agents print instead of an exit code for a command that they left running."""
STILL_RUNNING_NOTICE = re.compile(
    r"\[The command has no new output after|\[The command timed out|no change timeout", re.I
)
"""What agents' tools print instead of an exit code while a command runs."""
_JSON_RESULT = re.compile(r"\s{0,20}\{\s{0,20}\"(?:returncode|output|metadata)\"\s{0,9}:")
_FIRST_WORDS = ("Chunk ID: ", "Exit code", "Wall time: ", "Command: ", CLAUDE_NO_OUTPUT)
_FOOTER_CHARS = 4_000


def strip_wrapper(text: str) -> str:
    """Remove what Codex, Claude Code, Qwen Code or opencode add to the output of a command."""
    text = strip_claude_notes(text)
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


def strip_claude_notes(text: str) -> str:
    """Remove the lines that Claude Code adds after the output of a command."""
    for _ in range(_MAX_NOTES):
        note = _find_claude_note(text)
        if note is None:
            break
        text = text[: note.start()]
    return text


def find_rerun_alias(text: str) -> str:
    """The name under which Claude Code can repeat the command of a result; empty if it has none."""
    note = _find_claude_note(text)
    return (note["alias"] or "") if note else ""


def _find_claude_note(text: str) -> re.Match[str] | None:
    end = text[-_FOOTER_CHARS:].rstrip()
    if not end.rpartition("\n")[2].startswith(_NOTE_STARTS):
        return None
    return _CLAUDE_NOTE.search(text, max(len(text) - _FOOTER_CHARS, 0))


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


def parse_json_result(text: str) -> Mapping[str, Any] | None:
    """The JSON object in which mini-swe-agent and old versions of Codex show a result; None for other text.

    It has `output`, or the begin and the end of a long one, and `returncode` or, within `metadata`, `exit_code`.
    """
    if not _JSON_RESULT.match(text):
        return None
    try:
        found = parse_json(text, strict=False)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("output", found.get("output_head")), str):
        return None
    metadata = found.get("metadata")
    code = metadata.get("exit_code") if isinstance(metadata, dict) else found.get("returncode")
    return found if isinstance(code, int) and not isinstance(code, bool) else None


def strip_json_result(text: str) -> str:
    """The output in a result that is a JSON object; other text is unchanged."""
    found = parse_json_result(text)
    if found is None:
        return text
    return "\n".join(str(found[key]) for key in ("output", "output_head", "output_tail") if key in found)
