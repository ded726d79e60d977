"""The sections of a patch by git: one for each file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from langgraph_takeover.sandbox.repository.patches import split_by_file

_HEADING = re.compile(r"diff --git a/.*? b/(.*)\n(new file mode)?")
_OLD_PATH = re.compile(r"^rename from (.*)$", re.MULTILINE)


class PatchSection(NamedTuple):
    """The changes of one file."""

    path: str
    """The file's name after the patch."""
    is_new: bool
    """The base commit does not have the file."""
    text: str
    """The whole section, with its heading."""

    @property
    def old_path(self) -> str | None:
        """The file's name before the patch, if the patch renames it."""
        found = _OLD_PATH.search(self.text.partition("\n@@")[0])
        return found[1] if found else None

    @property
    def hunks(self) -> str:
        """The text after the first `@@`; empty for a binary file or a mere renaming."""
        return self.text.partition("\n@@")[2]

    def list_changed_lines(self) -> Iterator[str]:
        """Yield the added and removed lines, each with its `+` or `-`."""
        return (line for line in self.hunks.split("\n")[1:] if line.startswith(("+", "-")))


def split_patch(patch: str) -> tuple[PatchSection, ...]:
    """Split a patch by file. Text without a readable heading is left out."""
    found = ((_HEADING.match(text), text) for text in split_by_file(patch))
    return tuple(PatchSection(match[1], match[2] is not None, text) for match, text in found if match)
