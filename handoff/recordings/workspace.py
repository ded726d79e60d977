"""The directory of the repository in a recorded run: the evidence, and the choice between contradicting evidence.

The kinds of evidence, the strongest first:

- `recorded`: the working directory that the recording states;
- `named`: the directory that the task names as the repository;
- `printed`: what `git rev-parse --show-toplevel` printed, and where `git clone` cloned to;
- `entered`: the directories of `cd` commands, of the recorded shell, and what `pwd` printed;
- `paths`: the paths of edits and, without edits, of other calls.

The strongest directory counts that contains most of the edits. A directory inside it replaces it if it contains most of
the edits too and is a repository of its own.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from langgraph_takeover.handoff.recordings.inferred_actions import find_directory_after, has_failed_cd
from langgraph_takeover.handoff.recordings.inferred_files import HOME
from langgraph_takeover.handoff.shell.syntax import SimpleCommand, is_absolute, normalize_path, resolve_path
from langgraph_takeover.handoff.shell.syntax_reader import parse_command

Evidence = Literal["recorded", "named", "printed", "entered", "paths"]
_STRENGTHS: tuple[Evidence, ...] = ("recorded", "named", "printed", "entered", "paths")
_REASONS: Mapping[Evidence, str] = {
    "recorded": "the recording states it",
    "named": "the task names it",
    "printed": "git printed it",
    "entered": "commands ran in it",
    "paths": "paths of calls are in it",
}
_TASK_NOTICE = re.compile(r"<uploaded_files>\s*(/\S+)|repository (?:in|at) (?:the directory )?(/[\w./-]+)")
_SYSTEM = re.compile(
    r"^/(?:usr(?!/src/)|etc|bin|sbin|lib|lib32|lib64|proc|sys|dev|boot|run|var(?!/www|/tmp))(?:/|$)"
    r"|^/opt/(?:mini)?conda|/(?:site|dist)-packages(?:/|$)|^(?:/[a-z])?/(?:root|home/[^/]+|Users/[^/]+)/\."
    r"|^/[a-z]/(?:Windows|Program Files[^/]*|ProgramData|Users/[^/]+/AppData)(?:/|$)"
)
"""Directories of programs and settings, which count as a repository only if the recording says so."""
_TEMPORARY = re.compile(
    r"(?:/private)?/(?:tmp|var/tmp|dev/shm)(?:/|$)|/[a-z]/Users/[^/]+/AppData/Local/Temp(?:/|$)"
)
_ROOTS = frozenset(("testbed", "app", "repo", "src", "code", "project", "workdir"))
"""Top-level directories that images use for one repository."""
_CONTAINER_DEPTHS = {
    "workspace": 1, "workspaces": 1, "work": 1, "projects": 1, "repos": 1, "root": 1, "data": 1, "opt": 1, "srv": 1, "mnt": 1,
    "tmp": 1, "home": 2, "Users": 2, "usr": 2, "var": 2,
}  # fmt: skip
"""Top-level directories that contain repositories, and the number of levels above the repositories."""
_GROUPS = frozenset(("project", "projects", "repos", "repositories", "git", "work", "dev", "code"))
"""Directories in a container that contain repositories."""
_DRIVE = re.compile(r"(?:/mnt|/cygdrive)?/[a-z](?=/)")
"""A drive of Windows, as its shells and its Linux name it."""
_KNOWN_TOPS = _ROOTS.union(_CONTAINER_DEPTHS)
_HOMES = frozenset(("home", "Users", "root"))
_SOURCE_NAMES = frozenset(
    ("src", "lib", "libs", "test", "tests", "testing", "spec", "doc", "docs", "scripts", "bin")
)
"""Directories that every repository has, so that none is a repository."""
_TOP_FILES = frozenset((
    ".git", "setup.py", "setup.cfg", "pyproject.toml", "package.json", "Cargo.toml", "go.mod", "pom.xml", "build.gradle",
    "CMakeLists.txt", "composer.json", "Gemfile", "LICENSE", "tox.ini",
))  # fmt: skip
"""Files in the top directory of a repository."""
_LOOKING = frozenset(
    (
        "cd",
        "pushd",
        "popd",
        "ls",
        "pwd",
        "find",
        "tree",
        "echo",
        "cat",
        "which",
        "env",
        "mkdir",
        "git",
        "head",
    )
)
"""Programs that run anywhere, so that they do not show where the agent works."""
_FILE_NAME = re.compile(r"\.[A-Za-z]\w{0,9}$")
_PARSED = re.compile(r"\b(?:cd|pushd|pwd|clone|toplevel|worktree|ls|find)\b|\bgit -C\b")
_MAX_ARGUMENT_CHARS = 4_000
_MAX_OUTPUT_CHARS = 20_000
_MAX_DIRECTORIES = 200
_MAX_CREATED = 2_000
_MAX_PATH_CHARS = 1_000


class Workspace(NamedTuple):
    """The directory of the repository in a run; empty if unknown."""

    path: str = ""
    why: str = ""
    """The evidence, in words."""
    start: str = ""
    """Absolute directory in which the shell began; empty if unknown."""


class WorkspaceEvidence:
    """Collects the evidence of a run, one call at a time.

    Args:
        recorded: working directory that the recording states; empty if none.
        task: the prompt of the run.
        keeps_directory: one shell ran all commands.

    Example:
        >>> evidence = WorkspaceEvidence()
        >>> evidence.add_call("shell", {"command": "cd /app && ls"}, "README")
        >>> evidence.select()
        Workspace(path='/app', why='commands ran in it', start='')
    """

    def __init__(self, recorded: str = "", task: str = "", *, keeps_directory: bool = True) -> None:
        self._kinds: dict[str, Evidence] = {}
        self._top_directories: set[str] = set()
        """Directories in which a call showed a file of `_TOP_FILES`."""
        self._mentioned: Counter[str] = Counter()
        self._work: Counter[str] = Counter()
        """Number of commands in each directory, without those that only look around."""
        self._edits: Counter[str] = Counter()
        """Number of edits of existing files in each directory."""
        self._new_files: Counter[str] = Counter()
        self._created: set[str] = set()
        """Files that the run created: later edits of them are not edits of existing files."""
        self._keeps_directory = keeps_directory
        self._start = self._directory = _join("", recorded)
        self._has_moved = False
        if self._start:
            self._add(self._start, "recorded")
        if (match := _TASK_NOTICE.search(task)) and (named := (match[1] or match[2]).rstrip("./")):
            self._add(normalize_path(named), "named")

    def add_call(
        self, tool: str, arguments: Mapping[str, str], output: str = "", directory: str | None = None
    ) -> None:
        """Add a call with its output; `directory` is the recorded one of the shell before the call."""
        if directory is not None and is_absolute(directory):
            self._directory = normalize_path(directory)
            self._begin_in(self._directory)
            self._add(self._directory, "entered")
        for name, value in arguments.items():
            for path in _list_absolute_paths(value[:_MAX_ARGUMENT_CHARS]):
                # Other words that start with a slash are usually code.
                if name == "path" or path.split("/", 2)[1] in _KNOWN_TOPS:
                    self._mention(path)
        if tool == "shell":
            self._add_command(arguments.get("command", ""), output[:_MAX_OUTPUT_CHARS])

    def add_edit(self, path: str, *, is_new: bool) -> None:
        """Add the absolute path of a file that a call changed or created."""
        if is_new and len(self._created) < _MAX_CREATED:
            self._created.add(path)
        is_new = is_new or path in self._created
        _count(self._new_files if is_new else self._edits, posixpath.dirname(path))

    def select(self, given: str = "") -> Workspace:
        """The directory that the evidence supports best; `given` overrules it."""
        if given:
            return Workspace(normalize_path(given), "given by the user", self._start)
        edits = self._leave_out_scratch(self._edits) or self._leave_out_scratch(self._new_files)
        stated = next((path for path, kind in self._kinds.items() if kind in ("recorded", "named")), "")
        if not edits and not stated:
            # An agent that edits existing files works on them, also in a temporary directory.
            edits = self._list_entered_edits()
        votes = edits or self._leave_out_scratch(self._mentioned) or self._edits + self._new_files
        holders = [path for path in self._kinds if 2 * _count_inside(votes, path) > votes.total()]
        chosen = stated if not edits else ""
        chosen = chosen or min(holders, key=lambda path: self._rank(path, votes), default="")
        guess = self._guess(votes)
        base = chosen or guess or stated
        if not base:
            return Workspace()
        path = self._find_inner(base, [*holders, *filter(None, [guess])], votes)
        why = _REASONS[self._kinds.get(path, "paths")]
        if stated and not is_below(path, stated):
            why += f"; most edits are not in {stated}, although {_REASONS[self._kinds[stated]]}"
        return Workspace(path, why, self._start)

    def _leave_out_scratch(self, counts: Counter[str]) -> Counter[str]:
        """The counts without temporary and system directories, except repositories in them."""
        known = [path for path, kind in self._kinds.items() if kind != "entered" and is_scratch(path)]
        return Counter(
            {path: number for path, number in counts.items()
             if not is_scratch(path) or any(is_below(path, each) for each in known)}
        )  # fmt: skip

    def _list_entered_edits(self) -> Counter[str]:
        """The edits in directories that commands entered, except the temporary directories themselves."""
        entered = [path for path in self._kinds if _TEMPORARY.sub("", path + "/", count=1).strip("/")]
        return Counter(
            {path: number for path, number in self._edits.items() if any(is_below(path, each) for each in entered)}
        )  # fmt: skip

    def _begin_in(self, directory: str) -> None:
        if not self._start:
            self._start = directory
            self._add(directory, "recorded")

    def _add(self, directory: str, kind: Evidence) -> None:
        known = self._kinds.get(directory)
        if known is None and len(self._kinds) >= _MAX_DIRECTORIES:
            return
        if known is None or _STRENGTHS.index(kind) < _STRENGTHS.index(known):
            self._kinds[directory] = kind

    def _add_repository(self, directory: str) -> None:
        self._add(directory, "printed")
        self._add_top_directory(directory)

    def _add_top_directory(self, directory: str) -> None:
        if len(self._top_directories) < _MAX_DIRECTORIES:
            self._top_directories.add(directory)

    def _mention(self, path: str) -> None:
        directory, name = posixpath.split(path)
        if name in _TOP_FILES:
            self._add_top_directory(directory)
        _count(self._mentioned, directory if _FILE_NAME.search(name) else path)

    def _add_command(self, command: str, output: str) -> None:
        before = self._directory
        commands = parse_command(command) if _PARSED.search(command) else ()
        named = [path for path in _list_absolute_paths(command[:_MAX_ARGUMENT_CHARS]) if not is_scratch(path)]
        if not commands:
            self._add_work(command.partition(" ")[0], before, named)
        listings = sum(simple.name in ("ls", "find") for simple in commands)
        has_failed = has_failed_cd(commands, output)
        for simple in commands:
            directory = _join(before, simple.cwd)
            if directory and simple.cwd is not None and not has_failed:
                self._add(directory, "entered")
            self._add_work(simple.name, directory, named)
            self._read_output(simple, directory, output, is_only_listing=listings == 1)
        if not commands or has_failed or self._directory != before:
            return
        after = find_directory_after(command, before or None)
        directory = _join("", after)
        if directory and directory != before:
            self._add(directory, "entered")
        if self._keeps_directory and after is not None:
            self._directory, self._has_moved = directory, True

    def _add_work(self, program: str, directory: str, named: list[str]) -> None:
        """Count a command as work in its directory or at a path in it that the command names, unless it only looks around."""
        if directory and program not in _LOOKING:
            _count(self._work, next((path for path in named if is_below(path, directory)), directory))

    def _read_output(
        self, simple: SimpleCommand, directory: str, output: str, *, is_only_listing: bool
    ) -> None:
        """Read the directories that a command printed, and the top directories that it listed."""
        if simple.name == "git":
            words = simple.argv[1:]
            if words[:1] == ("-C",) and len(words) > 1:
                directory, words = _join(directory, words[1]), words[2:]
                if directory:
                    self._add(directory, "entered")
            if "--show-toplevel" in words:
                for path in list(_list_printed_paths(output))[:1]:
                    self._add_repository(path)
            elif words[:1] == ("clone",) and (cloned := _find_clone(words[1:], directory)):
                self._add_repository(cloned)
            elif words[:2] == ("worktree", "add") and (added := _find_worktree(words[2:], directory)):
                self._add_repository(added)
        elif simple.name == "pwd":
            for path in list(_list_printed_paths(output))[:1]:
                self._add(path, "entered")
                if simple.cwd is None and not self._has_moved:
                    self._begin_in(path)
                if simple.cwd is None and self._keeps_directory:
                    self._directory = path
        elif simple.name == "find":
            for path in _list_printed_paths(output):
                if posixpath.basename(path) in _TOP_FILES:
                    self._add_top_directory(posixpath.dirname(path))
        elif simple.name == "ls" and is_only_listing:
            operands = [word for word in simple.argv[1:] if not word.startswith("-")]
            listed = _join(directory, operands[0] if operands else ".") if len(operands) < 2 else ""
            names = {
                line.rsplit(maxsplit=1)[-1].rstrip("/*@") for line in output.splitlines() if line.strip()
            }
            if listed and not _TOP_FILES.isdisjoint(names):
                self._add_top_directory(listed)

    def _rank(self, path: str, votes: Counter[str]) -> tuple[int, bool, int]:
        """The order of directories that contain most of the edits; of the directories of `cd`, the outermost comes first."""
        kind = self._kinds[path]
        depth = path.rstrip("/").count("/")
        is_container = kind == "entered" and self._is_container(path, votes)
        return (_STRENGTHS.index(kind), is_container, -depth if kind == "printed" else depth)

    def _is_container(self, path: str, votes: Counter[str]) -> bool:
        """Whether a directory probably only contains repositories."""
        is_above = _find_root(path) == path and _find_root(posixpath.join(path, "x")) != path
        return is_above and not votes[path] and path not in self._top_directories

    def _find_inner(self, base: str, paths: list[str], votes: Counter[str]) -> str:
        """The repository inside the directory, with most of the edits; else the directory itself."""
        inner = [path for path in paths if path != base and is_below(path, base)]
        for kind in ("printed", "named"):
            found = [path for path in inner if self._kinds.get(path) == kind]
            if found:
                return max(found, key=len)
        is_container = self._is_container(base, votes) and self._kinds.get(base) != "named"
        # A guess counts more than `cd` only where the depth of repositories is known.
        for path in sorted(
            inner, key=lambda path: (path not in self._kinds and not _is_known_top(path), len(path))
        ):
            is_source = posixpath.basename(path) in _SOURCE_NAMES and path.strip("/") not in _ROOTS
            if is_source or base in self._top_directories:
                continue
            if path in self._top_directories:
                return path
            work = _count_inside(self._work, path) if path in self._kinds else 1
            if is_container and work > self._work[base]:
                return path
        return base

    def _guess(self, votes: Counter[str]) -> str:
        """The directory of the repository by the directories of files alone; empty without files."""
        tops = [path for path in self._top_directories if 2 * _count_inside(votes, path) > votes.total()]
        if tops:
            return min(tops, key=len)
        roots: Counter[str] = Counter()
        for directory, number in votes.items():
            if not is_scratch(directory):
                roots[_find_root(directory)] += number
        return max(roots, key=lambda root: roots[root]) if roots else ""


def is_below(path: str, directory: str) -> bool:
    """Whether an absolute path is a directory or below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _count(counts: Counter[str], directory: str) -> None:
    if directory in counts or len(counts) < _MAX_DIRECTORIES:
        counts[directory] += 1


def _count_inside(counts: Counter[str], directory: str) -> int:
    return sum(number for path, number in counts.items() if is_below(path, directory))


def is_scratch(directory: str) -> bool:
    """Whether an absolute path is in a directory of temporary files, of programs or of settings."""
    return _TEMPORARY.match(directory) is not None or _SYSTEM.search(directory) is not None


def _is_known_top(path: str) -> bool:
    return path.split("/")[1] in _KNOWN_TOPS


def _find_root(directory: str) -> str:
    """The directory below the usual places of repositories; a directory above them is returned unchanged."""
    drive = _DRIVE.match(directory)
    prefix, directory = (drive[0], directory[drive.end() :]) if drive else ("", directory)
    parts = directory.strip("/").split("/")
    if parts[0] in _ROOTS or parts == [""]:
        return f"{prefix}/{parts[0]}"
    depth = _CONTAINER_DEPTHS.get(parts[0], 0)
    groups = _GROUPS | {"src"} if parts[0] in _HOMES else _GROUPS
    while 0 < depth < len(parts) and parts[depth] in groups:
        depth += 1
    if 0 < depth < len(parts) and parts[depth] in _SOURCE_NAMES:
        depth -= 1
    return f"{prefix}/{'/'.join(parts[: depth + 1])}"


def _join(directory: str, path: str | None) -> str:
    """The absolute directory of a command; empty if unknown."""
    joined = directory if path is None else resolve_path(path, directory or None)
    joined = HOME + joined[1:] if joined.startswith("~") else joined
    return joined if joined.startswith("/") and len(joined) <= _MAX_PATH_CHARS else ""


def _find_clone(words: Sequence[str], directory: str) -> str:
    operands = [word for word in words if not word.startswith("-")]
    if operands and "/" in operands[-1] and (":" in operands[-1] or operands[-1].endswith(".git")):
        return _join(directory, posixpath.basename(operands[-1].rstrip("/")).removesuffix(".git"))
    return _join(directory, operands[-1]) if operands else ""


def _find_worktree(words: Sequence[str], directory: str) -> str:
    """The directory that `git worktree add` makes: its first operand, which may follow the name of a new branch."""
    branches = {number + 1 for number, word in enumerate(words) if word in ("-b", "-B", "--reason")}
    operands = [word for n, word in enumerate(words) if not word.startswith("-") and n not in branches]
    return _join(directory, operands[0]) if operands else ""


def _list_printed_paths(output: str) -> Iterator[str]:
    """The lines of an output that are absolute paths."""
    for line in output.splitlines():
        path = line.strip()
        if is_absolute(path) and len(path) <= _MAX_PATH_CHARS and "\0" not in path:
            yield normalize_path(path)


def _list_absolute_paths(text: str) -> Iterator[str]:
    words = text.replace("'", " ").replace('"', " ").replace(";", " ").replace(")", " ").split()
    for word in words:
        if (word[0] in "/\\" or word[1:2] == ":") and is_absolute(word) and 1 < len(word) <= _MAX_PATH_CHARS:
            yield normalize_path(word.rstrip("/,:") or "/")
