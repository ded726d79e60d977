"""The edits in a reply of aider's model: blocks to search and replace, unified diffs, patches and whole files."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_SEARCH = re.compile(r"<{5,9} ?SEARCH>?\s*")
_DIVIDER = re.compile(r"={5,9}\s*")
_REPLACE = re.compile(r">{5,9} ?REPLACE\s*")
_FENCE = re.compile(r"(`{3,9}|~{3,9}|<(?:source|code|pre|codeblock|sourcecode)>)\s*([\w.+#-]{0,40})[^`]*")
"""Tags are the fences of files that contain backticks."""
_PATCH = ("*** Begin Patch", "*** End Patch")
_DECORATION = " \t`*#:"
_SHELLS = ("bash", "sh", "shell", "zsh", "console", "cmd", "powershell", "text")
_MAX_NAME_CHARS = 400


class Edit(NamedTuple):
    """One edit of a file, as a call of a tool."""

    path: str
    """With slashes, also on Windows."""
    tool: str
    arguments: dict[str, Any]
    text: str
    """What the reply says to search for; empty for a whole file."""
    is_whole: bool = False


def to_posix(path: str) -> str:
    """A path of aider, which is relative to the repository, with slashes."""
    return path.strip().replace("\\", "/").removeprefix("./")


def parse_edits(reply: str) -> tuple[list[Edit], str]:
    """The edits of a reply in their order, and its text without them."""
    parser = _Parser()
    for line in reply.split("\n"):
        parser.add(line)
    parser.finish()
    return parser.edits, "\n".join(parser.rest).strip()


class _Parser:
    """Reads a reply line by line."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.rest: list[str] = []
        self._name = ""
        """The last line that may name a file."""
        self._fence = self._language = ""
        self._content: list[str] = []
        self._has_blocks = False
        self._part: list[str] | None = None
        """The lines of the current part of a block, or of a patch."""
        self._search: list[str] | None = None
        self._is_patch = False

    def add(self, line: str) -> None:
        if self._part is not None:
            self._add_to_block(line)
        elif _SEARCH.fullmatch(line):
            self._part, self._search, self._has_blocks = [], None, True
        elif line.strip() == _PATCH[0]:
            self._part, self._is_patch, self._has_blocks = [line], True, True
        elif self._fence:
            self._add_to_fence(line)
        elif opened := _FENCE.fullmatch(line):
            self._fence, self._language, self._content, self._has_blocks = opened[1], opened[2], [line], False
        else:
            self.rest.append(line)
            self._keep_name(line)

    def finish(self) -> None:
        """Keep an incomplete block as text: the reply was cut off."""
        self.rest += [*self._content, *(self._part or [])]

    def _keep_name(self, line: str) -> None:
        if line.strip() and len(line) <= _MAX_NAME_CHARS:
            self._name = line.strip(_DECORATION)

    def _add_to_block(self, line: str) -> None:
        assert self._part is not None
        if self._is_patch:
            self._part.append(line)
            if line.strip() == _PATCH[1]:
                self._add_patch("\n".join(self._part))
                self._part, self._is_patch = None, False
        elif self._search is None and _DIVIDER.fullmatch(line):
            self._search, self._part = self._part, []
        elif self._search is not None and _REPLACE.fullmatch(line):
            self._add_replacement(self._name, self._search, self._part)
            self._part = None
        else:
            self._part.append(line)

    def _add_to_fence(self, line: str) -> None:
        ends = line.startswith(self._fence) and not line.strip("`~ \t")
        if ends or line.rstrip() == self._fence.replace("<", "</"):
            content, self._fence = self._content[1:], ""
            if self._language == "diff" and any(each.startswith("@@") for each in content):
                self._add_diff(content)
            elif not self._has_blocks:
                self._add_whole(content, line)
            self._content = []
        elif self._has_blocks:
            self._keep_name(line)
        else:
            self._content.append(line)
            if len(self._content) == 2 and not _looks_like_code(line):
                self._keep_inner_name(line)

    def _keep_inner_name(self, line: str) -> None:
        """Some models write the name of the file inside the fence."""
        name = line.strip(_DECORATION + "/")
        if len(line) <= _MAX_NAME_CHARS and "." in name and " " not in name:
            self._name = name

    def _add_replacement(self, name: str, search: list[str], replacement: list[str]) -> None:
        path, old, new = to_posix(name), "\n".join(search), "\n".join(replacement)
        if not path:
            return
        if old.strip():
            self.edits.append(Edit(path, "str_replace", {"path": path, "old": old, "new": new}, old))
        else:
            self.edits.append(Edit(path, "create_file", {"path": path, "content": f"{new}\n"}, ""))

    def _add_diff(self, lines: list[str]) -> None:
        path, old, new = "", list[str](), list[str]()
        for line in [*lines, "@@"]:
            if line.startswith(("@@", "--- ", "+++ ")):
                if path and old != new:
                    self._add_replacement(path, old, new)
                old, new = [], []
                if line.startswith("+++ "):
                    path = line[4:].split("\t")[0].strip()
            elif line.startswith(("-", "+")):
                (old if line[0] == "-" else new).append(line[1:])
            else:
                old.append(line[1:])
                new.append(line[1:])

    def _add_patch(self, patch: str) -> None:
        for section in re.split(r"^(?=\*\*\* (?:Update|Add|Delete) File: )", patch, flags=re.M)[1:]:
            path = to_posix(section.partition("\n")[0].partition(": ")[2])
            text = section.removesuffix(_PATCH[1]).rstrip("\n")
            one = "\n".join((_PATCH[0], text, _PATCH[1]))
            self.edits.append(Edit(path, "apply_patch", {"input": one}, text))

    def _add_whole(self, content: list[str], end: str) -> None:
        path = to_posix(self._name)
        if self._language not in _SHELLS and path and " " not in path:
            text = "".join(f"{line}\n" for line in content)
            self.edits.append(Edit(path, "write_file", {"path": path, "content": text}, "", is_whole=True))
        self.rest += [*self._content, end]


def _looks_like_code(line: str) -> bool:
    return any(character in line for character in "(){}=<>;\"'")
