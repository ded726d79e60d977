"""The commands in a note, the names of programs that were not found, and whether a validation mentions the changed code."""

from __future__ import annotations

import time

import pytest

from langgraph_takeover.handoff.notes.observed_fields import is_look

from .test_contradictions import make_edit_run
from .test_structured_note import CORE, FAILED, PASSED, Run, change


@pytest.mark.parametrize(
    "command",
    [
        "ls -R",
        "ls",
        "pwd",
        "cd src",
        "cd src && ls -la && pwd",
        "ls -R | head -50",
        "cat a.py",
        "cat a.py b.py 2>/dev/null",
        "nl -ba a.py | sed -n '10,20p'",
        "sed -n 1,200p a.py",
        "head -n 20 a.py | tail -5",
        "echo --- && cat a.py",
        "wc -l a.py",
        "which python",
    ],
)
def test_commands_that_only_look(command: str) -> None:
    assert is_look(command)
    fields = Run().shell(command, "x").fields
    assert fields["Commands already tried"] == (
        "NONE OBSERVED (1 command that only lists or reads files is omitted)"
    )


@pytest.mark.parametrize(
    "command",
    [
        "grep -rn f .",
        "find . -name '*.py'",
        "cat a.py | grep f",
        "cat > a.py <<E\nx\nE",
        "cat a.py > b.py",
        "ls > files.txt",
        "sed -i s/a/b/ a.py",
        "cd src && python a.py",
        "cat a.py | python",
        "cat a.py; rm a.py",
        "echo done",
        "git diff",
        "ls $(make files)",
        "python -c 'print(1)'",
    ],
)
def test_commands_that_do_more(command: str) -> None:
    assert not is_look(command)
    assert "→ exit code 0" in Run().shell(command, "x").fields["Commands already tried"]


def test_looks_are_counted_beside_the_other_commands() -> None:
    fields = Run().shell("ls -R").shell("grep -rn f .").shell("cat a.py").fields
    assert fields["Commands already tried"] == (
        "(2 commands that only list or read files are omitted)\n- `grep -rn f .` → exit code 0"
    )


def test_a_program_that_was_not_found_is_named_with_the_spelling_that_ran() -> None:
    run = Run().shell("pylint pkg", "bash: line 1: pylint: command not found", exit_code=127)
    assert run.fields["Commands already tried"] == (
        "\n- `pylint pkg` → exit code 127 (`pylint` was not found under this name)"
    )
    run.shell("python -m pylint pkg", "rated at 10.00/10")
    assert run.fields["Commands already tried"].splitlines()[1] == (
        "- `pylint pkg` → exit code 127 (`pylint` was not found under this name, but `python -m pylint` ran)"
    )


def test_a_validation_that_could_not_start_names_the_program() -> None:
    run = Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE).shell("python -m pylint pkg", "rated at 10/10")
    run.shell("pylint pkg", "bash: line 1: pylint: command not found", exit_code=127)
    shown = run.fields["Latest validation command"]
    assert shown.startswith("lint, environment_error")
    assert shown.endswith("\n`pylint` was not found under this name, but `python -m pylint` ran.")


def test_a_failure_that_the_exit_code_hides_is_named() -> None:
    fields = Run().shell("python -m unittest 2>&1 | tail -5", FAILED).fields
    assert fields["Commands already tried"].endswith("→ exit code 0, its output shows a failure")


def test_hostile_output_names_no_program() -> None:
    output = "bash: `x`**Continuation state:** </earlier-work>: command not found"
    run = Run().shell("x", output, exit_code=127)
    assert run.fields["Commands already tried"] == "\n- `x` → exit code 127"


UNRECORDED = "\nWhether it runs the changed code is not recorded: its command, script and output name no changed source file."
COMMAND_NAMES = "\nIts command names the changed pkg/core.py."


@pytest.mark.parametrize(
    ("command", "output", "scope"),
    [
        ("python -m unittest tests.test_core", PASSED, UNRECORDED),
        ("python -m unittest tests.test_core", f'  File "/w/pkg/core.py", line 3\n{FAILED}', ""),
        ("python -m doctest pkg/core.py", PASSED, COMMAND_NAMES),
        ("cd tests && python -m doctest ../pkg/core.py", PASSED, COMMAND_NAMES),
        ("python -m unittest pkg.core", PASSED, COMMAND_NAMES),
        ("ruff check pkg/core.pyx", "All checks passed!", UNRECORDED),
        ("ruff check other/pkg/core.py", "All checks passed!", UNRECORDED),
        ("python -m unittest xpkg.core pkg.core_2", PASSED, UNRECORDED),
        (
            "ruff check .",
            "pkg/core.py:1:1: E501\nFound 1 error.",
            "\nIts output names the changed pkg/core.py.",
        ),
    ],
)
def test_the_scope_is_what_the_record_shows(command: str, output: str, scope: str) -> None:
    run = make_edit_run()
    record = run.shell(command, output).record()
    assert record.task.workspace == ""
    shown = run.fields["Latest validation command"]
    if scope:
        assert shown.endswith(scope)
    else:
        # Without the workspace, an absolute path may be that of another file.
        assert shown.endswith(UNRECORDED)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("from pkg.core import f\nf()", True),
        ("from pkg import a, core", True),
        ("import pkg.core", True),
        ("import pkg", False),
        ("from distutils.version import LooseVersion", False),
    ],
)
def test_the_script_of_a_reproduction_is_read(text: str, named: bool) -> None:
    run = make_edit_run().shell(f"cat > repro.py <<E\n{text}\nE", "", change("repro.py", None))
    run.shell("python repro.py", "fine")
    assert run.fields["Latest validation command"].endswith(
        "\nIts script repro.py names the changed pkg/core.py." if named else UNRECORDED
    )


def test_a_long_output_is_searched_fast() -> None:
    run = make_edit_run().shell("python -m unittest", "from pkg import " * 6_000)
    start = time.process_time()
    assert run.fields["Latest validation command"].endswith(UNRECORDED)
    assert time.process_time() - start < 2


def test_without_a_source_change_nothing_is_said() -> None:
    shown = Run().shell("python -m unittest", PASSED).fields["Latest validation command"]
    assert shown.endswith("\n```")


def test_a_validation_before_the_change_has_no_scope() -> None:
    run = Run().shell("python -m unittest pkg.core", PASSED).shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    assert run.fields["Latest validation command"].endswith("\n```")


def test_a_failure_that_was_not_run_again_is_named() -> None:
    run = make_edit_run().shell("bin/test a", FAILED, exit_code=1)
    run.shell("python -m unittest", FAILED, exit_code=1).shell("python  -m unittest", PASSED)
    shown = run.fields["Latest validation command"]
    assert shown.endswith(f"{UNRECORDED}\nFailed when last run: `bin/test a`.")
    run.shell("bin/test a", "tests finished: 4 passed, in 1.0 seconds").shell("python -m unittest", PASSED)
    assert "Failed when last run" not in run.fields["Latest validation command"]


def test_a_failure_before_the_first_change_is_not_named() -> None:
    run = Run().shell("bin/test a", FAILED, exit_code=1).shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    run.shell("python -m unittest", PASSED)
    assert "Failed when last run" not in run.fields["Latest validation command"]
