"""The house's arrow: a package imports only what lies left of it, and each library has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("sandbox", "handoff", "nodes", "graph", "evals")
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
    "tenacity": {"handoff", "nodes", "evals"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if "suite" not in path.parts]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_left(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    # A program is imported by nobody, so that it may look to the right.
    allowed = LAYERS if path.name == "__main__.py" else LAYERS[: LAYERS.index(layer) + 1]
    for name in imports(path):
        top = name.split(".")[0]
        assert top not in LAYERS or top in allowed, f"{path.name} imports {name} from the right"
        assert layer in HOMES.get(top, {layer}), f"{path.name} imports {name}, which lives elsewhere"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_what_langgraph_makes_public_is_used(path: Path) -> None:
    for name in imports(path):
        if name.split(".")[0] in ("langgraph", "langchain_core", "langchain_openai"):
            assert not any(part.startswith("_") for part in name.split(".")), f"{path.name} imports {name}"


def test_every_layer_has_modules() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(LAYERS)
