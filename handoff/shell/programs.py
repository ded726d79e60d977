"""Table of programs, with the arguments by which they change or show files."""

from __future__ import annotations

import re
from typing import NamedTuple


class Program(NamedTuple):
    """The file effects of one program, by its arguments."""

    harmless_patterns: tuple[re.Pattern[str], ...] = ()
    """Arguments with which it provably changes nothing: one pattern per word, the last for all further words."""
    edit_pattern: re.Pattern[str] | None = None
    """Matches the start of an argument that makes it change files; empty if it always does."""
    is_mostly_read_only: bool = False
    """It rarely changes a file, although some arguments could make it."""
    valued_options: str | None = None
    """One-letter options that take a value, if it prints the files named by its operands; else None."""
    is_filter: bool = False
    """It prints the content of its standard input."""


def _row(
    names: str,
    *harmless: str,
    edits: str | None = None,
    read_only: bool = False,
    valued: str | None = None,
    filters: bool = False,
) -> dict[str, Program]:
    patterns = tuple(re.compile(pattern, re.DOTALL) for pattern in harmless)
    edit_pattern = None if edits is None else re.compile(edits)
    shows_files = valued is not None
    return dict.fromkeys(
        names.split(),
        Program(patterns, edit_pattern, read_only or shows_files, valued, filters or shows_files),
    )


_ANY = ".*"
ALWAYS_HARMLESS = (re.compile(_ANY, re.DOTALL),)
_GIT_READS = "blame|diff|grep|log|ls-files|rev-parse|shortlog|show|status"
# Git accepts abbreviated long options.
_GIT_WRITES = r"--o(?!(?:neline|nly-matching|thers)\Z)|--e|--tex|-[a-zA-Z]*O"
GIT_RESTORES = {"stash", "checkout", "restore", "reset", "clean"}
_GIT_EDITS = (
    r"(?:am|apply|checkout|cherry-pick|clean|merge|mv|pull|rebase|reset|restore|revert|rm|stash|switch)\Z"
)
_FIND_ACTIONS = "-delete|-exec|-ok|-fprint|-fls"
_NO_SUBSCRIPT = r"(?!-v\Z)[^[]*"  # Bash evaluates a subscript as arithmetic, which can assign variables.
PROGRAMS: dict[str, Program] = {
    **_row(": basename cmp df diff dirname du echo false id ls pwd readlink realpath", _ANY),
    **_row("stat true type uname wc whereis which whoami egrep fgrep grep", _ANY),
    **_row("cat tac", _ANY, valued=""),
    **_row("nl", _ANY, valued="bdfhilnpsvw"),
    **_row("head tail", _ANY, valued="nc"),
    **_row("cut tr", _ANY, filters=True),
    **_row("sort", r"(?!--|-.*[oT]).*", filters=True),
    **_row("uniq", r"-[cduiz]+", filters=True),  # a second operand is an output file
    **_row("column expand fmt fold", filters=True),
    **_row("bat batcat less more view", valued=""),
    **_row("od", valued="AjNStw"),
    **_row("xxd", valued="lsc"),
    **_row("hexdump", valued="nsCe"),
    **_row("strings", valued="n"),
    **_row("pygmentize", valued="lfO"),
    **_row("sed", "-n", r"[\d,$ ;]*p(;[\d,$ ]*p)*", r"(?!-).*", edits="-[nrEsz]*i|--in-place", valued="ef"),
    **_row("awk gawk mawk", edits="-i", valued="fFv"),
    **_row("[ test", _NO_SUBSCRIPT, read_only=True),
    **_row("date", r"\+.*|-[uR]|-I\w*", read_only=True),
    **_row("printf", r"(?!-)(?!.*%[^a-zA-Z%]*[hjlLtz]*n).*", _ANY, read_only=True),
    **_row("file", r"(?!-).*|-[bi]"),
    **_row("rg", r"(?!--(?:pr|hos|se)|-[a-zA-Z]*z).*"),
    **_row("find", rf"(?!{_FIND_ACTIONS}).*", edits=_FIND_ACTIONS, read_only=True),
    **_row("git", _GIT_READS, rf"(?!{_GIT_WRITES}).*", edits=_GIT_EDITS),
    **_row("cd pushd popd export set sleep source . exit", read_only=True),
    **_row("perl ruby", edits=r"-\w*[ie]"),
    **_row("tee", edits="", filters=True),
    **_row("patch apply_patch mv cp rm ln install rsync tar unzip ed ex vim vi dd truncate touch", edits=""),
    **_row("black autopep8 yapf isort autoflake pyupgrade 2to3 prettier gofmt rustfmt", edits=""),
    **_row("dos2unix unix2dos shutil", edits=""),
}  # fmt: skip
_UNKNOWN_PROGRAM = Program()


def find_program(name: str) -> Program:
    """The row of a program; an empty row for an unknown program."""
    return PROGRAMS.get(name, _UNKNOWN_PROGRAM)
