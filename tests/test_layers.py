"""Imports point left, sub-packages have no import cycles, and each library is used in one place."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "langgraph_takeover"
LAYERS = ("sandbox", "handoff", "nodes", "graph", "evals")
MAX_NAMES = 16
"""The maximum number of modules and sub-packages of a package; commands of `evals` do not count."""
ENTRY_POINTS = ("handoff/__main__.py",)
"""Programs that call a layer further right; no module imports them."""
HOMES = {
    "docker": {"sandbox"},
    "swebench": {"evals"},
    "langgraph": {"nodes", "graph"},
    "langchain_core": {"handoff", "nodes", "graph", "evals"},
    "langchain_openai": {"evals"},
    "sqlalchemy": {"handoff", "graph", "evals"},
    "matplotlib": {"evals"},
    "scipy": {"evals"},
    "psycopg": {"graph"},
    "regex": {"handoff", "evals"},
    "confusable_homoglyphs": {"handoff"},
    "mcp": {"graph"},
    "uvicorn": {"graph"},
    "tenacity": {"handoff", "nodes", "evals"},
}
PUBLIC_MODULES = {path.stem for path in (ROOT / PACKAGE).glob("[a-z]*.py")}
"""They join names of all layers."""
BASE = sorted((ROOT / PACKAGE / "base").glob("*.py"))
"""Values that all packages share. They import nothing of ours."""
MODULES = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if "suite" not in path.parts]
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES}


@cache
def _list_nodes(path: Path) -> tuple[ast.AST, ...]:
    """The imports and classes of a module."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef))


def _read_imports(path: Path) -> Iterator[str]:
    for node in _list_nodes(path):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            top = name.split(".")[0]
            assert top not in LAYERS, f"{path}: import {PACKAGE}.{name}, so that no module is loaded twice"
            yield name


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The names that a module imports; our own without `langgraph_takeover.` before them."""
    return tuple(name.removeprefix(f"{PACKAGE}.") for name in _read_imports(path))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_point_left() -> None:
    assert [problem for path in MODULES for problem in _list_wrong_imports(path)] == []


def _list_wrong_imports(path: Path) -> Iterator[str]:
    layer = path.relative_to(ROOT).parts[0]
    allowed = LAYERS if _name(path) in ENTRY_POINTS else LAYERS[: LAYERS.index(layer) + 1]
    for name in imports(path):
        top = name.split(".")[0]
        if top in LAYERS and top not in allowed:
            yield f"{_name(path)} imports {name} from the right"
        if layer not in HOMES.get(top, {layer}):
            yield f"{_name(path)} imports {name}, whose home is elsewhere"
    for name in _read_imports(path):
        is_public = name.startswith(f"{PACKAGE}.") and name.split(".")[1] in PUBLIC_MODULES
        if layer != LAYERS[-1] and is_public:
            yield f"{_name(path)} imports {name} from all layers"


@pytest.mark.parametrize("path", BASE, ids=lambda path: path.stem)
def test_the_base_imports_nothing_of_ours(path: Path) -> None:
    assert [
        name for name in _read_imports(path) if name.startswith(f"{PACKAGE}.") and ".base." not in name
    ] == []


def test_only_public_names_of_langgraph_are_used() -> None:
    found = [
        f"{_name(path)} imports {name}"
        for path in MODULES
        for name in imports(path)
        if name.split(".")[0] in ("langgraph", "langchain_core", "langchain_openai")
        and any(part.startswith("_") for part in name.split("."))
    ]
    assert found == []


@pytest.mark.parametrize(
    "package", sorted(name for name in NAMES if (ROOT / name.replace(".", "/")).is_dir())
)
def test_no_import_cycle_and_few_names(package: str) -> None:
    """Imports between the modules and sub-packages of a package have no cycle."""
    prefix = f"{package}."
    arrows = graphlib.TopologicalSorter[str]()
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not module.startswith(prefix) or _name(path) in ENTRY_POINTS:
            continue
        child = module.removeprefix(prefix).split(".")[0]
        for name in imports(path):
            imported = name.removeprefix(prefix).split(".")[0]
            if name.startswith(prefix) and f"{prefix}{imported}" in NAMES and imported != child:
                arrows.add(child, imported)
    arrows.prepare()  # raises CycleError, which names the circle
    children = {name.removeprefix(prefix).split(".")[0] for name in NAMES if name.startswith(prefix)}
    commands = {path.stem for path in (ROOT / "evals").glob("*.py")} if package == "evals" else set()
    assert len(children - commands - {"__main__"}) <= MAX_NAMES


def test_a_file_name_is_used_once() -> None:
    """A name finds one module; the public modules of the wheel, which users import, may share theirs."""
    paths = [
        path
        for path in (*BASE, *MODULES, *(ROOT / PACKAGE / "testing").rglob("*.py"))
        if path.stem[:2] != "__"
    ]
    named = {path.stem: path for path in paths}
    assert [_name(path) for path in paths if named[path.stem] != path] == []


def test_every_layer_has_modules() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(LAYERS)


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in (*BASE, *MODULES):
        for node in _list_nodes(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(_name(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
