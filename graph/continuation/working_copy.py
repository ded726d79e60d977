"""What a capture saves of a working tree: which files, which of them not, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from langgraph_takeover.graph.continuation.git_directories import GitDirectories
from langgraph_takeover.graph.continuation.repository import Repository, list_tracked, read_blob, run_git
from langgraph_takeover.graph.errors import CaptureError
from langgraph_takeover.handoff.records.left_out import NOT_SAVED
from langgraph_takeover.sandbox.backends.checkouts import Listing, Part, list_tree, measure
from langgraph_takeover.sandbox.repository import LeftOut

_HISTORY = re.compile(r"\.git/(?:objects|refs|HEAD|index|packed-refs|config|shallow)(?:/|$)|\.git/$")
_PROBE = "\1"
_LINK_MODE, _PROGRAM_MODE = "120000", "100755"


class WorkingCopy:
    """The files of a repository that a capture saves. `scratch` gets what stands for files that cannot be copied."""

    def __init__(
        self,
        repository: Repository,
        scratch: Path,
        exclude: Sequence[str] = (),
        git_files: Mapping[str, bytes] = {},
    ) -> None:
        """`exclude` has patterns in the syntax of `.gitignore`; `git_files` are added to `.git`. Raises CaptureError."""
        self._repository = repository
        self._scratch = scratch
        self._git = GitDirectories(repository.root, scratch, git_files)
        self._roots: tuple[Part, ...] = (Part(repository.root),)
        self._patterns = self._write_patterns(exclude)
        self._tracked = frozenset(list_tracked(repository.root)) if exclude else frozenset[str]()
        self.kept_tracked: tuple[str, ...] = ()
        """Tracked files that a pattern names: a pattern excludes untracked and ignored files only, as in git."""
        self._excluded: dict[str, list[int]] = {}
        self.listing = self.list_all()
        self._require_history(self.listing.omitted)
        self._stand_ins = self._save_stand_ins()
        self.unread_tracked = tuple(self._stand_ins)
        """Tracked files that cannot be read: the patch lacks the changes to them."""

    def list_all(self) -> Listing:
        """List the files as they are now."""
        listing = list_tree(self._roots, self._git.open)
        return self._exclude(listing) if self._patterns is not None else listing

    @property
    def sources(self) -> tuple[str, ...]:
        """Git directories and object stores outside the tree that the copy has in its own."""
        return self._git.sources

    def list_left_out(self) -> tuple[LeftOut, ...]:
        """List what the snapshot lacks, with the reason: tracked files first, then others, then excluded ones."""
        found = [
            (path, f"{NOT_SAVED}: {reason}; git tracks it, so the copy has the staged version")
            for path, reason in self._stand_ins.items()
        ]
        found += [(path, f"{NOT_SAVED}: {reason}") for path, reason in self.listing.omitted.items()]
        for path, (count, size) in sorted(self._excluded.items()):
            counted = f"{count:,} file{'s' * (count != 1)}, " if path.endswith("/") else ""
            found.append((path, f"{NOT_SAVED}: excluded, {counted}{size:,} bytes"))
        return tuple(LeftOut(path=escape_name(path), reason=reason) for path, reason in found)

    def _require_history(self, omitted: Iterable[str]) -> None:
        for path in omitted:
            if _HISTORY.match(path):
                raise CaptureError(
                    f"{self._repository.root / path}: {self.listing.omitted[path]} (without it the copy has no history: make it "
                    "readable)"
                )

    def _save_stand_ins(self) -> dict[str, str]:
        """Save the staged version of tracked files that cannot be read, so that the patch does not delete them."""
        unread = {path: reason for path, reason in self.listing.omitted.items() if "mode " in reason}
        if not unread:
            return {}
        found = {}
        root = self._repository.root
        tracked = list_tracked(root, (path.rstrip("/") for path in unread))
        saved = {each.path for each in self.listing.entries}
        for path, blob in tracked.items():
            if path in saved:
                continue
            reason = next(unread[each] for each in (path, *_list_parents(path)) if each in unread)
            if blob:
                mode, name = blob.split(" ")
                _write_blob(self._scratch / "staged" / path, mode, read_blob(root, name))
                found[path] = reason
            else:
                self.listing.omitted[path] = f"{reason}; git tracks it, so the patch deletes it"
        if found:
            self._roots = (Part(self._scratch / "staged"), *self._roots)
            omitted = {path: reason for path, reason in self.listing.omitted.items() if path not in found}
            self.listing = self.list_all()._replace(omitted=omitted)
        return found

    def _write_patterns(self, exclude: Sequence[str]) -> Path | None:
        if not exclude:
            return None
        for pattern in exclude:
            if not pattern.strip() or "\n" in pattern or "\0" in pattern:
                raise CaptureError(
                    f"--exclude: {pattern!r:.60}: not a pattern (as in .gitignore: node_modules/, *.img)"
                )
        file = self._scratch / "patterns"
        file.write_text("".join(f"{pattern}\n" for pattern in exclude), errors="surrogateescape")
        (self._scratch / "empty").mkdir()
        run_git(self._scratch / "empty", "init", "-q", "--template=")
        return file

    def _exclude(self, listing: Listing) -> Listing:
        """Leave out what a pattern names and git does not track."""
        asked = {each.path: each for each in listing.entries if not f"{each.path}/".startswith(".git/")}
        # A pattern that ends with a slash names a directory, and so what is in it.
        probes = {
            path: f"{path}/{_PROBE}" if each.kind == "directory" else path for path, each in asked.items()
        }
        probes |= {path: f"{path}{_PROBE}" if path.endswith("/") else path for path in listing.omitted}
        matched = self._match(probes.values())
        named = {path for path, probe in probes.items() if probe in matched}
        self.kept_tracked = tuple(sorted(named & self._tracked))
        files = {path for path, each in asked.items() if each.kind != "directory"}
        dropped = (named & files) - self._tracked
        above = {parent for path in dropped for parent in _list_parents(path)}
        empty = {f"{path}/" for path in named - files}
        left = above | empty
        kept = {
            parent
            for path in asked
            if path not in dropped and f"{path}/" not in left
            for parent in (f"{path}/", *_list_parents(path))
        }
        gone = left - kept
        self._excluded = {}
        for path in dropped:
            top = next((each for each in reversed(_list_parents(path)) if each in gone), path)
            total = self._excluded.setdefault(top, [0, 0])
            total[0] += 1
            total[1] += measure(asked[path])
        return Listing(
            [each for each in listing.entries if each.path not in dropped and f"{each.path}/" not in gone],
            {path: reason for path, reason in listing.omitted.items() if path not in named},
        )

    def _match(self, paths: Iterable[str]) -> set[str]:
        """Return the paths that a pattern names."""
        text = "".join(f"./{path}\0" for path in paths).encode(errors="surrogateescape")
        options = ("-c", f"core.excludesFile={self._patterns}")
        output = run_git(
            self._scratch / "empty",
            "check-ignore",
            "--no-index",
            "-z",
            "--stdin",
            whole=True,
            stdin=text,
            options=options,
        )
        return {path.removeprefix("./") for path in output.split("\0")[:-1]}


def _list_parents(path: str) -> list[str]:
    """List the directories above a path, the innermost first, each with a slash."""
    return [f"{parent}/" for parent in map(str, PurePosixPath(path).parents) if parent != "."]


def _write_blob(target: Path, mode: str, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if mode == _LINK_MODE:
        target.symlink_to(content.decode(errors="surrogateescape"))
        return
    target.write_bytes(content)
    target.chmod(0o755 if mode == _PROGRAM_MODE else 0o644)


def escape_name(path: str) -> str:
    """Return a path as text; bytes that are not UTF-8 become escapes."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")
