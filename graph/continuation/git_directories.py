"""The git directories of a working tree, as a copy needs them: complete, and without a path to the original.

A linked worktree or a submodule keeps its history elsewhere. Its copy gets a git directory of its own, merged from all
places: the worktree's own files, the shared ones of its main repository, and the objects of alternates.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from langgraph_takeover.base.untrusted_input import read_untrusted_head
from langgraph_takeover.graph.continuation.repository import GIT_TIMEOUT_S, git_environment
from langgraph_takeover.graph.errors import CaptureError
from langgraph_takeover.sandbox.backends.checkouts import Mounts, Part
from langgraph_takeover.sandbox.untrusted_trees import list_directory

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
