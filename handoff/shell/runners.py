"""Recognition of runners in commands, by the table of runners."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from langgraph_takeover.handoff.shell.runner_table import RUNNERS, Runner
from langgraph_takeover.handoff.shell.windows import find_program_name

_QUERY_OPTIONS = frozenset({
    "--version", "--help", "-h", "--collect-only", "--co", "--fixtures", "--markers", "--setup-plan",
    "--list-tests", "--listTests", "--list", "--listenvs", "--list-envs", "--notest", "--showconfig",
    "--dry-run", "--print-config", "--show-files", "--show-settings", "--fixtures-per-test", "--cache-show",
    "--init", "--show-only", "--no-run", "-list", "-av", "-version",
})  # fmt: skip
"""Options with which a runner prints information and validates nothing."""

_VALUED_OPTIONS = {"-W", "-X", "-Q"}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*|py")
_MAX_WRAPPERS = 20
"""Interpreters and launchers before the runner itself; with more, nothing sensible runs."""
_WORD = re.compile(r"[A-Za-z]{2,}")
_COMMON_WORDS = {
    "py", "run", "script", "install", "uninstall", "package", "clean", "distclean", "help", "format", "diff", "all",
    "write", "only", "check", "verify", "main", "django", "init", "command", "pre", "cmd", "out", "post", "watch", "fmt", "in",
    "exec", "git", "no", "as", "do", "js", "jsx", "rb", "exit", "info", "error", "local", "set", "target", "targets", "eval",
}  # fmt: skip
"""Words of the table that occur in many other commands and never identify a runner alone."""
_COMPOSED_WORDS = {"gmake", "basedpyright", "bash", "zsh", "erblint"}
"""Words that the patterns assemble from parts."""
_RUNNER_WORDS = _COMPOSED_WORDS.union(
    word
    for row in RUNNERS
    for word in _WORD.findall(re.sub(r"\\.", " ", row.pattern))
    if word not in _COMMON_WORDS
)


def may_be_runner(text: str) -> bool:
    """Whether a text contains a word of the table; a fast check without false negatives."""
    return "est" in text or "++" in text or not _RUNNER_WORDS.isdisjoint(_WORD.findall(text))


_ANY_RUNNER = re.compile("|".join(f"(?P<r{n}>{row.pattern})" for n, row in enumerate(RUNNERS)), re.S)


_MAX_CHARS = 10_000
"""A longer command is recognized by its beginning."""


def find_runner(argv: Sequence[str]) -> Runner | None:
    """The runner that a command runs; None if it runs no validation or only prints information."""
    form = normalize_command(argv)
    if (
        not form
        or not _QUERY_OPTIONS.isdisjoint(form)
        or (form[1:2] in (["-V"], ["-v"]) and len(form) == 2 and form[0] == "make")
    ):
        return None
    query_subcommands = {"playwright": "install", "cypress": "verify", "vitest": "list", "tox": "config"}
    if form[1:2] == [query_subcommands.get(form[0])] or (form[0] == "ctest" and "-N" in form):
        return None
    if len(form) == 2 and (form[1] == "-V" or (form[1] == "-v" and form[0] in ("tsc", "gcc"))):
        return None
    if form[0] in ("tox", "nox") and {"-l", "-a", "list", "l"} & set(form[1:2]):
        return None
    if form[0] in ("make", "gmake") and {"-n", "-q", "-p", "-v", "--just-print"} & set(form[1:]):
        return None
    if form[0] not in ("-c", "R", "v") and not may_be_runner(" ".join(form[:2])):
        return None
    text = " ".join(form)[:_MAX_CHARS]
    match = _ANY_RUNNER.fullmatch(text)
    return RUNNERS[int(match.lastgroup[1:])] if match and match.lastgroup else None


_INTERPRETED_RUNNERS = frozenset({
    "jest", "vitest", "mocha", "ava", "tsc", "eslint", "phpunit", "pest", "artisan", "rspec", "tap", "tape", "jasmine", "karma",
    "playwright", "cypress", "wdio", "hardhat", "svelte-check", "astro", "nx", "turbo", "ng", "biome", "prettier", "vue-tsc",
    "oxlint", "stylelint", "vite", "next", "nuxt", "webpack", "rollup", "tsup", "lerna", "react-scripts", "cucumber-js",
    "codecept", "phpstan", "psalm", "behat", "phpspec", "rubocop", "rails", "cucumber", "uvu", "qunit", "standard", "xo",
})  # fmt: skip
"""Runners that are often called by path, as in `node node_modules/.bin/jest`, or by a package manager."""


_TEST_PART = re.compile(r"(?:unit|run|all)?tests?")
_TEST_CLASS = re.compile(r"[A-Z]\w*Tests?")
_WORD_PARTS = re.compile(r"[\w-]+")


def normalize_command(argv: Sequence[str]) -> list[str]:
    """Normalize a command: `/usr/bin/python3 -W error -m pytest -q` and `./venv/bin/pytest -q` to `pytest -q`."""
    words = list(argv)
    for _ in range(_MAX_WRAPPERS):
        name = find_program_name(words[0]) if words else ""
        if name == "coverage" and words[1:2] == ["run"]:
            words = ["python", *words[2:]]
        elif _PYTHON.fullmatch(name):
            target = find_python_target(words[1:])
            if target is None or target[0] == "-c":
                return target or []
            if target[0] == "-m" and target[1] != "coverage":
                return target[1:]
            words = target[1:] if target[0] == "-m" else target
        elif name in ("node", "php", "ruby") and (script := _find_interpreted_runner(words)):
            words = [script, *words[2:]]
        elif name in ("yarn", "pnpm", "bun") and len(words) > 1 and words[1] in _INTERPRETED_RUNNERS:
            words = words[1:]
        else:
            break
    else:
        return []
    if not words:
        return []
    name = find_program_name(words[0])
    if words[0].endswith("bin/" + name) and name.partition("_")[0] in ("test", "doctest"):
        return ["bin/" + name, *words[1:]]
    if name in ("bash", "sh", "zsh") and len(words) > 1 and _is_test_program(posixpath.basename(words[1])):
        return ["./" + posixpath.basename(words[1]), *words[2:]]
    if "/" in words[0] and not words[0].startswith(("/bin/", "/usr/bin/")) and _is_test_program(name):
        return ["./" + name, *words[1:]]
    if name in ("test", "doctest"):
        # `test` is a shell builtin; it is a runner only as a file in a directory.
        return []
    return [name, *words[1:]]


def _is_test_program(name: str) -> bool:
    """Whether it is the name of a compiled test or of a script that runs tests, such as `unit-tests` or `run_tests.sh`."""
    stem = name.removesuffix(".sh")
    if _WORD_PARTS.fullmatch(stem) is None:
        return False
    for part in re.split("[-_]", stem):
        if _TEST_PART.fullmatch(part):
            return True
        if not part[:1].isalpha():
            break
    return stem == name and _TEST_CLASS.fullmatch(name) is not None


def _find_interpreted_runner(words: Sequence[str]) -> str | None:
    """The runner that `node PATH`, `php PATH` or `ruby PATH` runs."""
    path = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    script = re.sub(r"\.(?:[cm]?js|phar)$", "", posixpath.basename(path))
    return script if script in _INTERPRETED_RUNNERS else None


def find_python_target(words: Sequence[str]) -> list[str] | None:
    """The target of a Python interpreter: `-m mod …`, `-c text …` or `script …`; None if it has none."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-", "--version", "--help", "-V", "-h"):
            return None
        if re.fullmatch(r"-[A-Za-z]*[mc]", word) and not word.startswith(("-W", "-X")):
            return ["-" + word[-1], *words[at + 1 :]] if at + 1 < len(words) else None
        if not word.startswith("-"):
            return list(words[at:])
        is_valued = word in (*_VALUED_OPTIONS, "-a", "--rcfile", "--source", "--omit", "--include")
        at += 2 if is_valued else 1
    return None
