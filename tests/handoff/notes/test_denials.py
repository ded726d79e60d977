"""Denials of a change, and true statements that resemble them."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.notes.contradictions import find_denial

CHANGED = ("pkg/core.py",)


@pytest.mark.parametrize(
    "sentence",
    [
        "No fix has been implemented yet.",
        "No fix has been implemented in the source yet",
        "No fix for the issue was applied.",
        "No fix yet.",
        "No actual code changes have been made so far.",
        "No source edit was made",
        "Implementation remains.",
        "Inferred: implementation remains",
        "The implementation still remains to be done, then the tests.",
        "Implementation of the fix is pending.",
        "The implementation has not started.",
        "The fix is not yet applied.",
        "The fix hasn't been written",
        "The proposed fix has not been implemented in the code.",
        "The bug fix isn't implemented, so the reproduction still fails.",
        "The fix in pkg/core.py has not been applied.",
        "The fix to `core.py` is not implemented.",
        "The fix still needs to be implemented.",
        "The code change has yet to be made",
        "The fix for this bug remains to be implemented.",
        "The source code has not been modified.",
        "The code base is unchanged.",
        "No code was changed.",
        "I have not implemented the fix.",
        "Nothing has been implemented yet.",
        "The cause is known, but no fix was implemented.",
        "The work stopped after the investigation and no fix was written",
        "No fix was applied before the handoff.",
        "No implementation has been done.",
        "The fix is pending.",
        "Fix: not implemented.",
        "No code changes.",
        "No code written yet.",
        "At this point, no fix has been implemented.",
        "No fix has been implemented, only a reproduction script for printing was added.",
        "pkg/core.py has not been modified.",
        "The file `core.py` is unchanged.",
    ],
)
def test_denials_of_a_fix(sentence: str) -> None:
    assert find_denial(sentence, CHANGED) == "source"


@pytest.mark.parametrize(
    "sentence",
    [
        "No changes were made.",
        "No changes have been made to the repository.",
        "No files were modified",
        "No changes yet",
        "The agent made no changes.",
        "So far no changes were made to pkg/core.py.",
        "No changes.",
        "Nothing was changed.",
        "Nothing has been done",
        "I did not edit any file.",
        "The agent has not changed anything",
    ],
)
def test_denials_of_every_change(sentence: str) -> None:
    assert find_denial(sentence, CHANGED) == "any"


@pytest.mark.parametrize(
    "sentence",
    [
        "No test was added.",
        "No tests were changed.",
        "No regression test has been implemented yet.",
        "The documentation fix is not yet applied.",
        "The fix in other.py is not done.",
        "The fix in pkg/other.py has not been applied.",
        "The fix for negative numbers is not implemented yet.",
        "For negative numbers, no fix has been implemented.",
        "In pkg/other.py, no changes were made.",
        "No changes were made to tests/test_core.py.",
        "No changes were made to the tests.",
        "No further changes were made.",
        "No other file was changed.",
        "Nothing else was changed.",
        "No change was needed.",
        "No fix is needed in the parser.",
        "The second fix still needs to be implemented.",
        "The remaining fix still needs to be implemented.",
        "Support for Windows still needs to be implemented.",
        "The fix is not yet validated.",
        "The fix is not complete.",
        "The fix still needs to be verified.",
        "The fix has not been tested on Python 3.8.",
        "The rest of the code is unchanged.",
        "The behavior of the code for strings remains unchanged.",
        "The implementation remains compatible with the old one.",
        "The implementation remains untested.",
        "The bug is not fixed.",
        "The first run failed because no fix had been applied.",
        "Before the edit, no fix was implemented.",
        "Initially, the fix was not applied.",
        "If the fix is not applied, the test fails.",
        "Whether the fix is not yet applied is unclear.",
        "The source only has prints and no fix was implemented.",
        "ruff reports that it made no changes",
        "`git stash` left the tests with no changes.",
        "The option did not change anything.",
        "The test suite was not modified.",
        "Implement the fix in pkg/core.py.",
        "The code was not changed by the failed sed command.",
        "Edited pkg/core.py.",
        "pkg/other.py has not been modified.",
        "The code is unchanged since the last validation.",
        "The repository is unchanged since e12.",
        "No changes were made after the last test run.",
        "A regression test for the fix has not been added.",
        "The documentation of the fix has not been written.",
        "The fix was not implemented as a separate function.",
        "The fix is not implemented correctly.",
        "The issue says that the fix was not applied.",
        "NotImplementedError: the solution is not implemented",
        "The patch was not applied.",
        "The patch was not applied cleanly.",
        "It still needs to be implemented.",
        "The issue has not been fixed yet.",
        "The fix to handle None has not been implemented.",
        "The sed command did not match, so the fix was not applied.",
        "sed failed and the code was not changed.",
        "Black made no changes.",
        "No file was added.",
        "No code changes are needed.",
        "No source files were changed, apart from pkg/core.py.",
    ],
)
def test_true_statements_are_no_denials(sentence: str) -> None:
    assert find_denial(sentence, CHANGED) is None


def test_the_rest_of_a_statement_may_explain_that_a_change_is_no_fix() -> None:
    sentence = "No fix has been implemented yet;"
    assert find_denial(sentence, CHANGED, f"{sentence} the tests fail") == "source"
    assert find_denial(sentence, CHANGED, f"{sentence} only a debugging print was added") is None


@pytest.mark.parametrize(
    ("sentence", "later"),
    [
        ("No fix has been implemented.", "source"),
        ("The fix is not implemented.", "source"),
        ("The fix was not applied.", None),
        ("The code is unchanged.", None),
        ("No changes.", None),
    ],
)
def test_a_later_sentence_may_be_about_the_one_before(sentence: str, later: str | None) -> None:
    assert find_denial(sentence, CHANGED, f"{sentence} `sed` failed.") is not None
    assert find_denial(sentence, CHANGED, f"`sed` failed. {sentence}") == later


def test_a_denial_of_another_file_is_none() -> None:
    assert find_denial("The fix in pkg/core.py is not implemented.", ("pkg/other.py",)) is None
    assert find_denial("The fix in src/pkg/core.py is not implemented.", ("src/pkg/core.py",)) == "source"


def test_a_name_that_unchanged_files_have_too_is_no_denial_about_the_changed_one() -> None:
    changed = {"src/a.py", "pkg/__init__.py"}
    files = {*changed, "other/__init__.py", "other/b.py"}
    assert find_denial("`__init__.py` was not modified.", changed, files=files) is None
    assert find_denial("`pkg/__init__.py` was not modified.", changed, files=files) == "source"
    assert find_denial("`a.py` was not modified.", changed, files=files) == "source"
    assert find_denial("`__init__.py` was not modified.", changed, files=changed) == "source"
