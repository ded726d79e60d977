"""The files of an imported run: what each holds, followed from action to action as far as that can be known."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence

from handoff import paths
from handoff.inference import content as contents
from handoff.inference.content import Content, Knowledge
from sandbox.machine import FileChange


class Files:
    """What is known of a file system that nobody kept: it is changed by actions, and known by what was shown.

    A path is relative to the repository inside it and absolute outside it, as in `FileChange`.
    """

    def __init__(self, workspace: str, *, keeps_directory: bool) -> None:
        self.workspace = posixpath.normpath(workspace)
        self.known = Knowledge()
        self.cwd = "" if keeps_directory else None
        self._keeps_directory = keeps_directory
        self._now: dict[str, Content | None] = {}
        self._base: dict[str, bool] = {}
        """Whether a path that was touched is one of the base commit's."""
        self._stash: list[dict[str, Content | None]] = []
        self._texts: list[str] = []
        self._made: set[str] = set()
        self._tops: set[str] = set()
        self.replaced: dict[str, list[Content | None]] = {}
        """What the editor's calls replaced, for it to bring back."""
        self.diffs: dict[str, dict[str, Content | None]] = {}
        """The contents of the changed files when `git diff` was written to this path."""

    def enter(self, directory: str) -> None:
        """The shell is known to stand in this directory."""
        if self._keeps_directory:
            self.cwd = self.path(directory) if directory.startswith("/") else directory

    def leave(self, directory: str | None) -> None:
        """The shell stands there after a command; None where nobody knows."""
        if self._keeps_directory:
            self.cwd = directory

    def told(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        """Take changes over that the recording itself tells, and name their paths as changes do."""
        changes = [change.model_copy(update={"path": self.path(change.path)}) for change in changes]
        for change in changes:
            if change.before is None and change.path not in self._base:
                self._base[change.path] = False
            elif change.path not in self._base:
                self._base[change.path] = True
            self._now[change.path] = (
                None if change.after is None else contents.unknown(f"told:{change.after}")
            )
            self._see_top(change.path)
        return tuple(changes)

    def remember(self, text: str) -> None:
        """Something that the agent was shown."""
        self._texts.append(text)

    def base_directories(self) -> tuple[str, ...]:
        """The top-level directories that were there before the agent made any."""
        return tuple(sorted(self._tops - self._made))

    def path(self, written: str, cwd: str | None = None) -> str:
        """A path as an agent writes it, as changes name it."""
        written = written.strip()
        if written.startswith("~"):
            written = "/root" + written[1:]
        where = cwd if cwd is not None else self.cwd or ""
        if not written.startswith("/"):
            written = posixpath.join(where, written)
        if not written.startswith("/"):
            written = posixpath.join(self.workspace, written)
        whole = posixpath.normpath(written)
        inside = self.workspace.rstrip("/") + "/"
        return whole.removeprefix(inside) if whole != self.workspace else ""

    def content(self, path: str) -> Content | None:
        """What a path holds now; a path that nobody touched holds what the base commit has there."""
        if path in self._now:
            return self._now[path]
        return contents.unknown(f"base:{path}")

    def text(self, path: str) -> str | None:
        """The whole text of a file, if it is known."""
        held = self.content(path)
        return None if held is None else contents.text_of(held, self.known)

    @property
    def touched(self) -> Mapping[str, Content | None]:
        """Every path that an action was about, with what it holds."""
        return self._now

    def known_at_base(self, path: str) -> None:
        """A path that nobody made must be one of the base commit's."""
        self._base.setdefault(path, True)

    def exists(self, path: str) -> bool:
        """Whether a path is there: an untouched one is, if it was shown or is not newly made."""
        if path in self._now:
            return self._now[path] is not None
        return self._base.get(path, False) or self.shown(path)

    def write(self, path: str, held: Content | None) -> None:
        """A path comes to hold something; None removes it."""
        if path not in self._base:
            self._base[path] = self.shown(path) or held is None
        self._now[path] = held
        self._see_top(path)

    def make_directory(self, path: str, *, new: bool = False) -> None:
        """The agent made a directory, which was not there before if it is `new` or was never shown."""
        top = path.split("/")[0]
        if top and not paths.is_outside(path) and top not in self._tops and (new or not self.shown(top)):
            self._made.add(top)

    def changed_paths(self) -> list[str]:
        """The paths that differ from the base commit."""
        return [path for path in self._now if not self._at_base(path)]

    def digest(self) -> str:
        """One digest of everything that differs from the base commit."""
        held = sorted((path, self._digest(self._now[path]) or "") for path in self.changed_paths())
        return hashlib.sha256(repr(held).encode("utf-8", "surrogatepass")).hexdigest()

    def restore(self, path: str) -> None:
        """A path comes to hold what the base commit has there; one that it does not have stays."""
        if self._base.setdefault(path, True):
            self.write(path, contents.unknown(f"base:{path}"))

    def under(self, prefix: str) -> list[str]:
        """The touched paths that are a path or lie under it."""
        if prefix in ("", "."):
            return [path for path in self._now if not paths.is_outside(path)]
        if "*" in prefix:
            pattern = re.compile(re.escape(prefix).replace(r"\*", "[^/]*"))
            return [path for path in self._now if pattern.fullmatch(path)]
        return [path for path in self._now if path == prefix or path.startswith(prefix.rstrip("/") + "/")]

    def is_tracked(self, path: str) -> bool:
        return self._base.get(path, True)

    def stash(self) -> None:
        changed = [path for path in self.changed_paths() if self._base.get(path, True)]
        self._stash.append({path: self._now[path] for path in changed})
        for path in changed:
            self.restore(path)

    def unstash(self, *, keep: bool) -> None:
        if self._stash:
            saved = self._stash[-1] if keep else self._stash.pop()
            for path, held in saved.items():
                self.write(path, held)

    def changes(self, before: Mapping[str, Content | None], touched: set[str]) -> tuple[FileChange, ...]:
        """What differs at the touched paths from what they held before, as the detectors want it."""
        changes = []
        for path in sorted(touched):
            was = before[path] if path in before else self._original(path)
            now = self._now.get(path)
            first, last = self._digest(was), self._digest(now)
            if first != last:
                changes.append(FileChange(path=path, before=first, after=last))
        return tuple(changes)

    def _original(self, path: str) -> Content | None:
        return contents.unknown(f"base:{path}") if self._base.get(path, True) else None

    def _digest(self, held: Content | None) -> str | None:
        return None if held is None else contents.digest(held, self.known)

    def _at_base(self, path: str) -> bool:
        return self._digest(self._now.get(path)) == self._digest(self._original(path))

    def shown(self, path: str) -> bool:
        """Whether the agent was shown a name as listings and searches show one, rather than in a sentence."""
        absolute = path if paths.is_outside(path) else f"{self.workspace}/{path}"
        names = f"(?:\\./)?{re.escape(path)}|{re.escape(absolute)}"
        pattern = re.compile(rf"(?:^|\s)(?:{names})/?(?=$|[\s:*/@])", re.M)
        return any(pattern.search(text) for text in self._texts if path in text)

    def _see_top(self, path: str) -> None:
        if not paths.is_outside(path) and "/" in path:
            self._tops.add(path.split("/")[0])
