"""The files of an imported run: what each holds, followed from action to action as far as that can be known."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence

from langgraph_takeover.handoff.readers.inference.content import (
    Content,
    KnownLines,
    digest_content,
    full_text,
    unknown_content,
)
from langgraph_takeover.handoff.trace import file_kinds
from langgraph_takeover.sandbox.interface import FileChange


class InferredFiles:
    """What is known of a file system that nobody kept: it is changed by actions, and known by what was shown.

    A path is relative to the repository inside it and absolute outside it, as in `FileChange`.
    """

    def __init__(self, workspace: str, *, keeps_directory: bool) -> None:
        self.workspace = posixpath.normpath(workspace)
        self.known_lines = KnownLines()
        self.cwd = "" if keeps_directory else None
        self._keeps_directory = keeps_directory
        self._contents: dict[str, Content | None] = {}
        self._is_in_base: dict[str, bool] = {}
        """Whether a path that was touched is one of the base commit's."""
        self._stashes: list[dict[str, Content | None]] = []
        self._shown_texts: list[str] = []
        self._created_directories: set[str] = set()
        self._top_directories: set[str] = set()
        self.replaced_contents: dict[str, list[Content | None]] = {}
        """What the editor's calls replaced, for it to bring back."""
        self.diffs: dict[str, dict[str, Content | None]] = {}
        """The contents of the changed files when `git diff` was written to this path."""

    def enter_directory(self, directory: str) -> None:
        """The shell is known to stand in this directory."""
        if self._keeps_directory:
            self.cwd = self.resolve_path(directory) if directory.startswith("/") else directory

    def set_directory(self, directory: str | None) -> None:
        """The shell stands there after a command; None where nobody knows."""
        if self._keeps_directory:
            self.cwd = directory

    def apply_reported_changes(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        """Take changes over that the recording itself tells, and name their paths as changes do."""
        changes = [change.model_copy(update={"path": self.resolve_path(change.path)}) for change in changes]
        for change in changes:
            if change.before is None and change.path not in self._is_in_base:
                self._is_in_base[change.path] = False
            elif change.path not in self._is_in_base:
                self._is_in_base[change.path] = True
            self._contents[change.path] = (
                None if change.after is None else unknown_content(f"told:{change.after}")
            )
            self._record_top_directory(change.path)
        return tuple(changes)

    def add_shown_text(self, text: str) -> None:
        """Something that the agent was shown."""
        self._shown_texts.append(text)

    def list_base_directories(self) -> tuple[str, ...]:
        """The top-level directories that were there before the agent made any."""
        return tuple(sorted(self._top_directories - self._created_directories))

    def resolve_path(self, path_text: str, cwd: str | None = None) -> str:
        """A path as an agent writes it, as changes name it."""
        path_text = path_text.strip()
        if path_text.startswith("~"):
            path_text = "/root" + path_text[1:]
        where = cwd if cwd is not None else self.cwd or ""
        if not path_text.startswith("/"):
            path_text = posixpath.join(where, path_text)
        if not path_text.startswith("/"):
            path_text = posixpath.join(self.workspace, path_text)
        whole = posixpath.normpath(path_text)
        inside = self.workspace.rstrip("/") + "/"
        return whole.removeprefix(inside) if whole != self.workspace else ""

    def content(self, path: str) -> Content | None:
        """What a path holds now; a path that nobody touched holds what the base commit has there."""
        if path in self._contents:
            return self._contents[path]
        return unknown_content(f"base:{path}")

    def text(self, path: str) -> str | None:
        """The whole text of a file, if it is known."""
        held = self.content(path)
        return None if held is None else full_text(held, self.known_lines)

    @property
    def touched_contents(self) -> Mapping[str, Content | None]:
        """Every path that an action was about, with what it holds."""
        return self._contents

    def mark_base_file(self, path: str) -> None:
        """A path that nobody made must be one of the base commit's."""
        self._is_in_base.setdefault(path, True)

    def exists(self, path: str) -> bool:
        """Whether a path is there: an untouched one is, if it was shown or is not newly made."""
        if path in self._contents:
            return self._contents[path] is not None
        return self._is_in_base.get(path, False) or self.was_shown(path)

    def write(self, path: str, content: Content | None) -> None:
        """A path comes to hold something; None removes it."""
        if path not in self._is_in_base:
            self._is_in_base[path] = self.was_shown(path) or content is None
        self._contents[path] = content
        self._record_top_directory(path)

    def make_directory(self, path: str, *, new: bool = False) -> None:
        """The agent made a directory, which was not there before if it is `new` or was never shown."""
        top = path.split("/")[0]
        if (
            top
            and not file_kinds.is_outside_repository(path)
            and top not in self._top_directories
            and (new or not self.was_shown(top))
        ):
            self._created_directories.add(top)

    def list_changed_paths(self) -> list[str]:
        """The paths that differ from the base commit."""
        return [path for path in self._contents if not self._matches_base(path)]

    def digest(self) -> str:
        """One digest of everything that differs from the base commit."""
        held = sorted((path, self._digest(self._contents[path]) or "") for path in self.list_changed_paths())
        return hashlib.sha256(repr(held).encode("utf-8", "surrogatepass")).hexdigest()

    def restore(self, path: str) -> None:
        """A path comes to hold what the base commit has there; one that it does not have stays."""
        if self._is_in_base.setdefault(path, True):
            self.write(path, unknown_content(f"base:{path}"))

    def list_paths_under(self, prefix: str) -> list[str]:
        """The touched paths that are a path or lie under it."""
        if prefix in ("", "."):
            return [path for path in self._contents if not file_kinds.is_outside_repository(path)]
        if "*" in prefix:
            pattern = re.compile(re.escape(prefix).replace(r"\*", "[^/]*"))
            return [path for path in self._contents if pattern.fullmatch(path)]
        return [
            path for path in self._contents if path == prefix or path.startswith(prefix.rstrip("/") + "/")
        ]

    def is_tracked(self, path: str) -> bool:
        return self._is_in_base.get(path, True)

    def stash(self) -> None:
        changed = [path for path in self.list_changed_paths() if self._is_in_base.get(path, True)]
        self._stashes.append({path: self._contents[path] for path in changed})
        for path in changed:
            self.restore(path)

    def unstash(self, *, keep: bool) -> None:
        if self._stashes:
            saved = self._stashes[-1] if keep else self._stashes.pop()
            for path, held in saved.items():
                self.write(path, held)

    def list_changes(
        self, contents_before: Mapping[str, Content | None], touched_paths: set[str]
    ) -> tuple[FileChange, ...]:
        """What differs at the touched paths from what they held before, as the detectors want it."""
        changes = []
        for path in sorted(touched_paths):
            was = contents_before[path] if path in contents_before else self._base_content(path)
            now = self._contents.get(path)
            first, last = self._digest(was), self._digest(now)
            if first != last:
                changes.append(FileChange(path=path, before=first, after=last))
        return tuple(changes)

    def _base_content(self, path: str) -> Content | None:
        return unknown_content(f"base:{path}") if self._is_in_base.get(path, True) else None

    def _digest(self, content: Content | None) -> str | None:
        return None if content is None else digest_content(content, self.known_lines)

    def _matches_base(self, path: str) -> bool:
        return self._digest(self._contents.get(path)) == self._digest(self._base_content(path))

    def was_shown(self, path: str) -> bool:
        """Whether the agent was shown a name as listings and searches show one, rather than in a sentence."""
        absolute = path if file_kinds.is_outside_repository(path) else f"{self.workspace}/{path}"
        names = f"(?:\\./)?{re.escape(path)}|{re.escape(absolute)}"
        pattern = re.compile(rf"(?:^|\s)(?:{names})/?(?=$|[\s:*/@])", re.M)
        return any(pattern.search(text) for text in self._shown_texts if path in text)

    def _record_top_directory(self, path: str) -> None:
        if not file_kinds.is_outside_repository(path) and "/" in path:
            self._top_directories.add(path.split("/")[0])
