"""Contradictions between a model's statements and the record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from langgraph_takeover.handoff.notes.contradictions import find_contradiction
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord
from langgraph_takeover.handoff.trace.events import FileRead

from .test_structured_note import CORE, FAILED, PASSED, A, Run, change

FILES = ("README.md", "pkg/__init__.py", "pkg/core.py", "pkg/sub/deep.py", "repro.py", "tests/test_core.py")


def with_files(run: Run) -> HandoffRecord:
    return run.record().model_copy(update={"files": FILES})


def make_look_run() -> Run:
    return Run().shell("cat pkg/core.py", "def f(): ...", reads=(FileRead(path="pkg/core.py", sha256=A),))


def make_edit_run() -> Run:
    return make_look_run().shell("sed -i s/a/b/ pkg/core.py", "", CORE)


def failing() -> Run:
    return make_edit_run().shell("python -m unittest tests.test_core", FAILED, exit_code=1)


def passing() -> Run:
    return make_edit_run().shell("python -m unittest tests.test_core", PASSED)


def make_fix_and_edit_run() -> Run:
    return passing().shell("sed -i s/b/c/ pkg/core.py", "", change("pkg/core.py", "b" * 64, "c" * 64))


def make_scratch_run() -> Run:
    return make_look_run().shell("cat > repro.py <<E\nE", "", change("repro.py", None))


def make_shell_run(command: str, exit_code: int = 0) -> Callable[[], Run]:
    return lambda: make_edit_run().shell(command, exit_code=exit_code)


def make_test_run() -> Run:
    return make_edit_run().shell("pytest -q", "bash: line 1: pytest: command not found", exit_code=127)


def make_lint_run() -> Run:
    run = make_edit_run().shell("pylint pkg", "bash: line 1: pylint: command not found", exit_code=127)
    return run.shell("python -m pylint pkg", "pkg/core.py:1:0: C0114: Missing module docstring", exit_code=16)


FAILS = "the latest validation failed"
DIFFERS = "1 source file differs from the base commit"
LAST = "Last validation of the current code:"
VALIDATED = "a validation of the current code was run"
NOT_YET = "nothing was validated after the latest source change"


@pytest.mark.parametrize(
    ("run", "field", "text", "events", "against"),
    [
        (failing, "evidence_observed", "All tests pass now.", (), FAILS),
        (failing, "problem_understanding", "The suite passes.", (), FAILS),
        (failing, "work_completed", "Fixed it; the reproduction has succeeded", (), FAILS),
        (failing, "evidence_observed", "The tests are green", (), FAILS),
        (failing, "evidence_observed", "The tests do not pass.", (), None),
        (failing, "evidence_observed", "The tests fail.", (), None),
        (failing, "evidence_observed", "One test failed, the others passed.", (), None),
        (failing, "remaining_uncertainty", "Whether the tests pass.", (), None),
        (failing, "recommended_next_action", "Make the tests pass, then run the suite that passes.", (), None),
        (failing, "rollback_notes", "If the tests should pass, nothing.", (), None),
        (passing, "evidence_observed", "All tests pass.", (), None),
        (make_edit_run, "evidence_observed", "All tests pass.", (), "no validation was run"),
        (make_fix_and_edit_run, "evidence_observed", "All tests pass.", (), NOT_YET),
        (make_fix_and_edit_run, "evidence_observed", "The test run passed", (5,), None),
        (make_fix_and_edit_run, "evidence_observed", "All tests pass now", (5,), NOT_YET),
        (make_edit_run, "work_completed", "No changes were made.", (), "1 file differs from the base commit"),
        (make_edit_run, "work_completed", "Nothing was changed yet.", (), "1 file differs from the base commit"),
        (make_edit_run, "work_completed", "I did not edit any file.", (), "1 file differs from the base commit"),
        (make_edit_run, "rollback_notes", "Nothing was changed.", (), "1 file differs from the base commit"),
        (make_edit_run, "work_completed", "No changes were made to tests/test_core.py.", (), None),
        (make_edit_run, "work_completed", "Edited pkg/core.py.", (), None),
        (make_look_run, "work_completed", "No changes were made.", (), None),
        (make_look_run, "work_completed", "Changed the parser.", (), "no file was changed"),
        (make_look_run, "recommended_next_action", "The parser must be changed.", (), None),
        (make_look_run, "work_completed", "It should be changed in the parser.", (), None),
        (make_edit_run, "problem_understanding", "The bug is in pkg/other.py.", (), "the snapshot has no file pkg/other.py"),
        (make_edit_run, "recommended_next_action", "Look at other.py", (), "the snapshot has no file other.py"),
        (make_edit_run, "problem_understanding", "The bug is in core.py.", (), None),
        (make_edit_run, "problem_understanding", "See sub/deep.py and pkg/sub/.", (), None),
        (make_edit_run, "problem_understanding", "See ./pkg/core.py, or https://example.org/a/b.py.", (), None),
        (make_edit_run, "problem_understanding", "pkg/other.py is missing.", (), None),
        (make_edit_run, "recommended_next_action", "Create pkg/other.py.", (), None),
        (make_edit_run, "observed_failures", "No fix has been implemented yet.", (), DIFFERS),
        (make_edit_run, "recommended_next_action", "Implementation remains.", (), DIFFERS),
        (make_edit_run, "problem_understanding", "Nothing was changed.", (), "1 file differs from the base commit"),
        (make_edit_run, "remaining_uncertainty", "The fix in pkg/core.py has not been applied.", (), DIFFERS),
        (make_edit_run, "remaining_uncertainty", "The fix in pkg/sub/deep.py has not been applied.", (), None),
        (make_look_run, "observed_failures", "No fix has been implemented yet.", (), None),
        (make_scratch_run, "observed_failures", "No fix has been implemented yet.", (), None),
        (make_scratch_run, "problem_understanding", "No changes were made.", (), None),
        (make_scratch_run, "work_completed", "No changes were made.", (), "1 file differs from the base commit"),
        (make_scratch_run, "work_completed", "No source code has been changed.", (), None),
        (make_edit_run, "evidence_observed", f"{LAST} none", (), None),
        (failing, "evidence_observed", f"{LAST} none.", (), VALIDATED),
        (failing, "evidence_observed", f"{LAST} `python -m unittest` failed", (), None),
        (make_fix_and_edit_run, "evidence_observed", f"{LAST} `python -m unittest` failed", (), NOT_YET),
        (make_edit_run, "evidence_observed", f"{LAST} `python -m unittest`, 1 failure", (), "no validation was run"),
        (make_edit_run, "evidence_observed", f"{LAST} none yet", (), None),
        (failing, "evidence_observed", f"{LAST} none succeeded", (), None),
        (failing, "evidence_observed", "The last validation of the current code is none.", (), VALIDATED),
        (failing, "evidence_observed", "There is no last validation of the current code.", (), VALIDATED),
        (passing, "evidence_observed", f"{LAST} No failures: `python -m unittest` passed", (), None),
        (make_test_run, "evidence_observed", f"{LAST} `pytest -q`, could not run (exit code 127)", (), None),
        (make_test_run, "evidence_observed", f"{LAST} `pytest -q` ended with exit code 127", (), None),
        (make_test_run, "evidence_observed", "The last validation of the current code is none.", (), None),
        (make_test_run, "evidence_observed", "There is no last validation of the current code.", (), None),
        (make_test_run, "evidence_observed", f"{LAST} `pytest -q` passed", (), NOT_YET),
        (make_lint_run, "observed_failures", "pylint is not installed.", (), "python -m pylint ran"),
        (make_lint_run, "observed_failures", "The command `pylint` was not available.", (), "python -m pylint ran"),
        (make_lint_run, "observed_failures", "pylint is not available on the PATH.", (), None),
        (make_lint_run, "observed_failures", "flake8 is not installed.", (), None),
        (make_lint_run, "observed_failures", "`pylint` is unavailable", (), "python -m pylint ran"),
        (make_shell_run("which pylint && pylint pkg", 1), "observed_failures", "pylint is not installed.", (), None),
        (make_shell_run("patch -p1 a"), "observed_failures", "The patch is not available.", (), None),
        (make_shell_run("black a"), "observed_failures", "`black` is missing a rule.", (), None),
        (make_edit_run, "work_completed", "UNKNOWN", (), None),
        (make_edit_run, "work_completed", "NONE OBSERVED.", (), None),
    ],
)  # fmt: skip
def test_contradicted_claims(
    run: object, field: str, text: str, events: tuple[int, ...], against: str | None
) -> None:
    assert callable(run)
    evidence = Evidence(with_files(run()))
    assert find_contradiction(field, Claim(text=text, events=events), evidence) == against


def test_an_unlisted_file_is_no_contradiction() -> None:
    evidence = Evidence(make_edit_run().record())
    assert (
        find_contradiction("problem_understanding", Claim(text="The bug is in pkg/other.py."), evidence)
        is None
    )


PATCH = (
    "diff --git a/pkg/core.py b/pkg/core.py\n--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,2 +1,3 @@\n"
    " def f():\n{}     return 1\n"
)


@pytest.mark.parametrize(
    ("added", "against"),
    [
        ("+    print('DEBUG', 1)\n", None),
        ("+    import pdb\n+    breakpoint()\n", None),
        ("+    # why?\n+\n+    logging.debug('x')\n", None),
        ("+    logger.warning('deprecated')\n", DIFFERS),
        ("+    x = 2\n+    print(x)\n", DIFFERS),
        ("-    x = 2\n+    print(x)\n", DIFFERS),
    ],
)
def test_a_debugging_print_is_no_fix(added: str, against: str | None) -> None:
    record = make_edit_run().record().model_copy(update={"patch": PATCH.format(added)})
    claim = Claim(text="The fix still needs to be implemented.")
    assert find_contradiction("remaining_uncertainty", claim, Evidence(record)) == against
    nothing = find_contradiction("rollback_notes", Claim(text="Nothing was changed."), Evidence(record))
    assert nothing == "1 file differs from the base commit"


@pytest.mark.parametrize(
    ("tool", "arguments", "against"),
    [
        ("editor", {"old": "x = 1", "new": "x = 1\nprint(x)"}, None),
        ("editor", {"line": "3", "new": "print(1)\n"}, None),
        ("editor", {"old": "x = 1", "new": "x = 2\nprint(x)"}, DIFFERS),
        ("editor", {"old": "x = 1\ny", "new": "x = 1\nprint(x)"}, DIFFERS),
        ("editor", {"content": "print(1)"}, DIFFERS),
        ("shell", {"command": "python - <<E\nopen('pkg/core.py', 'w').write(s)\nprint('done')\nE"}, DIFFERS),
    ],
)
def test_without_a_patch_only_an_editor_shows_debugging(
    tool: str, arguments: dict[str, str], against: str | None
) -> None:
    run = make_edit_run()
    run.events[2] = run.events[2].model_copy(update={"tool": tool, "arguments": arguments})
    claim = Claim(text="The fix still needs to be implemented.")
    assert find_contradiction("remaining_uncertainty", claim, Evidence(run.record())) == against


def test_a_change_that_is_not_in_the_snapshot_contradicts_nothing() -> None:
    other = PATCH.replace("core.py", "other.py").format("+    x = 2\n")
    record = make_edit_run().record().model_copy(update={"patch": other})
    claim = Claim(text="The fix in pkg/core.py has not been applied.")
    assert find_contradiction("remaining_uncertainty", claim, Evidence(record)) is None
