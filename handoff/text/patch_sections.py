"""The sections of a patch by git: one for each file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from langgraph_takeover.sandbox.repository import split_by_file

_NAME = r'(?:"((?:[^"\\]|\\.)*)"|(.*?))\t?$'
_NEW_PATH = re.compile(rf"^(?:\+\+\+ (?!/dev/null)|rename to |copy to ){_NAME}", re.MULTILINE)
_OLD_PATH = re.compile(rf"^rename from {_NAME}", re.MULTILINE)
_HEADING = re.compile(r'diff --git (?:"a/(.{1,4096})" "b/\1"|a/(.{1,4096}) b/\2)$', re.MULTILINE)
"""The heading of a file that was neither renamed nor copied."""
_ESCAPE = re.compile(r"((?:\\[0-7]{3})+)|\\(.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}


class PatchSection(NamedTuple):
    """The changes of one file."""

    path: str
    """The file's name after the patch, as events have it: a byte that is not UTF-8 is `\\xe9`."""
    is_new: bool
    """The base commit does not have the file."""
    text: str
    """The whole section, with its heading."""

    @property
    def old_path(self) -> str | None:
        """The file's name before the patch, if the patch renames it."""
        found = _OLD_PATH.search(self.text.partition("\n@@")[0])
        return _read_name(found) if found else None

    @property
    def hunks(self) -> str:
        """The text after the first `@@`; empty for a binary file or a mere renaming."""
        return self.text.partition("\n@@")[2]

    def list_changed_lines(self) -> Iterator[str]:
        """Yield the added and removed lines, each with its `+` or `-`."""
        return (line for line in self.hunks.split("\n")[1:] if line.startswith(("+", "-")))


def split_patch(patch: str) -> tuple[PatchSection, ...]:
    """Split a patch by file. Text without a readable heading is left out."""
    found = ((text.partition("\n@@")[0], text) for text in split_by_file(patch))
    return tuple(
        PatchSection(path, "\nnew file mode" in head, text)
        for head, text in found
        if (path := _find_path(head))
    )


def _find_path(head: str) -> str | None:
    if not head.startswith("diff --git "):
        return None
    found = _NEW_PATH.search(head)
    if found is not None:
        return _read_name(found).removeprefix("b/" if found[0].startswith("+") else "")
    heading = _HEADING.match(head)
    return _read_name(heading) if heading else None


def _read_name(found: re.Match[str]) -> str:
    """Read a name that git may have quoted: octal bytes and the escapes of C."""
    if found[1] is None:
        return found[2]
    return _ESCAPE.sub(_read_escape, found[1])


def _read_escape(found: re.Match[str]) -> str:
    if found[1]:
        return bytes(int(octal, 8) & 255 for octal in found[1].split("\\")[1:]).decode(
            "utf-8", "backslashreplace"
        )
    return _ESCAPED.get(found[2], found[2])
