"""Random repositories with random changes: a patch makes the same files, or names what it cannot carry."""

from __future__ import annotations

import os
import random
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec
from langgraph_takeover.sandbox.repository import head_commit, merge, patch_since

from ..random_examples import examples

Files = dict[str, tuple[str, bytes]]

SETTINGS = (
    "git config core.fileMode false",
    "git config core.autocrlf true",
    "git config core.autocrlf input",
    "git config core.quotePath true",
    "git config diff.external false",
    "git config diff.noprefix true",
    "git config submodule.recurse true",
    "git config diff.ignoreSubmodules all",
    "git config core.symlinks false",
    "git config core.ignoreCase true",
    "echo 'd*' > .git/info/exclude",
    "printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    "git config filter.up.clean 'tr a-z A-Z'; git config filter.up.smudge 'tr A-Z a-z'",
    "git config filter.x.clean false; git config filter.x.required true",
)
ATTRIBUTES = ("* text=auto", "*.txt eol=crlf", "*.py -diff", "* text", "*.txt ident", "*.up filter=up")
ATTRIBUTES += ("*.c filter=x", "* -text")
NAMES = ("a.py", "b.txt", "c.c", "d e", "ü.txt", "q'uo\"te", "-n", "$HOME", "x.log", "[g]", "tab\tin")
NAMES += ("sub.up", ":(top)z", "new\nline")
CONTENTS = (b"", b"one\n", b"one\ntwo\nthree\n", b"no newline", b"a\r\nb\r\n", b"mixed\r\nb\n")
CONTENTS += (b"\x00\x01bin", b"caf\xe9\n", b"$Id$\n", b"ABC\n")
GIT = (
    "git -c user.name=t -c user.email=t@example.org -c protocol.file.allow=always -c core.hooksPath=/dev/null"
)
GIT_COMMANDS = (f"git add -A; {GIT} stash -q", f"{GIT} checkout -q -b side", "git rm -r -q --cached . ")
GIT_COMMANDS += ("git reset -q", "rm -f .git/index")


class Builder:
    """Makes a repository and changes it, each by one shell script."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._modules = 0

    def write_files(self, into: str, count: int) -> list[str]:
        """Commands that write files below a directory."""
        lines = []
        for _ in range(count):
            place = self.random.choice(("", "dir/", "dir/deep/", "Other/"))
            lines.append(self.write(f"{into}/{place}{self.random.choice(NAMES)}"))
        return lines

    def write(self, path: str) -> str:
        content = "".join(f"\\x{byte:02x}" for byte in self.random.choice(CONTENTS))
        quoted = quote(path)
        place = f"mkdir -p {quote(path.rpartition('/')[0] or '.')} && rm -rf {quoted} && "
        kind = self.random.random()
        if kind < 0.1:
            return f"{place} ln -s -- {quote(self.random.choice(NAMES))} {quoted}"
        return f"{place} printf '{content}' > {quoted}" + (f" && chmod +x {quoted}" if kind > 0.85 else "")

    def make_module(self, place: str, depth: int) -> list[str]:
        """Commands that make a repository, perhaps with submodules."""
        lines = [f"git init -q {quote(place)}", *self.write_files(place, self.random.randrange(1, 5))]
        if self.random.random() < 0.4:
            lines.append(f"echo '*.log' > {quote(place)}/.gitignore")
        lines.append(
            f"(cd {quote(place)} && {GIT} add -A{self.random.choice(('', 'f'))} && {GIT} commit -q --allow-empty -m m)"
        )
        for _ in range(self.random.choice((0, 0, 1, 2)) if depth else 0):
            self._modules += 1
            source = f"../module{self._modules}"
            name = f"{self.random.choice(('m', 'dir/m', 'm m'))}{self._modules}"
            lines += self.make_module(source, depth - 1)
            add = f'submodule --quiet add "$root"/{source} {quote(name)}'
            lines.append(f'(root="$PWD"; cd {quote(place)} && {GIT} {add} && {GIT} commit -qm s)')
        return lines

    def make_repository(self) -> str:
        """The script of a whole repository in the current directory."""
        lines = []
        if self.random.random() < 0.4:
            lines.append(f"echo {quote(self.random.choice(ATTRIBUTES))} > .gitattributes")
        lines += self.make_module(".", 2)
        lines.append(
            f"{GIT} submodule --quiet update --init --recursive; {GIT} add -A; {GIT} commit -qm base"
        )
        lines.append("git clean -fdxq; git submodule --quiet foreach --recursive git clean -fdxq")
        for _ in range(self.random.choice((0, 0, 1, 2))):
            lines.append(self.random.choice(SETTINGS))
        if self.random.random() < 0.15:
            lines.append("git sparse-checkout set dir" + self.random.choice(("", " --sparse-index")))
        if self.random.random() < 0.15:
            lines.append(
                "git ls-files -z --stage . | grep -zv ^160000 | cut -zf2 | xargs -0 rm -f; git checkout -q -f . || :"
            )
        return "\n".join(f"{{ {line}; }} || :" for line in lines)

    def make_changes(self, existing: list[str]) -> str:
        """The script of an agent's changes."""
        lines = []
        places = ["."] + [each for each in existing if each.endswith("/")]
        files = [each for each in existing if not each.endswith("/")]
        for _ in range(self.random.randrange(1, 7)):
            kind = self.random.randrange(13)
            place = self.random.choice(places)
            path = self.random.choice(files) if files else "a.py"
            quoted = quote(f"./{path}")
            if kind < 3:
                lines.append(f"printf 'more\\n' >> {quoted}")
            elif kind == 3:
                lines += self.write_files(place, self.random.randrange(1, 4))
            elif kind == 4:
                lines.append(f"rm -rf {quoted}")
            elif kind == 5:
                lines.append(f"chmod {self.random.choice(('+x', '-x'))} {quoted}")
            elif kind == 6:
                lines.append(self.write(f"./{path}"))
            elif kind == 7:
                inner = f"{place}/{self.random.choice(('inner', 'dir', 'in ner'))}"
                commit = f"&& (cd {quote(inner)} && {GIT} add -A && {GIT} commit -q --allow-empty -m i)"
                lines.append(f"git init -q {quote(inner)} {commit if self.random.random() < 0.5 else ''}")
                lines += self.write_files(inner, 2)
            elif kind == 8:
                lines.append(f"(cd {quote(place)} && {GIT} add -A && {GIT} commit -qm work)")
            elif kind == 9:
                lines.append(self.random.choice(GIT_COMMANDS))
            elif kind == 10 and place != ".":
                lines.append(f"rm -rf {quote(place)}" + self.random.choice(("", "/.git")))
            elif kind == 11:
                lines.append(f"mv {quoted} {quote(f'./{path}.moved')}")
            else:
                lines.append(f"rm -rf {quoted}; mkdir -p {quoted} && printf x > {quoted}/x")
        return "\n".join(f"{{ {line}; }} || :" for line in lines)


def quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def shell(directory: Path, script: str) -> None:
    environment = {**os.environ, "HOME": str(directory.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["bash", "-c", script], cwd=directory, env=environment, capture_output=True, check=False)


def read_files(directory: Path) -> Files:
    """Every file but git's own: its kind and mode, and its content."""
    found = {}
    for place, directories, names in os.walk(directory):
        if ".git" in directories:
            directories.remove(".git")
        for path in (Path(place, name) for name in (*names, *directories) if name != ".git"):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[str(path.relative_to(directory))] = ("link", os.fsencode(path.readlink()))
            elif stat.S_ISREG(mode):
                kind = "program" if mode & 0o100 else "file"
                found[str(path.relative_to(directory))] = (kind, path.read_bytes())
    return found


def list_tracked(directory: Path) -> set[str]:
    """The files of the commit and of its submodules' commits."""
    command = ["git", "ls-files", "-z", "--recurse-submodules"]
    done = subprocess.run(command, cwd=directory, capture_output=True, check=True)
    return set(map(os.fsdecode, done.stdout.split(b"\0")))


def list_ignored(directory: Path) -> set[str]:
    """The files that git ignores; repositories inside count as directories."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(directory, copy, symlinks=True, dirs_exist_ok=True)
        shell(Path(copy), "find . -name .git -exec rm -rf {} +; git init -q; git add -A")
        return read_files(directory).keys() - list_tracked(Path(copy))


@pytest.fixture(scope="module")
def live_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    root = tmp_path_factory.mktemp("random") / "repository"
    root.mkdir()
    shell(root, f"git init -q; {GIT} commit -q --allow-empty -m start")
    found = sandbox.start(SandboxSpec(backend="process", directory=root, owner="test-random"))
    yield found
    found.close()


def replace_directory(directory: Path, source: Path) -> None:
    """Make a directory a copy of another, and keep the directory itself."""
    shell(directory, f"find . -mindepth 1 -delete; cp -a {quote(str(source))}/. .")


def read_settings(base: Path) -> tuple[str, str]:
    """A repository's configuration and attributes."""
    config = (base / ".git" / "config").read_text().lower()
    return config, "".join(
        path.read_text(errors="replace") for path in base.rglob(".gitattributes") if path.is_file()
    )


def normalize(files: Files, config: str, attributes: str) -> Files:
    """Without what the settings of a repository convert: line endings and identities, modes, and links."""

    def convert(kind: str, text: bytes) -> tuple[str, bytes]:
        if ("filemode = false" in config and kind == "program") or "symlinks = false" in config:
            kind = "file"
        if "autocrlf" in config or " text" in attributes or "eol" in attributes:
            text = text.replace(b"\r\n", b"\n")
        if "filter" in attributes:
            text = text.upper()
        return kind, re.sub(rb"\$Id[^$\n]*\$", b"$Id$", text) if "ident" in attributes else text

    return {path: convert(*found) for path, found in files.items()}


class Case:
    """A random repository, and agents that change copies of it in a sandbox."""

    def __init__(self, live_sandbox: Sandbox, parent: Path, seed: int) -> None:
        shutil.rmtree(parent, ignore_errors=True)
        self.builder, self.base, self._parent = Builder(seed), parent / "base", parent
        self._sandbox, self.workspace = live_sandbox, Path(live_sandbox.workspace)
        self.base.mkdir(parents=True)
        shell(self.base, self.builder.make_repository())
        self.before, self.tracked = read_files(self.base), list_tracked(self.base)
        self.settings = read_settings(self.base)
        replace_directory(self.workspace, self.base)
        self.commit = head_commit(live_sandbox)
        self.unknown: set[str] = set()
        """The files that a patch need not have: git ignores them, or it was named what is left out."""

    def change(self, name: str, source: Path) -> tuple[Files, str]:
        """Change a copy of a directory; return its files, and its patch since the base."""
        directory = self._parent / name
        shutil.copytree(source, directory, symlinks=True)
        existing = read_files(directory)
        directories = sorted({f"{path.rpartition('/')[0]}/" for path in existing if "/" in path})
        shell(directory, self.builder.make_changes([*existing, *directories]))
        files = read_files(directory)
        replace_directory(self.workspace, directory)
        patch = patch_since(self._sandbox, self.commit)
        assert read_files(self.workspace) == files, "reading changed the workspace"
        self.unknown |= {each.path for each in patch.left_out} | (list_ignored(directory) - self.tracked)
        return files, patch.text


def check_patch(live_sandbox: Sandbox, parent: Path, seed: int) -> None:
    case = Case(live_sandbox, parent, seed)
    files, patch = case.change("final", case.base)
    if patch:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, cwd=case.base, input=patch.encode(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    # The patch may have changed the attributes, too.
    settings = tuple(map("".join, zip(case.settings, read_settings(case.base), strict=True)))
    found, expected = normalize(read_files(case.base), *settings), normalize(files, *settings)
    wrong = {path for path in {*found, *expected} - case.unknown if found.get(path) != expected.get(path)}
    assert not wrong, {path: (found.get(path), expected.get(path)) for path in wrong}


def check_merge(live_sandbox: Sandbox, parent: Path, seed: int) -> None:
    """Two agents continue a third's work: what one of them changed is in the result, what both changed at least named."""
    case = Case(live_sandbox, parent, seed)
    start, _ = case.change("start", case.base)
    one, patch = case.change("one", parent / "start")
    two, other_patch = case.change("two", parent / "start")
    replace_directory(case.workspace, parent / "start")
    results = merge(live_sandbox, case.commit, [patch, other_patch])
    sides = (start, one, two, read_files(case.workspace))
    before, ours, theirs, merged = (normalize(side, *case.settings) for side in sides)
    named = {conflict.path for result in results for conflict in result.conflicts}
    wrong, changed_by_both = set(), set(named)
    for path in {*before, *ours, *theirs, *merged} - case.unknown:
        own, old, new, now = (side.get(path) for side in (ours, before, theirs, merged))
        if old in (own, new) or own == new:
            wrong |= {path} if now != (new if old == own else own) else set()
        else:
            changed_by_both.add(path)
            wrong |= {path} if now == own else set()
    # A file on one side and a directory on the other are one conflict.
    around = {path for path in wrong for each in changed_by_both if is_around(path, each)}
    assert not wrong - named - around, {
        path: [side.get(path) for side in (before, ours, theirs, merged)] for path in wrong
    }


def is_around(path: str, other: str) -> bool:
    return path.startswith(f"{other}/") or other.startswith(f"{path}/")


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(seed=st.integers(0, 2**32))
def test_a_patch_makes_the_same_files(
    live_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    check_patch(live_sandbox, tmp_path_factory.getbasetemp() / "patch", seed)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(seed=st.integers(0, 2**32))
def test_a_merge_makes_the_same_files(
    live_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    check_merge(live_sandbox, tmp_path_factory.getbasetemp() / "merge", seed)
