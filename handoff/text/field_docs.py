"""The docstrings below the fields of a class, for documents that are generated from the code."""

from __future__ import annotations

import ast
import inspect
import itertools


def read_field_docs(owner: type) -> dict[str, str]:
    """Return the docstring of each field that has one, including those of base classes of this package."""
    package = __name__.partition(".")[0]
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.partition(".")[0] == package:
            found |= _read_own_docs(base)
    return found


def _read_own_docs(owner: type) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found
