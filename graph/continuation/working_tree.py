"""What a capture saves of a working tree: its files, its git directories, and files with secrets."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from langgraph_takeover.base.untrusted_input import read_untrusted_head
from langgraph_takeover.graph.continuation.user_repository import (
    GIT_TIMEOUT_S,
    Repository,
    git_environment,
    list_tracked,
    read_blob,
    run_git,
)
from langgraph_takeover.graph.usage_errors import CaptureError
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.records.record_facts import NOT_SAVED
from langgraph_takeover.sandbox.backends.checkouts import Listing, Mounts, Part, list_tree, measure
from langgraph_takeover.sandbox.repository import LeftOut
from langgraph_takeover.sandbox.snapshots.transfer import read_contents
from langgraph_takeover.sandbox.untrusted_trees import list_directory

_SECRET_FILE = re.compile(
    r"(?:^|/)(?:\.env(?:\.[\w-]+)?|[^/]*\.(?:pem|p12|pfx|key)|id_(?:rsa|ed25519|ecdsa)|\.netrc|\.npmrc)$"
)
_HARMLESS_FILE = re.compile(r"\.(?:example|sample|template|dist)$")


def select_secret_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of a repository whose names are those of files that usually contain secrets."""
    return tuple(
        path
        for path in sorted(paths)
        if _SECRET_FILE.search(path) and not _HARMLESS_FILE.search(path) and not path.startswith(".git/")
    )


def list_secret_files(directory: Path) -> tuple[str, ...]:
    """Return those files of a record's snapshot. Raises RecordError, SnapshotCorruptError and SandboxUnavailableError."""
    snapshot = RecordStore(directory.parent).load(directory.name).snapshot
    return select_secret_files(read_contents(snapshot, directory).files) if snapshot is not None else ()


_MAX_POINTER_BYTES = 1 << 14
_MAX_CONFIG_BYTES = 1 << 20
_MAX_ALTERNATES, _MAX_MODULES = 50, 2000
_SHARED = frozenset(
    ("branches", "config", "description", "hooks", "info", "lfs", "annex", "logs", "lost-found", "objects", "packed-refs",
     "refs", "remotes", "rr-cache", "shallow", "svn")
)  # fmt: skip
"""What a worktree takes from its main repository."""
_OWN_REFS = ("bisect", "rewritten", "worktree")
_MAIN_ONLY = frozenset(
    (
        "logs/HEAD",
        "info/sparse-checkout",
        *(f"{top}refs/{name}" for top in ("", "logs/") for name in _OWN_REFS),
    )
)
"""Paths of shared directories that belong to the main working tree alone."""
_HIDDEN = frozenset(
    ("worktrees", "gitdir", "commondir", "locked", "objects/info/alternates", "objects/info/http-alternates",
     *(f"{name}.lock" for name in ("index", "HEAD", "config", "packed-refs", "shallow")))
)  # fmt: skip
"""What would name the original, or block the copy."""


def find_git_directory(place: Path) -> Path | None:
    """Return the git directory that a `.git` is or names; None if it names none."""
    if place.is_dir():
        return Path(os.path.realpath(place))
    text = _read(place, _MAX_POINTER_BYTES)
    if not text.startswith("gitdir:"):
        return None
    found = Path(os.path.realpath(place.parent / text.removeprefix("gitdir:").strip()))
    return found if found.is_dir() else None


def find_common_directory(git_directory: Path) -> Path:
    """Return the git directory with the history: the main repository's for a linked worktree, else the same."""
    named = _read(git_directory / "commondir", _MAX_POINTER_BYTES).strip()
    return Path(os.path.realpath(git_directory / named)) if named else git_directory


class GitDirectories:
    """Finds what stands for each `.git` of a working tree. New files go to a scratch directory.

    `files` are added to the `.git` at the top, by their paths in it.
    """

    def __init__(self, root: Path, scratch: Path, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._root = Path(os.path.realpath(root))
        self._scratch = scratch
        self._known: dict[str, Mounts] = {}
        self.sources: tuple[str, ...] = ()
        """Git directories and object stores outside the tree that are merged into it."""
        self._top = find_git_directory(self._root / ".git")

    def open(self, path: str, place: Path) -> Mounts:
        """Return the parts of a `.git` of the tree; none if it stays as it is, empty if it is left out. Raises CaptureError."""
        if path not in self._known:
            self._known[path] = self._build(path, place)
        return self._known[path]

    def _build(self, path: str, place: Path) -> Mounts:
        git_directory = find_git_directory(place)
        if git_directory is None or not (git_directory / "HEAD").exists():
            return {}
        if path != ".git" and not self._belongs(git_directory, place):
            return {path: ()}
        if self._top is not None and git_directory.is_relative_to(self._top / "modules"):
            # The submodule's history is in the copy of the superproject's git directory.
            target = os.path.relpath(f".git/{git_directory.relative_to(self._top)}", Path(path).parent)
            return {path: (Part(self._create_file(path, f"gitdir: {target}\n")),)}
        return self._merge(path, git_directory)

    def _belongs(self, git_directory: Path, place: Path) -> bool:
        """Whether a git directory is in the tree, in its own git directory, or names the working tree in turn.

        Others may be anybody's: a file in the tree alone must not bring another repository into the copy.
        """
        tops = (self._root, self._top, self._top and find_common_directory(self._top))
        if any(top is not None and git_directory.is_relative_to(top) for top in tops):
            return True
        back = _read(git_directory / "gitdir", _MAX_POINTER_BYTES).strip()
        files = _get_config(git_directory / "config", "core.worktree")
        return (bool(back) and os.path.realpath(git_directory / back) == os.path.realpath(place)) or (
            bool(files) and os.path.realpath(git_directory / files) == os.path.realpath(place.parent)
        )

    def _merge(self, path: str, git_directory: Path) -> Mounts:
        common = find_common_directory(git_directory)
        own = Part(git_directory, hidden=_HIDDEN)
        parts = (
            (own, Part(common, hidden=_HIDDEN | _MAIN_ONLY, only=_SHARED))
            if common != git_directory
            else (own,)
        )
        if common != git_directory and "reftable" in _read(common / "config", _MAX_CONFIG_BYTES):
            raise CaptureError(
                f"{git_directory}: a worktree whose references are in reftable format (first: git refs migrate "
                "--ref-format=files)"
            )
        scratch = self._scratch / f"git-{len(self._known)}"
        for name, directory in (("config", common), ("config.worktree", git_directory)):
            self._copy_config(directory / name, scratch / name, is_linked=common != git_directory)
        if git_directory == self._top:
            self._copy_module_configs(git_directory, scratch)
        for name, content in self._files.items() if path == ".git" else ():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(content)
        if scratch.exists():
            parts = (Part(scratch), *parts)
        stores = _list_alternates(common / "objects")
        places = {each for each in (git_directory, common, *stores) if not each.is_relative_to(self._root)}
        self.sources = tuple(sorted({*self.sources, *map(str, places)}))
        objects = (
            Part(common / "objects", hidden=_HIDDEN_STORE),
            *(Part(each, hidden=_STORE_INFO) for each in stores),
        )
        return {path: parts} | ({f"{path}/objects": objects} if stores else {})

    def _copy_config(self, config: Path, target: Path, *, is_linked: bool, worktree: str = "") -> None:
        """Write a configuration that does not name the original's files, if it does."""
        text = _read(config, _MAX_CONFIG_BYTES)
        if "worktree" not in text.lower() and not is_linked:
            return
        if not text:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, errors="surrogateescape")
        _edit_config(target, "--unset-all", "core.worktree")
        if worktree:
            _edit_config(target, "core.worktree", worktree)
        elif is_linked:
            _edit_config(target, "core.bare", "false")

    def _copy_module_configs(self, git_directory: Path, scratch: Path) -> None:
        """Let the git directories of submodules name their files in the copy."""
        waiting = [git_directory / "modules"]
        for _ in range(_MAX_MODULES):
            if not waiting:
                return
            directory = waiting.pop()
            if not (directory / "HEAD").is_file():
                waiting += [
                    each for each in list_directory(directory) if each.is_dir() and not each.is_symlink()
                ]
                continue
            waiting.append(directory / "modules") if (directory / "modules").is_dir() else None
            module = directory.relative_to(git_directory)
            named = _get_config(directory / "config", "core.worktree")
            files = Path(os.path.realpath(directory / named)) if named else self._root
            if named and files.is_relative_to(self._root):
                inside = os.path.relpath(files.relative_to(self._root), f".git/{module}")
                if inside != named:
                    target = scratch / module / "config"
                    self._copy_config(directory / "config", target, is_linked=False, worktree=inside)

    def _create_file(self, path: str, text: str) -> Path:
        target = self._scratch / f"pointer-{len(self._known)}"
        target.write_text(text, errors="surrogateescape")
        return target


_STORE_INFO = frozenset(("info",))
_HIDDEN_STORE = frozenset(("info/alternates", "info/http-alternates"))


def _list_alternates(objects: Path) -> list[Path]:
    """List the object stores that a store borrows from, directly or through others."""
    found: list[Path] = []
    waiting = [objects]
    while waiting:
        store = waiting.pop(0)
        for line in _read(store / "info" / "alternates", _MAX_CONFIG_BYTES).splitlines():
            borrowed = Path(os.path.realpath(store / line.strip('"')))
            if line.startswith("#") or not line or borrowed in (objects, *found):
                continue
            if not borrowed.is_dir():
                raise CaptureError(
                    f"{store}/info/alternates: the object store {borrowed} is missing (bring it back, or fetch the objects "
                    "again and remove the line)"
                )
            if len(found) >= _MAX_ALTERNATES:
                raise CaptureError(
                    f"{objects}: more than {_MAX_ALTERNATES} alternates (first: git repack -ad)"
                )
            found.append(borrowed)
            waiting.append(borrowed)
    return found


def _read(path: Path, max_bytes: int) -> str:
    try:
        return os.fsdecode(read_untrusted_head(path, max_bytes))
    except OSError:
        return ""


def _get_config(config: Path, name: str) -> str:
    return _run_config(config, "--get", name).stdout.rstrip("\n")


def _edit_config(config: Path, *arguments: str) -> None:
    done = _run_config(config, *arguments)
    if done.returncode not in (0, 5):  # 5: nothing to unset
        raise CaptureError(f"{config}: {done.stderr.strip()[:300]} (repair the repository's configuration)")


def _run_config(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "config", "--file", str(config), "--no-includes", *arguments],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        timeout=GIT_TIMEOUT_S,
        env=git_environment(),
    )


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
