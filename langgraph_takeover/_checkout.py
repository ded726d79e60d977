"""Short package names in a checkout: `graph` is `langgraph_takeover.graph`, the same module object.

A checkout keeps the five packages at its top level, so that `python -m evals.takeover` and `from graph import run` work
there. Every module is loaded once, under its full name; the short name is an alias in `sys.modules`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

_PACKAGE = "langgraph_takeover"
_aliased: set[str] = set()


class _AliasLoader(Loader):
    def __init__(self, full_name: str) -> None:
        self._full_name = full_name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._full_name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just replaced it by the alias's

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m`, which runs the module a second time, as `__main__`."""
        spec = find_spec(self._full_name)
        return spec.loader.get_code(self._full_name) if spec and spec.loader else None  # type: ignore[attr-defined]


class _AliasFinder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in _aliased:
            return None
        full_name = f"{_PACKAGE}.{name}"
        found = find_spec(full_name)
        if found is None:
            return None
        spec = ModuleSpec(name, _AliasLoader(full_name), origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


def alias(name: str) -> None:
    """Make the top-level package `name` another name of `langgraph_takeover.name`, submodules included."""
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())
    _aliased.add(name)
    sys.modules[name] = import_module(f"{_PACKAGE}.{name}")
