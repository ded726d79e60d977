"""Detection of validations in command lines."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from langgraph_takeover.handoff.shell import syntax
from langgraph_takeover.handoff.shell.program_table import PROGRAMS
from langgraph_takeover.handoff.shell.runners import (
    Runner,
    ValidationKind,
    find_python_target,
    find_runner,
    may_be_runner,
)
from langgraph_takeover.handoff.shell.syntax import SimpleCommand, resolve_path
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.shell.wrappers import find_remote_script
from langgraph_takeover.handoff.text.word_search import contains_any
from langgraph_takeover.handoff.trace.file_kinds import is_outside_repository, is_script

LAUNCHERS = re.compile(r"\b(?:subprocess|os\.(?:system|popen))\b")
_LAUNCH_FUNCTIONS = {
    "run",
    "call",
    "check_call",
    "check_output",
    "Popen",
    "getoutput",
    "getstatusoutput",
    "system",
    "popen",
}
_MAX_CHARS = 100_000


@lru_cache(maxsize=64)
def list_launched_commands(text: str) -> tuple[SimpleCommand, ...]:
    """Commands launched with `subprocess` or `os.system`; the exit code of the program says nothing about them."""
    if LAUNCHERS.search(text) is None or len(text) > _MAX_CHARS:
        return ()
    try:
        tree = ast.parse(text)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(
        command._replace(exit_code_is_own=False, success_is_own=False)
        for call in calls
        if _function_name(call.func) in _LAUNCH_FUNCTIONS and call.args
        for command in _parse_argument(call.args[0])
    )


def _parse_argument(argument: ast.expr) -> Iterator[SimpleCommand]:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield from parse_command(argument.value)
    elif isinstance(argument, ast.List | ast.Tuple):
        words = [_parse_word(item) for item in argument.elts]
        if words and None not in words:
            yield SimpleCommand(argv=tuple(word for word in words if word is not None))


def _parse_word(item: ast.expr) -> str | None:
    if isinstance(item, ast.Constant) and isinstance(item.value, str):
        return item.value
    return "python" if isinstance(item, ast.Attribute) and item.attr == "executable" else None


def _function_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


_KINDS_BY_STRENGTH: tuple[ValidationKind, ...] = ("test", "reproduction", "lint", "build")
_INTERPRETERS = re.compile(
    r"(?:python|pypy)[\d.]*|(?:ba|z|da|k)?sh|source|\.|node|deno|bun|ts-node|tsx"
    r"|ruby|perl|php|lua|Rscript|julia|go|coverage"
)
_SCRIPT_RUNNING_MODULES = {"cProfile", "trace", "runpy", "pdb", "profile", "tracemalloc"}
_NO_FILE_OPTIONS = {
    **dict.fromkeys(("bash", "sh", "zsh", "dash", "ksh"), ("-n", "-c", "-lc")),
    "node": ("--check", "-c", "-e", "--eval", "-p"),
    "ruby": ("-c", "-e"),
    "perl": ("-c", "-e"),
    "php": ("-l", "-r"),
}
"""Options with which an interpreter runs no file."""
_VALUED_OPTIONS = {
    "node": ("--import", "-r", "--require", "--loader"),
    "ruby": ("-I", "-r"),
    "perl": ("-I", "-M"),
    "php": ("-d",),
}


_MAX_LAUNCHES = 100
_REPEATING_PROGRAMS = {"find", "fd", "parallel"}
"""Programs that run a command once for each file."""


class ValidationMatch(NamedTuple):
    """One validation in a command line."""

    kind: ValidationKind
    command: SimpleCommand
    position: int
    """Index of the simple command in its line."""
    runner: Runner | None
    """None for a script."""
    script: str | None
    """The script of a reproduction, by the path with which the predecessor created it; None for a project's program."""


class ShellLocation(NamedTuple):
    """Directory of the shell before a command line, and path of the repository; None and empty if unknown."""

    cwd: str | None = None
    workspace: str = ""

    def normalize_path(self, path: str, command: SimpleCommand) -> str:
        """Resolve a path of a command to the form used in file changes, as far as possible."""
        resolved = resolve_path(path, command.cwd)
        if self.cwd and not resolved.startswith(("/", "~")):
            resolved = posixpath.normpath(posixpath.join(self.cwd, resolved))
        prefix = self.workspace.rstrip("/") + "/" if self.workspace else ""
        return resolved.removeprefix(prefix) if prefix else resolved


_UNKNOWN_LOCATION = ShellLocation()


class OwnPrograms(NamedTuple):
    """The project's own command-line programs, and the files that the predecessor wrote as input for them."""

    names: frozenset[str] = frozenset()
    """Programs and packages; `sphinx` stands for `sphinx-build` and `python -m sphinx.cmd.build` too."""
    inputs: frozenset[str] = frozenset()
    base_directories: tuple[str, ...] = ()

    def may_run(self) -> bool:
        """Whether any program and any input is known."""
        return bool(self.names and self.inputs)

    def match(self, command: SimpleCommand, location: ShellLocation, before: SimpleCommand | None) -> bool:
        """Whether a command runs such a program on such an input; `before` is the command that pipes into it."""
        words = [command.name, *command.argv[1:]]
        if words[0].startswith(("python", "pypy")):
            words = find_python_target(words[1:]) or [""]
            words = words[1:] if words[0] == "-m" else words
            words[:1] = [posixpath.basename(word).removesuffix(".py").partition(".")[0] for word in words[:1]]
        program = "".join(words[:1])
        is_own = program in self.names or program.partition("-")[0] in self.names
        if not is_own or not _QUERY_WORDS.isdisjoint(words):
            return False
        is_piped = before is not None and before.name in ("echo", "printf")
        if command.stdin is not None or is_piped:
            return True
        operands = [word.partition("=")[2] if word.startswith("-") else word for word in words[1:]]
        operands += [r.target for r in command.redirects if r.operator == "<"]
        operands += [assignment.partition("=")[2] for assignment in command.environment]
        return any(self._is_input(location.normalize_path(word, command)) for word in operands if word)

    def _is_input(self, path: str) -> bool:
        if path in self.inputs:
            return True
        is_new = is_outside_repository(path) or path.partition("/")[0] not in (
            *self.base_directories,
            ".",
            "",
        )
        return is_new and any(each.startswith(f"{path}/") for each in self.inputs)


_NO_PROGRAMS = OwnPrograms()
_QUERY_WORDS = frozenset(("--version", "--help", "-h", "-V"))
_GENERAL_NAMES = frozenset((
    "src", "lib", "libs", "python", "core", "utils", "util", "common", "tools", "scripts", "bin", "doc", "docs", "test", "tests",
    "build", "make", "docker", "podman", "kubernetes", "kubectl", "helm", "terraform", "ansible", "vagrant", "conda", "npm", "node",
    "go", "java", "ruby", "php", "perl", "cargo", "pip", "venv", "env", "examples", "packages", "app", "testbed", "workspace",
    "repo",
))  # fmt: skip
"""Directories that often have the name of a foreign program."""
_FORMATTERS = frozenset(("black", "autopep8", "yapf", "isort", "autoflake", "pyupgrade", "prettier"))
_ENTRY_POINT = re.compile(r"^[ \t]*['\"]?([\w.-]{2,60})['\"]? ?= ?['\"]?[\w.]{1,200}:\w", re.M)


@lru_cache(maxsize=64)
def list_own_names(
    base_directories: tuple[str, ...],
    workspace: str,
    edited_files: tuple[str, ...],
    entry_points: tuple[str, ...],
) -> frozenset[str]:
    """Names of the project's programs: its directory, its packages, and the entry points that an output showed."""
    parts = {part for path in edited_files for part in path.split("/")[:-1]}
    names = {*base_directories, posixpath.basename(workspace.rstrip("/")), *parts}
    names = {
        name
        for name in names
        if len(name) > 2 and (name not in PROGRAMS or name in _FORMATTERS) and name not in _GENERAL_NAMES
    }
    return frozenset((*names, *entry_points))


def list_entry_points(text: str) -> tuple[str, ...]:
    """Programs that a shown `setup.py`, `setup.cfg` or `pyproject.toml` installs."""
    if "scripts" not in text or not contains_any(text, ("console_scripts", ".scripts]", "[project.scripts")):
        return ()
    return tuple(dict.fromkeys(_ENTRY_POINT.findall(text)))[:50]


_WORD = re.compile(r"[A-Za-z]+")
_INTERPRETER_WORDS = frozenset({
    "python", "pypy", "bash", "sh", "zsh", "dash", "ksh", "source", "node", "deno", "bun", "ts", "tsx",
    "ruby", "perl", "php", "lua", "Rscript", "julia", "coverage", "go",
})  # fmt: skip
_RUNS_PATH = re.compile(r"(?:^|[\s;&|(])(?:\.{0,2}/|~/|\. )")
_SHELL = re.compile(r"\b(?:ba|z|da|k|s)?sh\b|\beval\b|\b(?:powershell|pwsh)\b")


def may_validate(command: str, written_scripts: Collection[str]) -> bool:
    """Whether the command line may be a validation; a fast check without false negatives."""
    if "<<" in command:
        outside, _ = syntax.extract_heredocs(command)
        if not _SHELL.search(outside) and LAUNCHERS.search(command) is None:
            command = outside
    if may_be_runner(command):
        return True
    if not written_scripts and ">" not in command and "tee " not in command:
        return False
    words = _WORD.findall(command)
    if not _INTERPRETER_WORDS.isdisjoint(words) or _RUNS_PATH.search(command) is not None:
        return True
    return any(script.rpartition("/")[2] in command for script in written_scripts)


def find_validations(
    command: str,
    written_scripts: Collection[str],
    location: ShellLocation = _UNKNOWN_LOCATION,
    auxiliary_files: Collection[str] = (),
    own_programs: OwnPrograms = _NO_PROGRAMS,
) -> tuple[ValidationMatch, ...]:
    """Find the validations in a command line, in order; runs of auxiliary files do not count."""
    may_run_own = own_programs.may_run()
    if not may_run_own and not may_validate(command, written_scripts):
        return ()
    matches = []
    if ">" in command or "tee " in command:
        written_scripts = {
            **dict.fromkeys(written_scripts),
            **dict.fromkeys(s for s in _list_created_scripts(command, location) if s not in auxiliary_files),
        }
    for position, simple, runner, run_paths in _list_runs(command):
        script = (
            find_script(simple, run_paths, written_scripts, location)
            if run_paths and written_scripts
            else None
        )
        if script is not None:
            matches.append(ValidationMatch("reproduction", simple, position, None, script))
        elif runner is not None:
            matches.append(ValidationMatch(runner.kind, simple, position, runner, None))
    return _add_own_runs(command, matches, location, own_programs) if may_run_own else tuple(matches)


def _add_own_runs(
    command: str, matches: Sequence[ValidationMatch], location: ShellLocation, own_programs: OwnPrograms
) -> tuple[ValidationMatch, ...]:
    """Add the runs of the project's own programs; those of a linter or a build of the project become reproductions."""
    found = {match.position: match for match in matches}
    commands = parse_command(command)
    for position, simple in enumerate(commands):
        match = found.get(position)
        if match is not None and match.kind in ("test", "reproduction"):
            continue
        before = commands[position - 1] if simple.stage else None
        if simple.argv and own_programs.match(simple, location, before):
            runner = None if match is None else match.runner
            found[position] = ValidationMatch("reproduction", simple, position, runner, None)
    return tuple(found[position] for position in sorted(found))


def _list_created_scripts(command: str, location: ShellLocation) -> list[str]:
    """Scripts that the line itself writes, and may run and remove."""
    paths: list[str] = []
    for simple in parse_command(command):
        targets = [r.target for r in simple.redirects if ">" in r.operator]
        targets += [w for w in simple.argv[1:] if not w.startswith("-")] if simple.name == "tee" else []
        paths += [location.normalize_path(target, simple) for target in targets if is_script(target)]
    return paths


@lru_cache(maxsize=1024)
def _list_runs(command: str) -> tuple[tuple[int, SimpleCommand, Runner | None, tuple[str, ...]], ...]:
    """Commands that run a runner or a file: position, command, runner, and paths of files that it may run."""
    runs = []
    for position, simple in _list_started_commands(command):
        runner = find_runner(simple.argv)
        run_paths = tuple(_list_run_paths(simple)) if runner is None or runner.runs_file else ()
        if runner is not None or run_paths:
            runs.append((position, simple, runner, run_paths))
        elif simple.name.startswith(("python", "pypy")) and (text := _find_inline_python(simple)):
            for inner in list_launched_commands(text):
                runner = find_runner(inner.argv)
                if runner is not None:
                    runs.append((position, inner._replace(cwd=simple.cwd), runner, ()))
    return tuple(runs)


def _list_started_commands(command: str) -> Iterator[tuple[int, SimpleCommand]]:
    """The simple commands of a line, and in place of `docker exec` and its relatives the commands that they run."""
    for position, simple in enumerate(parse_command(command)):
        waiting = [simple]
        for _ in range(_MAX_LAUNCHES):
            if not waiting:
                break
            outer = waiting.pop(0)
            text = find_remote_script(outer.argv, outer.stdin)
            if text is None:
                yield position, outer
                continue
            waiting[:0] = [
                inner._replace(
                    redirects=outer.redirects + inner.redirects,
                    stages=max(outer.stages, inner.stages),
                    stage=inner.stage if inner.stages > 1 else outer.stage,
                    exit_code_is_own=outer.exit_code_is_own and inner.exit_code_is_own,
                    success_is_own=outer.success_is_own and inner.success_is_own,
                    is_repeated=outer.is_repeated or inner.is_repeated or outer.name in _REPEATING_PROGRAMS,
                )
                for inner in parse_command(text)
            ]


def _find_inline_python(command: SimpleCommand) -> str:
    """The Python text inside a command: the argument of `-c` or the standard input."""
    target = find_python_target(command.argv[1:])
    if target is not None:
        return target[1] if target[0] == "-c" else ""
    return command.stdin or ""


def classify(command: str, written_scripts: Collection[str]) -> ValidationKind | None:
    """Classify a command line; of several validations the strongest counts, tests first."""
    matches = find_validations(command, written_scripts)
    return find_strongest_kind(matches) if matches else None


def find_strongest_kind(matches: Sequence[ValidationMatch]) -> ValidationKind:
    """The strongest kind among at least one validation."""
    kinds = {f.kind for f in matches}
    return next(k for k in _KINDS_BY_STRENGTH if k in kinds)


def find_script(
    command: SimpleCommand,
    run_paths: Sequence[str],
    written_scripts: Collection[str],
    location: ShellLocation,
) -> str | None:
    """The written script that a command runs, if any."""
    for path in run_paths:
        resolved = location.normalize_path(path, command)
        for script in written_scripts:
            if resolved == script:
                return script
            # If the start of a path is unknown, one path may be a suffix of the other.
            is_script_suffix = resolved.endswith("/" + script) if not location.workspace else False
            is_path_suffix = (
                script.endswith("/" + resolved)
                if location.cwd is None and not resolved.startswith("/")
                else False
            )
            if is_script_suffix or is_path_suffix:
                return script
    return None


def _list_run_paths(command: SimpleCommand) -> list[str]:
    argv = command.argv
    name = command.name
    if not _INTERPRETERS.fullmatch(name):
        return [argv[0]] if "/" in argv[0] or posixpath.splitext(argv[0])[1] else []
    input_paths = [r.target for r in command.redirects if r.operator == "<"]
    if name == "coverage":
        return _list_run_paths(command._replace(argv=("python", *argv[2:])))
    if name.startswith(("python", "pypy")):
        target = find_python_target(argv[1:])
        if target is None:
            return input_paths
        if target[0] == "-m":
            module = target[1].replace(".", "/")
            modules = [f"{module}.py", f"{module}/__main__.py", f"{module}/__init__.py"]
            return (
                modules
                + [t for t in target[2:] if target[1] in _SCRIPT_RUNNING_MODULES and t.endswith(".py")][:1]
            )
        return [] if target[0] == "-c" else [target[0], f"{target[0]}/__main__.py", *input_paths]
    words = list(argv[1:])
    while words and (words[0].startswith("-") or words[0] == "run"):
        if words[0] in _NO_FILE_OPTIONS.get(name, ()):
            return []
        words = words[2 if words[0] in _VALUED_OPTIONS.get(name, ()) else 1 :]
    return words[:1] or input_paths
