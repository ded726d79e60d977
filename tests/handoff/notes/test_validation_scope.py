"""Whether a validation mentions the changed code: in its command, its script or its output."""

from __future__ import annotations

import time

import pytest

from .test_structured_note import CORE, FAILED, PASSED, Run, change

UNRECORDED = "\nWhether it runs the changed code is not recorded: its command, script and output name no changed source file."


def make_run() -> Run:
    return Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE)


@pytest.mark.parametrize(
    ("command", "output", "scope"),
    [
        ("python -m unittest tests.test_core", PASSED, UNRECORDED),
        ("python -m unittest tests.test_core", f'  File "/w/pkg/core.py", line 3\n{FAILED}', ""),
        ("python -m doctest pkg/core.py", PASSED, "\nIts command names the changed pkg/core.py."),
        (
            "cd tests && python -m doctest ../pkg/core.py",
            PASSED,
            "\nIts command names the changed pkg/core.py.",
        ),
        ("python -m unittest pkg.core", PASSED, "\nIts command names the changed pkg/core.py."),
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
    run = make_run()
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
    run = make_run().shell(f"cat > repro.py <<E\n{text}\nE", "", change("repro.py", None))
    run.shell("python repro.py", "fine")
    assert run.fields["Latest validation command"].endswith(
        "\nIts script repro.py names the changed pkg/core.py." if named else UNRECORDED
    )


def test_a_long_output_is_searched_fast() -> None:
    run = make_run().shell("python -m unittest", "from pkg import " * 6_000)
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
    run = make_run().shell("bin/test a", FAILED, exit_code=1).shell("python -m unittest", FAILED, exit_code=1)
    run.shell("python  -m unittest", PASSED)
    assert run.fields["Latest validation command"].endswith(
        f"{UNRECORDED}\nFailed when last run: `bin/test a`."
    )
    run.shell("bin/test a", "tests finished: 4 passed, in 1.0 seconds").shell("python -m unittest", PASSED)
    assert "Failed when last run" not in run.fields["Latest validation command"]


def test_a_failure_before_the_first_change_is_not_named() -> None:
    run = Run().shell("bin/test a", FAILED, exit_code=1).shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    run.shell("python -m unittest", PASSED)
    assert "Failed when last run" not in run.fields["Latest validation command"]
