"""The inferred files of an imported run, updated by every action."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from langgraph_takeover.handoff.recordings.inferred_content import (
    Content,
    KnownLines,
    digest_content,
    full_text,
    unknown_content,
)
from langgraph_takeover.handoff.shell.syntax import is_absolute, is_drive, normalize_path, resolve_path
from langgraph_takeover.handoff.trace import file_kinds
from langgraph_takeover.sandbox.interface import FileChange

_MISSING = re.compile(
    r"no such file|not found|(?:does|do|did) not (?:exist|match)|doesn't exist|non-?existent"
    r"|(?:cannot|can't|could not|couldn't|unable to|failed to) (?:access|stat|find|open|read|locate)|ENOENT",
    re.I,
)
_MAX_LINE_CHARS = 1_000
_DRIVE = re.compile(r"\b([A-Za-z]):/")
_MAX_LISTING_CHARS = 100_000
HOME = "/root"
"""The home of an agent that no recording names."""


class InferredFiles:
    """The inferred files of a run: actions change them, and displayed lines reveal their contents.

    Paths are relative inside the repository and absolute outside it, as in `FileChange`.
    """

    def __init__(self, workspace: str, *, start: str = "", keeps_directory: bool) -> None:
        """`workspace` is empty if unknown; `start` is the absolute directory of the first command, by default the workspace."""
        self.workspace = normalize_path(workspace) if workspace else ""
        self._is_windows = is_drive(self.workspace)
        self._spellings: dict[str, str] = {}
        """Path in lower case -> its first spelling, on Windows."""
        self.known_lines = KnownLines()
        self.start = ""
        self.start = self.resolve_path(start, "") if start else ""
        self.cwd = self.start if keeps_directory else None
        self._keeps_directory = keeps_directory
        self._contents: dict[str, Content | None] = {}
        self._is_in_base: dict[str, bool] = {}
        """Whether a touched path exists in the base commit."""
        self._shown_texts: list[str] = []
        self._created_directories: set[str] = set()
        self._top_directories: set[str] = set()
        self.replaced_contents: dict[str, list[Content | None]] = {}
        """Path -> contents before each editor call, for undo."""
        self.stashes: list[dict[str, Content | None]] = []
        """Path -> content, for each entry of `git stash`."""
        self.diffs: dict[str, dict[str, Content | None]] = {}
        """Path of a saved `git diff` -> contents of the changed files at that time."""

    def enter_directory(self, directory: str) -> None:
        """Set the directory of the shell to a recorded directory."""
        if self._keeps_directory:
            self.cwd = self.resolve_path(directory) if is_absolute(directory) else directory

    def set_directory(self, directory: str | None) -> None:
        """Set the directory of the shell after a command; None if unknown."""
        if self._keeps_directory:
            self.cwd = directory

    @property
    def shell_directory(self) -> str:
        """The directory of the next command: that of the shell, or the first one if each command has a new shell."""
        return self.start if self.cwd is None else self.cwd

    def apply_reported_changes(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        """Apply changes from the recording and return them with normalized paths."""
        changes = [change.model_copy(update={"path": self.resolve_path(change.path)}) for change in changes]
        for change in changes:
            if change.before is None and change.path not in self._is_in_base:
                self._is_in_base[change.path] = False
            elif change.path not in self._is_in_base:
                self._is_in_base[change.path] = True
            self._contents[change.path] = (
                None if change.after is None else unknown_content(f"reported:{change.after}")
            )
            self._record_top_directory(change.path)
        return tuple(changes)

    def add_shown_text(self, text: str) -> None:
        """Record a text shown to the agent."""
        if self._is_windows:
            text = _DRIVE.sub(lambda drive: f"/{drive[1].lower()}/", text.replace("\\", "/"))
        self._shown_texts.append(text)

    def list_base_directories(self) -> tuple[str, ...]:
        """The top-level directories that existed before the first action, as far as known."""
        return tuple(sorted(self._top_directories - self._created_directories))

    def list_old_paths(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the code files that are in the base commit, or that an output or one of `texts` names and no action created."""
        yield from (path for path, is_old in self._is_in_base.items() if is_old)
        yield from (origin.removeprefix("base:") for origin in self.known_lines.lines)
        created = {posixpath.basename(path) for path, is_old in self._is_in_base.items() if not is_old}
        for text in (*self._shown_texts, *texts):
            for line in text[:_MAX_LISTING_CHARS].splitlines():
                words = line[:_MAX_LINE_CHARS].split() if "." in line and not _MISSING.search(line) else ()
                for word in words:
                    path = word.partition(":")[0].rstrip("*.,;")
                    is_named = "://" not in word and posixpath.basename(path) not in created
                    if is_named and file_kinds.is_code(path):
                        yield self.resolve_path(path, "")

    def resolve_path(self, path_text: str, cwd: str | None = None) -> str:
        """Resolve a path of an agent to the form used in file changes; on Windows, letter case does not matter."""
        if self._is_windows:
            path_text = path_text.replace("\\", "/")
        path_text = resolve_path(path_text.strip(), cwd if cwd is not None else self.shell_directory)
        if path_text.startswith("~"):
            path_text = HOME + path_text[1:]
        absolute = resolve_path(path_text, self.workspace) if path_text else ""
        if not self.workspace:
            return "" if absolute == "." else absolute
        prefix = self.workspace.rstrip("/") + "/"
        if not self._is_windows:
            return absolute.removeprefix(prefix) if absolute != self.workspace else ""
        if f"{absolute}/".lower().startswith(prefix.lower()):
            absolute = absolute[len(prefix) :]
        return self._spellings.setdefault(absolute.lower(), absolute)

    def content(self, path: str) -> Content | None:
        """The current content of a path; an untouched path has the content of the base commit."""
        if path in self._contents:
            return self._contents[path]
        return unknown_content(f"base:{path}")

    def text(self, path: str) -> str | None:
        """The complete text of a file, if known."""
        content = self.content(path)
        return None if content is None else full_text(content, self.known_lines)

    @property
    def touched_contents(self) -> Mapping[str, Content | None]:
        """Path -> content, for every path that an action has touched."""
        return self._contents

    def mark_base_file(self, path: str) -> None:
        """Record that a path exists in the base commit, unless an action created it or its top-level directory."""
        self._is_in_base.setdefault(path, path.split("/")[0] not in self._created_directories)

    def exists(self, path: str) -> bool:
        """Whether a path exists; an untouched path does if it is a base file or was shown."""
        if path in self._contents:
            return self._contents[path] is not None
        return self._is_in_base.get(path, False) or self.was_shown(path)

    def write(self, path: str, content: Content | None) -> None:
        """Set the content of a path; None removes it."""
        if path not in self._is_in_base:
            self._is_in_base[path] = self.was_shown(path) or content is None
        self._contents[path] = content
        self._record_top_directory(path)

    def make_directory(self, path: str, *, new: bool = False) -> None:
        """Record a directory that the agent created; it is new if `new` is set or its name was never shown."""
        top = path.split("/")[0]
        if (
            top
            and not file_kinds.is_outside_repository(path)
            and top not in self._top_directories
            and (new or not self.was_shown(top))
        ):
            self._created_directories.add(top)

    def list_changed_paths(self) -> list[str]:
        """Paths that differ from the base commit."""
        return [path for path in self._contents if not self._matches_base(path)]

    def digest(self) -> str:
        """Digest of all differences from the base commit."""
        digests = sorted(
            (path, self._digest(self._contents[path]) or "") for path in self.list_changed_paths()
        )
        return hashlib.sha256(repr(digests).encode("utf-8", "surrogatepass")).hexdigest()

    def restore(self, path: str) -> None:
        """Restore a path to the base commit; a path that is not in the base commit is unchanged."""
        if self._is_in_base.setdefault(path, True):
            self.write(path, unknown_content(f"base:{path}"))

    def list_paths_under(self, prefix: str) -> list[str]:
        """The touched paths equal to or under `prefix`, which may contain `*`."""
        if prefix in ("", "."):
            return [path for path in self._contents if not file_kinds.is_outside_repository(path)]
        if "*" in prefix:
            pattern = re.compile(re.escape(prefix).replace(r"\*", "[^/]*"))
            return [path for path in self._contents if pattern.fullmatch(path)]
        return [
            path for path in self._contents if path == prefix or path.startswith(prefix.rstrip("/") + "/")
        ]

    def is_tracked(self, path: str) -> bool:
        """Whether a path exists in the base commit; assumed for unknown paths."""
        return self._is_in_base.get(path, True)

    def list_changes(
        self, contents_before: Mapping[str, Content | None], touched_paths: set[str]
    ) -> tuple[FileChange, ...]:
        """The changes of the touched paths since `contents_before`."""
        changes = []
        for path in sorted(touched_paths):
            old_content = contents_before[path] if path in contents_before else self._base_content(path)
            new_content = self._contents.get(path)
            old_digest, new_digest = self._digest(old_content), self._digest(new_content)
            if old_digest != new_digest:
                changes.append(FileChange(path=path, before=old_digest, after=new_digest))
        return tuple(changes)

    def _base_content(self, path: str) -> Content | None:
        return unknown_content(f"base:{path}") if self._is_in_base.get(path, True) else None

    def _digest(self, content: Content | None) -> str | None:
        return None if content is None else digest_content(content, self.known_lines)

    def _matches_base(self, path: str) -> bool:
        return self._digest(self._contents.get(path)) == self._digest(self._base_content(path))

    def was_shown(self, path: str) -> bool:
        """Whether an output contained a path as listings and searches print it, rather than within a sentence."""
        absolute = path if file_kinds.is_outside_repository(path) else posixpath.join(self.workspace, path)
        texts = [text for text in self._shown_texts if path in text]
        if not texts:
            return False
        names = f"(?:\\./)?{re.escape(path)}|{re.escape(absolute)}"
        pattern = re.compile(rf"(?:^|\s)(?:{names})/?(?=$|[\s:*/@])", re.M)
        return any(not _is_called_missing(text, found) for text in texts for found in pattern.finditer(text))

    def _record_top_directory(self, path: str) -> None:
        if not file_kinds.is_outside_repository(path) and "/" in path:
            self._top_directories.add(path.split("/")[0])


def _is_called_missing(text: str, found: re.Match[str]) -> bool:
    """Whether the line of a path says that it does not exist; a hit of a search does not."""
    end = text.find("\n", found.end())
    rest = text[found.end() : end if end >= 0 else len(text)][:_MAX_LINE_CHARS]
    if re.match(r":(?! )", rest):
        return False
    start = max(text.rfind("\n", 0, found.start() + 1) + 1, found.end() - _MAX_LINE_CHARS)
    return _MISSING.search(text[start : found.end()] + rest) is not None
