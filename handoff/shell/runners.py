"""Table of runners: programs whose runs are validations; to support another, add a row with an example."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from langgraph_takeover.handoff.shell import runner_summaries
from langgraph_takeover.handoff.shell.runner_summaries import SummaryParser

ValidationKind = Literal["test", "lint", "build", "reproduction"]

_QUERY_OPTIONS = frozenset({
    "--version", "--help", "-h", "--collect-only", "--co", "--fixtures", "--markers", "--setup-plan",
    "--list-tests", "--listTests", "--list", "--listenvs", "--list-envs", "--notest", "--showconfig",
    "--dry-run", "--print-config", "--show-files", "--show-settings", "--fixtures-per-test", "--cache-show",
    "--init", "--show-only", "--no-run", "-list", "-av", "-version",
})  # fmt: skip
"""Options with which a runner prints information and validates nothing."""

_VALUED_OPTIONS = {"-W", "-X", "-Q"}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MAX_WRAPPERS = 20
"""Interpreters and launchers before the runner itself; with more, nothing sensible runs."""
TEST_FILE = "test file"
"""Name of the row for a test file run directly; a file that the predecessor wrote makes it a reproduction."""


class Runner(NamedTuple):
    """One row of the table."""

    name: str
    kind: ValidationKind
    pattern: str
    """Matches the normalized command, which is `pytest -q` also for `python3 -m pytest -q`."""
    parse_summary: SummaryParser
    example: str


def _rows(kind: ValidationKind, *rows: tuple[str, str, SummaryParser, str]) -> tuple[Runner, ...]:
    return tuple(Runner(name, kind, pattern, reader, example) for name, pattern, reader, example in rows)


_S = runner_summaries
_PY_OR_UNIT = _S.combine(_S.pytest, _S.unittest)
_ANY_TEST = _S.combine(_S.pytest, _S.unittest, _S.sympy, _S.javascript, _S.cargo, _S.go, _S.maven, _S.make)
_JS_TESTS = _S.combine(_S.javascript, _S.rspec, _S.pytest)

RUNNERS: tuple[Runner, ...] = (
    *_rows(
        "test",
        ("pytest", r"(pytest|py\.test)(-[\d.]+)?( .*)?", _S.pytest, "python3 -m pytest -q tests/test_a.py"),
        ("unittest", r"(unittest|unit2)( .*)?", _S.unittest, "python -m unittest tests.test_a"),
        ("tox", r"tox( .*)?", _S.tox, "tox -e py311"),
        ("nox", r"nox( .*)?", _S.tox, "nox -s tests"),
        ("nose", r"(nose|nosetests|nose2)(-?[\d.]+)?( .*)?", _S.nose, "nosetests pkg"),
        ("trial", r"(twisted\.)?trial( .*)?", _S.unittest, "trial twisted.test"),
        ("zope", r"(zope-testrunner|zope\.testrunner|stestr)( .*)?", _PY_OR_UNIT,
         "zope-testrunner --path=src"),
        ("hatch", r"hatch test( .*)?", _S.pytest, "hatch test"),
        ("runtests", r"(runtests|run_tests)\.py( .*)?", _PY_OR_UNIT, "./tests/runtests.py many_to_one"),
        ("sympy", r"bin/(test|doctest)( .*)?", _S.sympy, "bin/test sympy/core/tests/test_expr.py"),
        ("sympy isolated", r"bin/test_(isolated|\w+\.py)( .*)?", _S.sympy, "bin/test_isolated"),
        ("manage", r"(manage\.py|django-admin(\.py)?|django) test( .*)?", _S.unittest,
         "python manage.py test app"),
        ("setup", r"setup\.py (.* )?(test|pytest)( .*)?", _PY_OR_UNIT, "python setup.py test"),
        ("cpython", r"test( .*)?", _PY_OR_UNIT, "python -m test test_os"),
        ("dev", r"(dev\.py|spin) test( .*)?", _S.pytest, "spin test"),
        (TEST_FILE, r"(test_\w+|\w+_test|tests?)\.py( .*)?", _PY_OR_UNIT, "python3 tests/test_requests.py"),
        ("inline", r"-c .*\b(pytest\.main|unittest\.main|(sympy|astropy|numpy|np|scipy)\.(doc)?test)\(.*",
         _ANY_TEST, "python -c 'import sympy; sympy.test(\"core\")'"),
        ("doctest", r"doctest( .*)?", _S.doctest, "python -m doctest mod.py"),
        ("make", r"g?make (.* )?(([\w-]*[-_])?tests?|(unit|run|py)tests?|check|[\w]*test-[\w-]+|doctest)( .*)?",
         _ANY_TEST, "make test"),
        ("npm", r"(npm|pnpm|yarn|bun) ((run(-script)?|-r|workspace \S+) )?(--?(prefix|filter|cwd)[ =]\S+ |-\S+ )*+"
         r"(test|t)([:-]\S+)?( .*)?", _JS_TESTS,
         "npm run test:unit"),
        ("javascript",
         r"(jest|vitest|mocha|ava|karma|tap|jasmine|cypress|playwright|(react-scripts|ng) test)(\.js)?( .*)?",
         _JS_TESTS, "npx jest a.test.js"),
        ("node", r"(node|deno|bun) (-\S+ )*(--test|test)( .*)?", _JS_TESTS, "node --test"),
        ("cargo", r"cargo (\+\S+ )?(-\S+ )*(test|t|nextest run)( .*)?", _S.cargo, "cargo test --lib"),
        ("go", r"(go (-C \S+ )?test|gotestsum)( .*)?", _S.go, "go test ./..."),
        ("maven", r"(mvn|mvnw)( .*)? (test|verify|surefire:test|integration-test)( .*)?", _S.maven,
         "mvn -q test"),
        ("gradle", r"(gradle|gradlew)( .*)? (\S*:)?(test\w*|\w+Test|check)( .*)?", _S.maven, "./gradlew :core:test"),
        ("ctest", r"ctest( .*)?", _S.ctest, "ctest --output-on-failure"),
        ("rspec", r"(rspec|(rake|rails) (test|spec)\S*)( .*)?", _S.combine(_S.rspec, _S.unittest),
         "bundle exec rspec"),
        ("phpunit", r"(phpunit|pest|artisan test)( .*)?", _S.phpunit, "vendor/bin/phpunit tests"),
        ("others", r"(bazel|dotnet|swift|mix|sbt|stack|cabal|composer|flutter|dart|zig build) test( .*)?",
         _ANY_TEST, "dotnet test"),
        ("task", r"(meson|just|invoke|task|pdm|hatch) (run )?(test\w*)( .*)?", _ANY_TEST, "meson test -C build"),
    ),
    *_rows(
        "lint",
        ("ruff", r"ruff (check|format .*--(check|diff))( .*)?", _S.ruff, "ruff check ."),
        ("flake8", r"(flake8|pyflakes|pycodestyle|pep8|pydocstyle|vulture|bandit)( .*)?", _S.error_lines,
         "flake8 a.py"),
        ("pylint", r"pylint( .*)?", _S.error_lines, "pylint --errors-only a.py"),
        ("mypy", r"(mypy|dmypy|pytype|pyre|ty check)( .*)?", _S.mypy, "mypy --strict pkg"),
        ("pyright", r"(based)?pyright( .*)?", _S.pyright, "pyright"),
        ("format check", r"(black|isort)( .*)? (--check|--check-only|-c|--diff)( .*)?", _S.ruff,
         "black --check ."),
        ("compile", r"(py_compile|compileall)( .*)?", _S.syntax_errors, "python -m py_compile a.py"),
        ("eslint", r"(eslint|stylelint|biome (check|lint|ci)|prettier .*--check|jshint|tslint)( .*)?",
         _S.eslint, "npx eslint src"),
        ("tsc", r"(tsc|vue-tsc)( .*)? --noEmit( .*)?", _S.tsc, "tsc --noEmit"),
        ("syntax", r"(node (--check|-c)|(ba|z)?sh -n|php -l|ruby -c|perl -c) .*", _S.match_lines(),
         "node --check a.js"),
        ("clippy", r"cargo (clippy|check|fmt .*--check)( .*)?", _S.cargo, "cargo clippy"),
        ("go vet", r"(go vet|golangci-lint run|staticcheck|gofmt -l)( .*)?", _S.match_lines(), "go vet ./..."),
        ("pre-commit", r"pre-commit run( .*)?", _S.match_lines("", r"\.{3}Failed$"), "pre-commit run -a"),
        ("make lint", r"g?make (.* )?(lint|typecheck|mypy|flake8|style)( .*)?", _S.make, "make lint"),
        ("npm lint", r"(npm|pnpm|yarn|bun) (run )?(lint|typecheck|type-check|tsc)\S*( .*)?",
         _S.combine(_S.eslint, _S.tsc), "npm run lint"),
        ("others", r"(rubocop|phpstan|shellcheck|hadolint|clang-tidy|cppcheck|ktlint|swiftlint)( .*)?",
         _S.error_lines, "shellcheck a.sh"),
    ),
    *_rows(
        "build",
        ("setup", r"setup\.py (.* )?(build\w*|bdist\w*|sdist)( .*)?", _S.compiler,
         "python setup.py build_ext --inplace"),
        ("build", r"(build|pyproject-build|flit build|poetry build|hatch build|uv build)( .*)?", _S.compiler,
         "python -m build"),
        ("cargo", r"cargo (\+\S+ )?(build|b)( .*)?", _S.cargo, "cargo build --release"),
        ("go", r"go build( .*)?", _S.compiler, "go build ./..."),
        ("npm", r"(npm|pnpm|yarn|bun) (run )?build\S*( .*)?", _S.tsc, "npm run build"),
        ("tsc", r"(tsc|vite build|webpack|rollup|next build)( .*)?", _S.tsc, "npx tsc -p ."),
        ("maven", r"(mvn|mvnw|gradle|gradlew|ant)( .*)? (compile|package|build|assemble|install)( .*)?",
         _S.maven, "mvn compile"),
        ("cmake", r"(cmake .*--build|ninja|meson compile|bazel build|dotnet build|swift build)( .*)?",
         _S.compiler, "cmake --build out"),
        ("compiler", r"(gcc|g\+\+|clang|clang\+\+|cc|c\+\+|javac|rustc|cython|cythonize)( .*)?", _S.compiler,
         "gcc -c a.c"),
        ("sphinx", r"(sphinx-build|sphinx|sphinx\.cmd\.build)( .*)? (\./)?docs?(/\S*)?( .*)?", _S.sphinx,
         "sphinx-build -b html docs out"),
        ("make", r"g?make( (?!clean|distclean|install|uninstall|help)\S+)*", _S.combine(_S.make, _S.sphinx),
         "make -j4 all"),
    ),
)  # fmt: skip

_WORD = re.compile(r"[A-Za-z]{2,}")
_COMMON_WORDS = {
    "py", "run", "script", "install", "uninstall", "package", "clean", "distclean", "help", "format", "diff", "all",
    "write", "only", "check", "verify", "main", "django", "init", "command", "pre", "cmd", "out",
}  # fmt: skip
"""Words of the table that occur in many other commands and never identify a runner alone."""
_COMPOSED_WORDS = {"test", "gmake", "basedpyright", "bash", "zsh", "runtests"}
"""Words that the patterns assemble from parts."""
_RUNNER_WORDS = _COMPOSED_WORDS.union(
    word
    for row in RUNNERS
    for word in _WORD.findall(re.sub(r"\\.", " ", row.pattern))
    if word not in _COMMON_WORDS
)


def may_be_runner(text: str) -> bool:
    """Whether a text contains a word of the table; a fast check without false negatives."""
    return not _RUNNER_WORDS.isdisjoint(_WORD.findall(text)) or "py.test" in text or "++" in text


_ANY_RUNNER = re.compile("|".join(f"(?P<r{n}>{row.pattern})" for n, row in enumerate(RUNNERS)), re.S)


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
    if form[0] != "-c" and not may_be_runner(" ".join(form[:2])):
        return None
    text = " ".join(form)
    match = _ANY_RUNNER.fullmatch(text)
    return RUNNERS[int(match.lastgroup[1:])] if match and match.lastgroup else None


_INTERPRETED_RUNNERS = {
    "jest",
    "vitest",
    "mocha",
    "ava",
    "tsc",
    "eslint",
    "phpunit",
    "pest",
    "artisan",
    "rspec",
}
"""Runners that are often called by path, as in `node node_modules/.bin/jest`, or by a package manager."""


def normalize_command(argv: Sequence[str]) -> list[str]:
    """Normalize a command: `/usr/bin/python3 -W error -m pytest -q` and `./venv/bin/pytest -q` to `pytest -q`."""
    words = list(argv)
    for _ in range(_MAX_WRAPPERS):
        name = posixpath.basename(words[0]) if words else ""
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
        elif name in ("yarn", "pnpm") and len(words) > 1 and words[1] in _INTERPRETED_RUNNERS:
            words = words[1:]
        else:
            break
    else:
        return []
    if not words:
        return []
    if words[0].endswith("bin/" + name) and name.partition("_")[0] in ("test", "doctest"):
        return ["bin/" + name, *words[1:]]
    if name in ("test", "doctest"):
        # `test` is a shell builtin; it is a runner only as a file in bin/.
        return []
    return [name, *words[1:]]


def _find_interpreted_runner(words: Sequence[str]) -> str | None:
    """The runner that `node PATH`, `php PATH` or `ruby PATH` runs."""
    path = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    script = posixpath.basename(path).removesuffix(".js")
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
