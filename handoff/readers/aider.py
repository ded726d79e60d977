"""The edits in a reply of aider's model: blocks to search and replace, unified diffs, patches and whole files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from langgraph_takeover.handoff.recordings.recorded_run import RecordedRun, to_directory
from langgraph_takeover.handoff.recordings.sessions import SessionBuilder, ToolResult
from langgraph_takeover.handoff.trace.events import Usage

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


CHAT_START = "# aider chat started at "
_QUESTIONS = ("ask", "code", "architect", "context")
"""Commands whose argument is a request."""
_RUNS = re.compile(r"(?:!|/(?:run|test)\s)\s*(.+)", re.S)
_GIT = re.compile(r"/(git\s.+)", re.S)
_COMMAND = re.compile(r"/([\w-]{1,40})\s*(.*)", re.S)
_ANSWER = re.compile(r"[^\n]{1,200}\? \(Y\)es/\(N\)o")
"""A question of the program with the answer of the user."""
_MODEL = re.compile(r"(?:Main m|M)odels?: ([^\s,]{1,200})")
_VERSION = re.compile(r"Aider v([\w.+-]{1,40})")
_ROOT = re.compile(r"Git (?:working dir: (.{1,4096})|repo: (.{1,4096})[/\\]\.git with \d)")
_APPLIED = re.compile(r"Applied edit to (.{1,1000})")
_SKIPPED = re.compile(r"(?:Skipping edits to|Did not apply edit to) (.{1,1000}?)(?: \(--dry-run\))?")
_CHANGED = re.compile(r"Committing (.{1,1000}) before applying edits\.")
_RUNNING = re.compile(r"Running (.{1,4000})", re.S)
_FAILED = re.compile(
    r"# \d{1,6} SEARCH/REPLACE blocks? failed to match!|The LLM did not conform to the edit format\."
)
_LONG_MESSAGE = re.compile(r"Commit [0-9a-f]{7}|# \d{1,6} SEARCH/REPLACE |Running ")
"""The first words of messages that may have several lines."""
_OTHERS_APPLIED = re.compile(r"The other \d{1,6} SEARCH/REPLACE blocks? (?:was|were) applied successfully")
_TOKENS = re.compile(r"Tokens: ([\d.,]{1,12})(k|M)? sent, (?:[^\n]{0,80}?, )?([\d.,]{1,12})(k|M)? received")
_UNITS = {None: 1, "k": 1_000, "M": 1_000_000}


def is_chat(data: Any) -> bool:
    """Whether a document is a chat, as `split_chats` returns it."""
    return isinstance(data, str) and data.startswith(CHAT_START)


def split_chats(text: str) -> list[str]:
    """The chats of a history file that have a request; if none has, the last one."""
    parts = re.split(rf"^(?={CHAT_START})", text, flags=re.M)
    chats = [part for part in parts if part.startswith(CHAT_START)]
    return [chat for chat in chats if "\n#### " in chat] or chats[-1:]


class _ChatBlock(NamedTuple):
    """Lines of one author."""

    kind: Literal["user", "reply", "note"]
    text: str


def read(text: str, name: str) -> RecordedRun:
    """Read a chat: each applied edit block and each command is a call."""
    reader = _ChatReader(SessionBuilder(name, "aider", keeps_directory=False))
    for block in _split_blocks(text.replace("\r\n", "\n").split("\n")[1:]):
        reader.add(block)
    reader.finish()
    return reader.session.build()


def _split_blocks(lines: list[str]) -> Iterator[_ChatBlock]:
    """The blocks in order. Requests and notes end with two spaces, unlike headings and quotations in a reply.

    In a file without any, an editor has removed them.
    """
    end = "  " if any(line.endswith("  ") for line in lines) else ""
    kept: list[str] = []
    kind: Literal["user", "reply", "note"] = "reply"
    is_command = is_open = has_begun = False
    for line in lines:
        if line.startswith("#### ") and line.endswith(end):
            before, found, part, has_begun = kind, "user", line[5:].rstrip(), True
            is_command, is_open = part.startswith(("/", "!")) or (is_command and before == "user"), False
        elif not has_begun:
            found, part = "note", line.removeprefix("> ").rstrip()
        elif line.startswith("> ") and (line.endswith(end) or is_command or _LONG_MESSAGE.match(line, 2)):
            found, part = "note", line[2:].rstrip()
            is_open = not line.endswith(end)
        elif is_open:
            is_open = not line.endswith(end)
            kept.append(line.rstrip())
            continue
        else:
            found, part = "reply", line
            is_command = is_command and not line.strip()
        if (found != kind or found == "note") and kept:
            yield _ChatBlock(kind, "\n".join(kept))
            kept = []
        kind = found  # type: ignore[assignment]
        kept.append(part)
    yield _ChatBlock(kind, "\n".join(kept))


class _ChatReader:
    """Collects a reply or a command with the notes after it, which say what became of it."""

    def __init__(self, session: SessionBuilder) -> None:
        self.session = session
        session.agent = "aider"
        self._reply = self._command = self._question = ""
        self._notes: list[str] = []
        self._applied: list[str] = []
        """Path of each edit of the latest reply."""
        self._count = 0

    def add(self, block: _ChatBlock) -> None:
        if block.kind == "note":
            self._add_note(block.text)
        elif block.text.strip():
            self.finish()
            if block.kind == "reply":
                self._reply = block.text
            else:
                self._add_request(block.text.strip())

    def finish(self) -> None:
        """Add the calls of the reply or command, whose notes are complete."""
        notes = "\n".join(self._notes)
        if self._reply:
            self._add_reply(notes)
        elif self._command == "undo":
            self._undo(notes)
        elif self._command:
            self._add_run(self._command, notes)
        self._reply, self._command, self._notes = "", "", []

    def _add_note(self, note: str) -> None:
        session = self.session
        if not session.model and (model := _MODEL.match(note)):
            session.model = model[1]
        elif not session.agent_version and (version := _VERSION.match(note)):
            session.agent_version = version[1]
        elif (root := _ROOT.match(note)) and not (self._command or self._reply):
            session.workspace = session.workspace or to_directory(root[1] or root[2]) or ""
        if running := _RUNNING.match(note):
            self.finish()
            self._command = running[1].strip()
        else:
            self._notes.append(note)

    def _add_request(self, text: str) -> None:
        if found := _RUNS.fullmatch(text) or _GIT.fullmatch(text):
            self._command = found[1].strip()
        elif (command := _COMMAND.fullmatch(text)) is None:
            # A question after a command is repeated on its own.
            if text not in ("<blank>", self._question) and not _ANSWER.match(text):
                self.session.add_prompt(text)
            self._question = ""
        elif command[1] in _QUESTIONS:
            self.session.add_prompt(command[2])
            self._question = command[2].strip()
        elif command[1] == "undo":
            self._command = "undo"

    def _add_reply(self, notes: str) -> None:
        edits, rest = parse_edits(self._reply)
        self.session.start_reply()
        self.session.add_message(rest)
        lines = notes.split("\n")
        applied = {to_posix(found[1]) for found in map(_APPLIED.fullmatch, lines) if found}
        skipped = {to_posix(found[1]) for found in map(_SKIPPED.fullmatch, lines) if found}
        failed, others = _FAILED.search(notes), _OTHERS_APPLIED.search(notes) is not None
        error = notes[failed.start() :] if failed else ""
        changed = {to_posix(found[1]) for found in map(_CHANGED.fullmatch, lines) if found}
        is_new = "Create new file?" in notes or "Creating empty file" in notes
        self._applied = self._applied if not edits or not (applied or others) else []
        for edit in edits:
            is_failed = bool(edit.text.strip()) and edit.text in error
            # A file that is written whole counts only if the program says so: it may be an example.
            is_block = not edit.is_whole
            if edit.path in changed or (edit.tool == "create_file" and not is_new):
                # The user changed the file before, or an empty text to search for appends to a file that exists.
                arguments = {"path": edit.path, "edits": [{"edit": edit.arguments}]}
                edit = edit._replace(tool="multiedit", arguments=arguments)
            if edit.path in applied and not is_failed:
                self._add_edit(edit, f"Applied edit to {edit.path}")
            elif is_block and failed:
                matched = others and not is_failed
                self._add_edit(edit, "Applied." if matched else error, refused=not matched)
            elif is_block and edit.path in skipped:
                self._add_edit(edit, f"Skipping edits to {edit.path}", refused=True)
        for path in sorted(applied.difference(edit.path for edit in edits)):
            unknown = {"path": path, "edits": [{"in": self._count}]}
            self._add_call("multiedit", unknown, ToolResult(f"Applied edit to {path}"))
        self.session.add_usage(_parse_usage(notes))

    def _add_edit(self, edit: Edit, text: str, *, refused: bool = False) -> None:
        self._add_call(edit.tool, edit.arguments, ToolResult(text, refused=refused))
        if not refused:
            self._applied.append(edit.path)

    def _add_run(self, command: str, notes: str) -> None:
        self.session.separate_calls()
        self._add_call("bash", {"command": command}, ToolResult(notes))

    def _undo(self, notes: str) -> None:
        """Take back the files of the last commit of the agent."""
        if "Removed: " in notes or "undid" in notes.lower():
            for path in reversed(self._applied):
                self._add_call("editor", {"command": "undo_edit", "path": path}, ToolResult(notes))
            self._applied = []

    def _add_call(self, tool: str, arguments: dict[str, Any], result: ToolResult) -> None:
        self._count += 1
        self.session.add_call(f"#{self._count}", tool, arguments)
        self.session.add_result(f"#{self._count}", result.output, result)


def _parse_usage(notes: str) -> Usage | None:
    """Parse the rounded counts of tokens."""
    found = _TOKENS.search(notes)
    if found is None:
        return None
    sent, received = (
        float(number.replace(",", "") or 0) * _UNITS[unit] if number.count(".") < 2 else 0.0
        for number, unit in ((found[1], found[2]), (found[3], found[4]))
    )
    return Usage(prompt_tokens=round(sent), completion_tokens=round(received))
