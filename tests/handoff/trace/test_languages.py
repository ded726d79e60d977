"""Every row of the table of languages has an example, and its files are source."""

from __future__ import annotations

import posixpath
from collections import Counter

import pytest

from langgraph_takeover.handoff.trace.file_kinds import LANGUAGES, Language, is_code, is_script, is_source


@pytest.mark.parametrize("row", LANGUAGES, ids=lambda row: row.name)
def test_every_row_has_an_example_that_is_source(row: Language) -> None:
    top = row.example.partition("/")[0]
    assert posixpath.splitext(row.example)[1].lower() in row.extensions
    assert is_source(row.example, is_in_base=False, base_directories=(top,))
    assert all(is_code(f"src/x{extension}") for extension in row.extensions)
    assert set(row.script_extensions) <= set(row.extensions)
    assert all(is_script(f"x{extension}") for extension in row.script_extensions)


def test_every_name_and_extension_has_one_row() -> None:
    names = Counter(row.name for row in LANGUAGES)
    extensions = Counter(extension for row in LANGUAGES for extension in row.extensions)
    assert [name for name, count in (names + extensions).items() if count > 1] == []


@pytest.mark.parametrize(
    "path",
    ["README.md", "docs/a.rst", "data.json", "setup.cfg", "a.lock", "notes.txt", "src/a.py.bak", "src/a.py~",
     "a.log", "a.csv", "a.yaml", "fix.patch", "a.png", "a.orig"],
)  # fmt: skip
def test_documents_data_and_backups_are_no_source(path: str) -> None:
    assert not is_code(path)
