"""Names in backticks exist: what docstrings and comments name is in the code, in its texts, or in a library that it uses."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("sandbox", "handoff", "nodes", "graph", "evals", "langgraph_takeover")
MODULES = [
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "suite" not in path.parts
]
TEXTS = {".md", ".txt", ".yaml", ".json", ".sh", ".html", ".js"}
OTHER_PROGRAMS = {
    "ProxyTracerProvider", "_ProxyMeterProvider", "NoOpTracerProvider", "NoOpMeterProvider",  # OpenTelemetry
    "ToolNode", "create_react_agent",  # LangGraph
    "eos_token", "fail_only",  # values of servers and of SWE-bench
    "open_tree_attr", "clone", "lstat", "recv_fds",  # the kernel
    "declare", "xtrace", "exec", "pylint", "sphinx",  # the shell, and programs
    "dumpd", "input", "boxplot", "booktabs", "graphicx", "invoke", "stream",  # LangChain, Python, LaTeX
}  # fmt: skip
"""Names of other programs that our code does not use by that name."""

_QUOTED = re.compile(r"`([^`\n]+)`")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(.*\)")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.(?!py$)[A-Za-z_]\w*)+")
_FILE = re.compile(r"\w+(?:/\w+)+\.py")
_IDENTIFIER = re.compile(
    r"_?[a-z0-9]+(?:_[a-z0-9]+)+|_?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|_?(?:[A-Z]+[a-z0-9]+){2,}"
)
"""Names in snake_case, in CAPITALS and in CamelCase, with at least two parts."""
_PLAIN_WORD = re.compile(r"[a-z]+")


class Code(NamedTuple):
    """The names of one module."""

    docs: tuple[tuple[int, str], ...]
    """Docstrings and comments, by line."""
    words: frozenset[str]
    """Every identifier, and every word in a text that is no docstring."""
    definitions: frozenset[str]
    """Names of functions, classes, parameters, fields and attributes, and texts of one word."""


@cache
def _read_code(path: Path) -> Code:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    strings = [each.value for body in bodies for each in body if isinstance(each, ast.Expr)]
    docs = {
        id(each): (each.lineno, each.value)
        for each in strings
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    comments = list(_read_comments(source)) if re.search(r"#.*`", source) else []
    words, definitions = set[str](), set[str]()
    for node in ast.walk(tree):
        names = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "asname", "module")]
        words.update(word for name in names if isinstance(name, str) for word in _WORD.findall(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.alias):
            definitions.add(node.name)
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            definitions.add(node.arg)
        elif isinstance(node, ast.Attribute):
            definitions.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docs:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            words.update(_WORD.findall(text))
            if _PLAIN_WORD.fullmatch(text):
                definitions.add(text)
    return Code((*docs.values(), *comments), frozenset(words), frozenset(definitions))


def _read_comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def _list_known_words() -> frozenset[str]:
    data = [
        path
        for package in PACKAGES[:-1]
        for path in (ROOT / package).rglob("*")
        if path.suffix in TEXTS and "suite" not in path.parts and path.is_file()
    ]
    texts = (
        word for path in data for word in _WORD.findall(path.read_text(encoding="utf-8", errors="replace"))
    )
    names = (part for path in MODULES for part in path.relative_to(ROOT).with_suffix("").parts)
    return frozenset(OTHER_PROGRAMS).union(texts, names, *(_read_code(path).words for path in MODULES))


@cache
def _list_known_definitions() -> frozenset[str]:
    names = (part for path in MODULES for part in path.relative_to(ROOT).with_suffix("").parts)
    texts = (path.stem for package in PACKAGES[:-1] for path in (ROOT / package).rglob("*.md"))
    return frozenset(OTHER_PROGRAMS).union(
        names, texts, keyword.kwlist, dir(builtins), *(_read_code(path).definitions for path in MODULES)
    )


@cache
def _is_library(name: str) -> bool:
    """Whether a top-level module belongs to Python or to a dependency, which need not be installed."""
    if name in PACKAGES:
        return False
    requirement = f'"{name.replace("_", "-")}'
    return (
        name in sys.stdlib_module_names
        or importlib.util.find_spec(name) is not None
        or requirement in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )


def _exists(token: str, own: Code) -> bool:
    """Whether a text in backticks exists; a text that names nothing of ours does."""
    if _FILE.fullmatch(token):
        return (ROOT / token).is_file() or any(str(path).endswith(f"/{token}") for path in MODULES)
    call = _CALL.fullmatch(token)
    name = call[1] if call else token
    first, *rest = name.split(".")
    if _DOTTED.fullmatch(name):
        return _is_library(first) or all(part in _list_known_words() for part in (first, *rest))
    if call or _IDENTIFIER.fullmatch(name):
        return name in _list_known_words() or name in dir(builtins)
    if _PLAIN_WORD.fullmatch(name):
        return name in own.words or name in _list_known_definitions()
    return True


def _list_missing(path: Path) -> Iterator[str]:
    own = _read_code(path)
    for line, text in own.docs:
        for token in _QUOTED.findall(text):
            if not _exists(token, own):
                yield f"{path.relative_to(ROOT)}:{line}: `{token}`"


def test_names_in_backticks_exist() -> None:
    assert [missing for path in MODULES for missing in _list_missing(path)] == []


def test_what_the_rule_finds() -> None:
    own = Code((), frozenset({"here"}), frozenset())
    gone = (
        "ForgottenStoreError",
        "read_forgotten_store",
        "FORGOTTEN_STORE",
        "forgotten(…)",
        "sandbox.forgotten",
        "gonne",
    )
    there = (
        "HandoffRecord",
        "load_record",
        "len(text)",
        "json.loads",
        "sandbox/litter.py",
        "here",
        "git diff --stat",
        "%s",
    )
    assert [name for name in gone if _exists(name, own)] == []
    assert [name for name in there if not _exists(name, own)] == ["sandbox/litter.py"]
