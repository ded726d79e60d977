"""Classification of files by their path: source, test, scratch or generated."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable

from langgraph_takeover.handoff.trace.languages import LANGUAGES

NEW_PROJECT = "."
"""Among the base directories: the base has no source file, so that every new code file is source, whatever its directory."""
_TEST_PARTS = {"test", "tests", "spec", "specs"}
_GENERATED_PARTS = {
    ".git", "__pycache__", "node_modules", "_build", "htmlcov", ".tox", ".nox", ".eggs", ".venv", "venv",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis",
}  # fmt: skip
_BUILD_DIRECTORIES = {"build", "dist", "target", "out"}
_CODE_EXTENSIONS = frozenset(extension for row in LANGUAGES for extension in row.extensions)
_SCRIPT_EXTENSIONS = frozenset(extension for row in LANGUAGES for extension in row.script_extensions)


def is_code(path: str) -> bool:
    """Whether the path names program code; backups such as `x.py.bak` and `x.py~` do not."""
    parts = path.split("/")
    extension = posixpath.splitext(parts[-1])[1].lower()
    if extension:
        return extension in _CODE_EXTENSIONS
    return len(parts) > 1 and parts[-2] in ("bin", "scripts") and not parts[-1].startswith(".")


def is_script(path: str) -> bool:
    """Whether an interpreter could run the file directly."""
    return posixpath.splitext(path)[1].lower() in _SCRIPT_EXTENSIONS


def is_test(path: str) -> bool:
    """Whether the path is in a directory `test(s)`, `spec(s)` or top-level `testing`, or has the name of a test.

    A `testing` package inside another directory is part of the product, so it counts as source.
    """
    *directories, name = path.split("/")
    stem, _, rest = name.partition(".")
    if name.startswith("test_") or name == "conftest.py" or (rest and stem.endswith("_test")):
        return True
    if rest.startswith(("test.", "spec.")):
        return True
    return directories[:1] == ["testing"] or not _TEST_PARTS.isdisjoint(directories)


def is_generated(path: str) -> bool:
    """Whether the path is in a cache, in a build directory or in the data of Git."""
    directories = path.split("/")[:-1]
    return (
        not _GENERATED_PARTS.isdisjoint(directories)
        or (directories[:1] and directories[0] in _BUILD_DIRECTORIES)
        or any(d.endswith((".egg-info", ".dist-info")) for d in directories)
    )  # fmt: skip


def may_be_source(path: str) -> bool:
    """Whether the path is a code file of the repository that is neither test nor generated."""
    return is_code(path) and not is_test(path) and not is_generated(path) and not is_outside_repository(path)


def mark_new_project(directories: Collection[str], base_files: Iterable[str]) -> tuple[str, ...]:
    """Top-level directories of the base, and `NEW_PROJECT` if none of its files may be source."""
    is_new = not any(map(may_be_source, base_files))
    return tuple(sorted({*directories, *((NEW_PROJECT,) if is_new else ())}))


def is_outside_repository(path: str) -> bool:
    return path.startswith(("/", "~", "../"))


def is_scratch(path: str, is_in_base: bool, base_directories: Collection[str]) -> bool:
    """Whether the file is outside the repository, or new in the root or in a new top-level directory of a project with source."""
    if is_outside_repository(path):
        return True
    top, _, rest = path.partition("/")
    is_in_new_place = not rest or top not in base_directories
    return not is_in_base and is_in_new_place and NEW_PROJECT not in base_directories


def is_source(path: str, is_in_base: bool, base_directories: Collection[str]) -> bool:
    """Whether the path is a code file that is neither test, scratch nor generated."""
    return may_be_source(path) and not is_scratch(path, is_in_base, base_directories)
