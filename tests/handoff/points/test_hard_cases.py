"""Cases from real runs, shortened, that simple text patterns misjudge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from langgraph_takeover.handoff.points.annotations import AnnotatedStep, annotate_steps, explain_point

from ..readers.session_rows import atif_call, atif_document, atif_results, atif_step, mini_run, read_one

EDIT = ("sed -i 's/x/y/' pkg/core.py", 0, "")


Run = Callable[..., tuple[AnnotatedStep, ...]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def annotate(*commands: tuple[str, int | None, str]) -> tuple[AnnotatedStep, ...]:
        """Annotated steps of commands with exit code and output; exit code None is a timeout."""
        path = tmp_path / "t.traj.json"
        path.write_text(json.dumps(mini_run(*commands, task="Fix pkg/base.py.")))
        return annotate_steps(read_one(path))

    return annotate


def points(steps: tuple[AnnotatedStep, ...]) -> dict[str, int | None]:
    return {point.kind: step.action_index for step in steps for point in step.points}


def outcomes(steps: tuple[AnnotatedStep, ...]) -> list[tuple[str, str] | None]:
    return [(s.validation.kind, s.validation.outcome) if s.validation else None for s in steps]


def edits(steps: tuple[AnnotatedStep, ...]) -> list[int | None]:
    return [step.action_index for step in steps if step.edited_files]


def test_sed_with_an_outdated_line_number_is_no_edit(run: Run) -> None:
    """django-14725: three earlier lines became two, so line 1085 has moved; sed still returned 0."""
    shown = "  1084\tdef inlineformset_factory(\n  1085\t    edit_only=False,\n  1086\t):"
    steps = run(
        ("nl -ba django/forms/models.py | sed -n '1084,1086p'", 0, shown),
        ("sed -i '904c\\    if edit_only:\\n        pass' django/forms/models.py", 0, ""),
        ("sed -i '1085s/edit_only=False/edit_only=None/' django/forms/models.py", 0, ""),
        ("sed -i '1086s/edit_only=False/edit_only=None/' django/forms/models.py", 0, ""),
    )
    assert edits(steps) == [1, 3]


def test_sed_that_restores_known_lines_is_no_edit(run: Run) -> None:
    """requests-1921: writing known lines again is no edit, nor is repeating the first edit."""
    was = ["    for (k, v) in request_setting.items():", "        if v is None:", "            del merged[k]"]
    shown = "\n".join(f"    {number}\t{line}" for number, line in enumerate(was, 58))
    new, old = (
        "sed -i '58,60c\\" + "\\n".join([first, *was[1:]]) + "' requests/sessions.py"
        for first in ("    for (k, v) in list(merged.items()):", was[0])
    )
    steps = run(
        ("nl -ba requests/sessions.py | sed -n '58,60p'", 0, shown),
        (new, 0, ""),
        ("python3 test_requests.py", 1, "Ran 99 tests in 9.0s\n\nFAILED (errors=2)"),
        (old, 0, ""),
        (new, 0, ""),
    )
    assert points(steps) == {"first_source_edit": 1, "first_validation": 2}


def test_a_debugging_print_is_an_edit_and_its_removal_is_not(run: Run) -> None:
    """xarray-3095: lines inserted before line 1950 and later deleted by number."""
    steps = run(
        ("cat > repro.py <<'EOF'\nx\nEOF", 0, ""),
        ("sed -i '1950i\\    print(1)\\n    print(2)' xarray/core/variable.py", 0, ""),
        ("python repro.py", 0, "FAILURE: dtype is object"),
        ("sed -i '1950,1951d' xarray/core/variable.py", 0, ""),
        ("sed -i '1950s/deep=True)/deep=True, dtype=self.dtype)/' xarray/core/variable.py", 0, ""),
    )
    assert points(steps) == {"first_source_edit": 1, "first_validation": 2, "first_post_failure_edit": 4}


def test_a_helper_script_edits_only_when_it_runs_and_matches(run: Run) -> None:
    """sympy-24562 and many others: a script written and run in one action."""
    guarded = (
        'if "a" in s:\n    open("pkg/core.py", "w").write(s + "b")\n    print("Patched file")\n'
        'else:\n    print("Pattern not steps")\n'
    )
    helper = (
        f"cat > sympy_patch.py <<'EOF'\ns = open('pkg/core.py').read()\n{guarded}EOF\npython3 sympy_patch.py"
    )
    steps = run(
        (helper, 0, "Pattern not steps"),
        (helper, 0, "Patched file"),
        ("python3 sympy_patch.py", 1, "Traceback (most recent call last):\nValueError: x"),
    )
    assert edits(steps) == [1]
    assert points(steps)["first_source_edit"] == 1


def test_a_helper_script_that_reads_standard_input_edits(run: Run) -> None:
    """django-14311: the script crashes without input and edits with input; neither is a passing reproduction."""
    helper = (
        "import sys\nlines = sys.stdin.readlines()\nlines[225:228] = ['new']\n"
        "with open('django/utils/autoreload.py', 'w') as f:\n    f.writelines(lines)\n"
    )
    crash = (
        'Traceback (most recent call last):\n  File "patch.py", line 3, in <module>\nIndexError: list index'
    )
    steps = run(
        (f"cat <<'EOF' > patch.py\n{helper}EOF", 0, ""),
        ("python3 patch.py", 1, crash),
        ("python3 patch.py < django/utils/autoreload.py", 0, ""),
    )
    assert edits(steps) == [2]
    assert points(steps) == {"first_source_edit": 2}


CORE = "a = 1\nb = 2\n"
DIFF = "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 3\n b = 2\n"
BLOCK = "*** Begin Patch\n*** Update File: pkg/core.py\n@@\n-a = 1\n+a = 3\n b = 2\n*** End Patch\n"
INLINE = "s = open('pkg/core.py').read()\nopen('pkg/core.py', 'w').write(s.replace('a = 1', 'a = 3'))\n"
PATHLIB = (
    "from pathlib import Path\nfile = Path('pkg') / 'core.py'\n"
    "file.write_text(file.read_text().replace('a = 1', 'a = 3'))\n"
)
ARGUMENT = INLINE.replace("'pkg/core.py'", "path").replace("s = ", "import sys\npath = sys.argv[1]\ns = ")
FUNCTION = (
    "import os\ndef edit(path, old, new):\n    s = open(path).read()\n"
    "    open(path, 'w').write(s.replace(old, new))\nedit(os.path.join('pkg', 'core.py'), 'a = 1', 'a = 3')\n"
)
ROWS = (
    "for path, old, new in [('pkg/core.py', 'a = 1', 'a = 3')]:\n    s = open(path).read()\n"
    "    open(path, 'w').write(s.replace(old, new))\n"
)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo 'a = 3' > pkg/core.py && echo 'b = 2' >> pkg/core.py", ""),
        ("cat > pkg/core.py <<'EOF'\na = 3\nb = 2\nEOF", ""),
        ("printf 'a = 3\\nb = 2\\n' | tee pkg/core.py", "a = 3\nb = 2\n"),
        ("sed -i 's/a = 1/a = 3/' pkg/core.py", ""),
        ("perl -pi -e 's/a = 1/a = 3/' pkg/core.py", ""),
        ("grep -rl 'a = 1' pkg/core.py | xargs sed -i 's/a = 1/a = 3/'", ""),
        ("find pkg/core.py -exec sed -i 's/a = 1/a = 3/' {} ;", ""),
        (f"patch -p1 <<'EOF'\n{DIFF}EOF", "patching file pkg/core.py"),
        (f"cat > fix.patch <<'EOF'\n{DIFF}EOF\npatch -p1 -i fix.patch", "patching file pkg/core.py"),
        (f"git apply <<'EOF'\n{DIFF}EOF", ""),
        (f"cat <<'EOF' | git apply -p1 -\n{DIFF}EOF", ""),
        (f"apply_patch <<'EOF'\n{BLOCK}EOF", "Success. Updated the following files:\nM pkg/core.py"),
        (f"apply_patch '{BLOCK}'", "Success. Updated the following files:\nM pkg/core.py"),
        (f"python3 - <<'EOF'\n{INLINE}EOF", ""),
        (f'python3 -c "{INLINE}"', ""),
        (f"python3 - <<'EOF'\n{PATHLIB}EOF", ""),
        ("cat > fix.sh <<'EOF'\nsed -i 's/a = 1/a = 3/' pkg/core.py\nEOF\nbash fix.sh", ""),
        ("sed 's/a = 1/a = 3/' pkg/core.py > core.new && mv core.new pkg/core.py", ""),
        ("sed 's/a = 1/a = 3/' pkg/core.py > core.new && cp core.new pkg/core.py", ""),
        ("find pkg -name core.py | xargs sed -i 's/a = 1/a = 3/'", ""),
        ("find pkg -name core.py -exec sed -i 's/a = 1/a = 3/' {} +", ""),
        ("grep -rl 'self.*.shape' --include=core.py pkg | xargs sed -i 's/a = 1/a = 3/'", ""),
        (f"git apply <<'EOF'\n{DIFF.replace(' a/', ' i/').replace(' b/', ' w/')}EOF", ""),
        (f"cat > fix.py <<'EOF'\n{ARGUMENT}EOF\npython3 fix.py pkg/core.py", ""),
        (f"python3 - <<'EOF'\n{FUNCTION}EOF", ""),
        (f"python3 - <<'EOF'\n{ROWS}EOF", ""),
    ],
)
def test_every_edit_command_edits_its_file(run: Run, command: str, output: str) -> None:
    steps = run(("cat pkg/core.py", 0, CORE), (command, 0, output))
    assert points(steps) == {"first_source_edit": 1}
    assert steps[1].edited_files == ("pkg/core.py",)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("perl -pi -e 's/c = 1/a = 3/' pkg/core.py", ""),
        ("cat pkg/core.py | tee pkg/core.py", CORE),
        (f"python3 - <<'EOF'\n{INLINE.replace('a = 1', 'c = 1')}EOF", ""),
        (f"patch -p1 --dry-run <<'EOF'\n{DIFF}EOF", "checking file pkg/core.py"),
        (f"patch -p1 <<'EOF'\n{DIFF}EOF", "patching file pkg/core.py\n1 out of 1 hunk FAILED"),
        (f"git apply --check <<'EOF'\n{DIFF}EOF", ""),
        (f"git apply <<'EOF'\n{DIFF}EOF\ntrue", "error: patch failed: pkg/core.py:1"),
        (f"apply_patch <<'EOF'\n{BLOCK.replace('a = 1', 'c = 1')}EOF\ntrue", "Failed to find expected lines"),
    ],
)
def test_an_edit_command_without_a_match_is_no_edit(run: Run, command: str, output: str) -> None:
    assert edits(run(("cat pkg/core.py", 0, CORE), (command, 0, output))) == []


def test_a_helper_script_written_by_python_edits(run: Run) -> None:
    writer = f"from pathlib import Path\nPath('fix.py').write_text({INLINE!r})\n"
    steps = run(
        ("cat pkg/core.py", 0, CORE), (f"python3 - <<'EOF'\n{writer}EOF", 0, ""), ("python3 fix.py", 0, "")
    )
    assert edits(steps) == [2]


@pytest.mark.parametrize(
    "command",
    [
        "sed -i 's/a = 1/a = 3/' pkg/core.py",
        "perl -pi -e 's/a = 1/a = 3/' pkg/core.py",
        f"patch -p1 <<'EOF'\n{DIFF}EOF",
        f"git apply <<'EOF'\n{DIFF}EOF",
        f"apply_patch <<'EOF'\n{BLOCK}EOF",
        f"python3 - <<'EOF'\n{INLINE}EOF",
        f"python3 - <<'EOF'\n{PATHLIB}EOF",
        f"python3 - <<'EOF'\n{FUNCTION}EOF",
    ],
)
def test_the_content_after_an_edit_command_is_known(run: Run, command: str) -> None:
    """Undoing the edit brings back the base content, so it is no edit."""
    undo = ("sed -i 's/a = 3/a = 1/' pkg/core.py", 0, "")
    assert edits(run(("cat pkg/core.py", 0, CORE), (command, 0, ""), undo)) == [1]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("s=$(cat pkg/core.py); echo $s > /tmp/out.txt", ""),
        (
            "python3 -c \"s = open('pkg/core.py').read(); open(os.path.join('/tmp', 'o.txt'), 'w').write(s)\"",
            "",
        ),
        ("find . -name test_core.py -exec sed -i 's/a = 1/a = 3/' {} +", ""),
        (
            f"patch -p1 <<'EOF'\n{DIFF}{DIFF.replace('core', 'other')}EOF",
            "patching file pkg/other.py\npatching file pkg/core.py\n1 out of 1 hunk FAILED",
        ),
    ],
)
def test_a_file_that_is_only_read_is_not_edited(run: Run, command: str, output: str) -> None:
    steps = run(("cat pkg/core.py", 0, CORE), (command, 0, output))
    assert "pkg/core.py" not in steps[1].edited_files


@pytest.mark.parametrize(
    ("forward", "back"),
    [
        ("sed -i 's/a = 1/a = 3/' pkg/core.py", "git checkout -- pkg/core.py"),
        ("sed -i 's/a = 1/a = 3/' pkg/core.py", "git restore pkg"),
        ("sed -i 's/a = 1/a = 3/' pkg/core.py", "git reset --hard"),
        ("sed -i 's/a = 1/a = 3/' pkg/core.py", "git stash"),
        ("sed -i.bak 's/a = 1/a = 3/' pkg/core.py", "mv pkg/core.py.bak pkg/core.py"),
        ("cp pkg/core.py /tmp/core.py; sed -i 1d pkg/core.py", "cp /tmp/core.py pkg/core.py"),
        (f"patch -p1 <<'EOF'\n{DIFF}EOF", f"patch -R -p1 <<'EOF'\n{DIFF}EOF"),
        (f"git apply <<'EOF'\n{DIFF}EOF", f"git apply -R <<'EOF'\n{DIFF}EOF"),
        ("sed -i 1d pkg/core.py; git diff > work.patch", "git apply -R work.patch"),
        (
            "cp pkg/core.py pkg/core.py.bak; sed -i 1d pkg/core.py",
            "python3 -c \"import shutil; shutil.copy('pkg/core.py.bak', 'pkg/core.py')\"",
        ),
        ("printf 'x = 1\\n' > pkg/new.py", "git clean -fd"),
    ],
)
def test_restoring_is_no_edit_and_leaves_no_change(run: Run, forward: str, back: str) -> None:
    steps = run(("cat pkg/core.py", 0, CORE), (forward, 0, ""), (back, 0, ""))
    assert edits(steps) == [1]
    assert steps[2].label == "change"


def test_editor_and_apply_patch_calls_edit(tmp_path: Path) -> None:
    """SWE-agent's editor, Claude Code's `Edit` and `Write`, Codex's custom tool, and their undo commands."""
    path = {"path": "/testbed/pkg/core.py"}
    edit = {"file_path": "/testbed/pkg/core.py", "old_string": "a = 3", "new_string": "a = 1"}
    calls = [
        ("exec_command", {"cmd": "cat pkg/core.py"}, CORE),
        ("apply_patch", {"input": BLOCK}, "Success. Updated the following files:\nM pkg/core.py"),
        ("Edit", edit, "The file /testbed/pkg/core.py has been updated."),
        ("str_replace_editor", {"command": "insert", "insert_line": 1, "new_str": "x", **path}, "edited"),
        ("str_replace_editor", {"command": "undo_edit", **path}, "Last edit undone successfully"),
        ("Write", {"file_path": "/testbed/pkg/core.py", "content": "b = 2\n"}, "File written successfully"),
        ("str_replace_editor", {"command": "create", "path": "pkg/new.py", "file_text": "y"}, "created"),
    ]
    document = atif_document(
        *(
            {"step_id": number, **atif_step([atif_call(name, **arguments)], atif_results(("c", output)))}
            for number, (name, arguments, output) in enumerate(calls)
        )
    )
    file = tmp_path / "run.atif.json"
    file.write_text(json.dumps(document))
    assert edits(annotate_steps(read_one(file))) == [1, 3, 5, 6]


def test_a_file_replaced_by_a_new_copy_is_edited(run: Run) -> None:
    steps = run(
        ("cat > f.py <<'EOF'\nimport sys\nprint(sys.stdin.read().upper())\nEOF", 0, ""),
        ("python3 f.py < pkg/core.py > pkg/core.py.tmp && mv pkg/core.py.tmp pkg/core.py", 0, ""),
        ("cp pkg/core.py pkg/core.py.bak", 0, ""),
    )
    assert edits(steps) == [1]


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("FAIL: wrong result 3", "failed"),
        ("\nFAILURE: expected 4", "failed"),
        ("ERROR in acreate()", "failed"),
        ("AssertionError raised as expected", "passed"),
        ("Issue not reproduced", "passed"),
        ("Failed: a Vector must be supplied", "failed"),
        ("ERRORS:\n?: (fields.E304) clashes", "passed"),
        ("✗ 0/3 tests passed", "failed"),
        ("Tests failed: 0/12", "passed"),
        ("❌ Failed: 0", "passed"),
        ("Test failed: None != 'abc'", "failed"),
        ("FAIL test_b: 0 != 1", "failed"),
        ("AssertionError: 0 != 1", "failed"),
        ("Results match expected: False", "failed"),
        ("OK: False", "failed"),
        ("All tests passed: no", "failed"),
        ("❌ Issue has not been fixed", "failed"),
        ("BUG has been fixed", "passed"),
        ("Error: reference could not be resolved", "failed"),
        ("Test 1 failed: 3 was expected, got 4", "failed"),
        ("caught\nTraceback (most recent call last):\nTypeError: x", "failed"),
    ],
)
def test_a_reproduction_that_exits_with_zero(run: Run, output: str, outcome: str) -> None:
    steps = run(EDIT, ("cat > /tmp/repro.py <<'EOF'\nx\nEOF\npython /tmp/repro.py", 0, output))
    assert outcomes(steps)[1] == ("reproduction", outcome)
    assert edits(steps) == [0]


@pytest.mark.parametrize(
    ("command", "code", "output", "outcome"),
    [
        # sympy-19637: no word "failed", and the counts stand on two lines.
        (
            "bin/test sympy/core | tail -3",
            0,
            "= tests finished: 44 passed, 2 skipped, 2 expected to fail, \n2 exceptions, in 0.28 seconds =\nDO *NOT* COMMIT!",
            "failed",
        ),
        ("pytest -q; true", 0, "\x1b[31m\x1b[1m2 failed\x1b[0m, \x1b[32m7 passed\x1b[0m\x1b[31m in 0.2s\x1b[0m", "failed"),
        # django-11433: the label was wrong, no test ran.
        (
            "./tests/runtests.py model_formz",
            1,
            "ERROR: model_formz (unittest.loader._FailedTest)\nImportError: Failed to import test module: model_formz\n"
            "ModuleNotFoundError: No module named 'model_formz'\nRan 1 test in 0.0s\n\nFAILED (errors=1)",
            "environment_error",
        ),
        # pytest-6202: nothing was collected because the edit does not parse.
        (
            "pytest testing",
            2,
            'collected 0 items / 2 errors\n___ ERROR collecting testing/a.py ___\nE     File "/testbed/pkg/core.py", line 9\n'
            "E   SyntaxError: invalid syntax\n=== 2 errors in 0.1s ===",
            "failed",
        ),
        ("python -m pytest -q", 1, "/usr/bin/python: No module named pytest", "environment_error"),
        (
            "bin/test sympy/core | tail",
            0,
            'Traceback (most recent call last):\n  File "bin/test", line 3, in <module>\n  File "/testbed/pkg/core.py", line 1\n'
            "ImportError: cannot import name 'Expr'",
            "failed",
        ),
        # The debugger was left at once, the summary is out.
        ("echo c | pytest --pdb tests/test_a.py", 0, "> /testbed/a.py(3)f()\n(Pdb) \n= 1 failed in 0.4s =", "failed"),
        ("timeout 5 pytest -q", 124, "....", "environment_error"),
        ("pytest -x", None, "", "environment_error"),
        ("python -m py_compile pkg/core.py && echo fine || echo broken", 0, "broken", "failed"),
        ("pytest -q tests; echo \"exit: $?\"", 0, "exit: 1", "failed"),
    ],
)  # fmt: skip
def test_outcomes_of_runner_outputs(
    run: Run, command: str, code: int | None, output: str, outcome: str
) -> None:
    steps = run(EDIT, (command, code, output))
    kind = "lint" if "py_compile" in command else "test"
    assert outcomes(steps)[1] == (kind, outcome)
    assert ("first_validation" in points(steps)) == (outcome in ("passed", "failed"))


def test_a_test_file_that_runs_no_tests_is_no_validation(run: Run) -> None:
    """sympy-23824: a test file run as a program only defines its tests and prints nothing."""
    steps = run(EDIT, ("python sympy/physics/hep/tests/test_gamma_matrices.py", 0, ""))
    assert outcomes(steps) == [None, None]


def test_a_stash_around_a_test_run_is_no_edit(run: Run) -> None:
    steps = run(
        EDIT,
        ("git stash && bin/test sympy/core; git stash pop", 0, "tests finished: 3 passed, in 0.1 seconds"),
    )
    assert edits(steps) == [0]
    assert outcomes(steps)[1] == ("test", "passed")


def test_files_in_a_new_directory_are_scratch(run: Run) -> None:
    """A name in an earlier error message is no directory of the base commit."""
    steps = run(
        ("cat > reproduce.py <<'EOF'\nx\nEOF\npython reproduce.py", 1, "ModuleNotFoundError: No module named 'reproduce_app'"),
        ("mkdir reproduce_app\ntouch reproduce_app/__init__.py\ncat > reproduce_app/models.py <<'EOF'\nx\nEOF", 0, ""),
        ("python reproduce.py", 0, "ok"),
    )  # fmt: skip
    assert points(steps) == {}
    assert outcomes(steps)[1:] == [None, ("reproduction", "passed")]


def test_commands_after_a_failed_and_never_ran(run: Run) -> None:
    line = "cd nowhere && sed -i 's/y/z/' pkg/core.py && pytest"
    steps = run(EDIT, (line, 1, "bash: line 1: cd: nowhere: No such file or directory"))
    assert edits(steps) == [0]
    assert outcomes(steps)[1] in (None, ("test", "environment_error"))


def test_a_reproduction_around_an_edit_in_one_line_is_still_a_reproduction(run: Run) -> None:
    line = "python /tmp/repro.py; sed -i 's/a/b/' pkg/core.py; python /tmp/repro.py"
    steps = run(
        ("cat > /tmp/repro.py <<'EOF'\nx\nEOF", 0, ""),
        (line, 0, "bad\nok"),
        ("python /tmp/repro.py", 0, "ok"),
    )
    assert outcomes(steps)[1:] == [("reproduction", "passed")] * 2
    assert points(steps) == {"first_source_edit": 1, "first_validation": 1}


def test_a_helper_script_removed_after_its_run_edits(run: Run) -> None:
    helper = "s = open('pkg/core.py').read()\nopen('pkg/core.py', 'w').write(s + 'x')\n"
    steps = run((f"cat > fix.py <<'EOF'\n{helper}EOF\npython fix.py && rm fix.py", 0, "done"))
    assert edits(steps) == [0]
    assert outcomes(steps) == [None]


def test_line_numbers_of_a_long_lived_shell_are_ignored(run: Run) -> None:
    output = "start\nbash: eval: line 10: syntax error near unexpected token `)'\nbash: eval: line 10: `python -m pytest -q )'"
    steps = run(EDIT, ("echo start\npython -m pytest -q )", 2, output))
    assert outcomes(steps) == [None, None]


def test_a_syntax_error_before_a_command_prevents_it(run: Run) -> None:
    """django-13925: a parenthesis in the thought is a syntax error, so nothing ran."""
    output = "bash: -c: line 1: syntax error near unexpected token `('"
    steps = run(EDIT, ("THOUGHT: now (finally) the tests\npython3 tests/runtests.py forms", 2, output))
    assert outcomes(steps)[1] is None


@pytest.mark.parametrize(
    "command",
    [
        "cat " + " " * 200_000 + "$",
        "cat <<A\n" * 30_000,
        "( " * 5_000 + "ls" + " )" * 5_000,
        "a && " * 20_000 + "pytest",
        "sed -i '999999999i x' a/b.py; sed -i '5,999999998s/a/b/' a/b.py; sed -i '/x/d' a/b.py",
        "python3 - <<'EOF'\na = 'x'\n" + "a = a + a\n" * 60 + "open(a, 'w')\nEOF",
        "python3 - <<'EOF'\n" + "open('a/b.py', 'w').write('x')\n" * 3_000 + "EOF",
        "sed -i 's/\\(a*\\)*b/x/' a/b.py",
        "sed -i 's/" + "[[:a:" * 20_000 + "/x/' a/b.py",
        "patch -p1 <<'EOF'\nBinary files" + " a and" * 50_000 + "\nEOF",
    ],
    ids=range(10),
)
def test_expensive_commands_are_processed_quickly(run: Run, command: str) -> None:
    """Each command makes a careless pattern or loop run for a very long time."""
    assert len(run(("cat a/b.py", 0, "a" * 300), (command, 0, "a::" * 300_000))) == 2


NEW_MODEL = "cat > pkg/sub/models.py <<'EOF'\nx = 1\nEOF\ncat setup.cfg"
MISSING = "No such file or directory"
WRITE = "p.write_text(p.read_text().replace('a = 1', 'a = 3'))"
DYING = f"from pathlib import Path\np = Path('pkg/core.py')\nassert 'zzz' in p.read_text()\n{WRITE}\n"
DYING_FUNCTION = (
    "from pathlib import Path\ndef patch(p):\n    p.read_text().index('zzz')\n"
    f"    {WRITE}\npatch(Path('pkg/core.py'))\n"
)
CAUGHT = (
    "from pathlib import Path\np = Path('pkg/core.py')\ntry:\n    p.read_text().index('zzz')\n"
    f"    {WRITE}\nexcept ValueError:\n    print('no such text')\n"
)
FRAMES = 'Traceback (most recent call last):\n  File "{0}", line {1}, in <module>\n'


@pytest.mark.parametrize(
    ("command", "output", "is_edit"),
    [
        (NEW_MODEL, "", True),
        (NEW_MODEL, f"bash: line 1: pkg/sub/models.py: {MISSING}\n[metadata]", False),
        (NEW_MODEL, "/bin/bash: line 1: pkg/sub/models.py: Permission denied", False),
        (NEW_MODEL, "bash: pkg/sub/models.py: Is a directory", False),
        (NEW_MODEL, "-bash: pkg/sub/models.py: Read-only file system", False),
        (NEW_MODEL, "sh: 1: cannot create pkg/sub/models.py: Directory nonexistent", False),
        (NEW_MODEL, "/bin/sh: can't create pkg/sub/models.py: nonexistent directory", False),
        (NEW_MODEL, "zsh:1: no such file or directory: pkg/sub/models.py", False),
        (NEW_MODEL, "sh: 1: cannot create pkg/sub/models.py: Permission denied", False),
        (NEW_MODEL, "sh: can't create pkg/sub/models.py: Permission denied", False),
        (NEW_MODEL, "warning: An error occurred while redirecting file 'pkg/sub/models.py'\nopen: x", False),
        (NEW_MODEL, "fish: The file 'pkg/sub/models.py' already exists", False),
        (NEW_MODEL, "bash: pkg/sub/models.py: Too many levels of symbolic links", False),
        (NEW_MODEL, "bash: Zeile 1: pkg/sub/models.py: Datei oder Verzeichnis nicht gefunden", False),
        (NEW_MODEL, "\x1b[31mbash: line 1: pkg/sub/models.py: Permission denied\x1b[0m", False),
        (NEW_MODEL, "bash: cannot create temp file for here-document: No space left on device", False),
        ("echo 'x = 1' | sudo tee pkg/b.py; true", "sudo: a password is required", False),
        (f"python - <<'EOF'\n{INLINE}EOF\ntrue", "/bin/sh: 1: python: not found", False),
        ("perl -pi -e 's/a/b' pkg/core.py; true", "syntax error at -e line 1, near x\nExecution of -e aborted.", False),
        ("patch -p1 < /tmp/a.patch; true", "can't find file to patch at input line 3", False),
        ("cp pkg/core.py pkg/core_backup_final.py", "", False),
        (NEW_MODEL, f"bash: line 4: other/file.py: {MISSING}", True),
        (NEW_MODEL, f"cat: setup.cfg: {MISSING}", True),
        (f"{NEW_MODEL}; mkdir -p pkg/sub; echo 'x = 1' > pkg/sub/models.py",
         f"bash: line 1: pkg/sub/models.py: {MISSING}", True),
        ("echo 'x = 1' | tee pkg/sub/a.py; true", f"tee: pkg/sub/a.py: {MISSING}", False),
        ("echo 'x = 1' | tee pkg/sub/a.py pkg/b.py; true", f"tee: pkg/sub/a.py: {MISSING}", True),
        ("cp /tmp/new.py pkg/sub/a.py; true",
         f"cp: cannot create regular file 'pkg/sub/a.py': {MISSING}", False),
        ("cp /tmp/gone.py pkg/a.py; cp /tmp/new.py pkg/b.py; true",
         f"cp: cannot stat '/tmp/gone.py': {MISSING}", True),
        ("mv /tmp/new.py pkg/sub/; true", "mv: cannot move '/tmp/new.py' to 'pkg/sub/': Not a directory", False),
        ("sed -i 's/a/b/' pkg/gone.py; true", f"sed: can't read pkg/gone.py: {MISSING}", False),
        ("sed -i 's/a/b/' pkg/gone.py pkg/core.py; true", f"sed: can't read pkg/gone.py: {MISSING}", True),
        ("perl -pi -e 's/a/b/' pkg/gone.py; true", f"Can't open pkg/gone.py: {MISSING}.", False),
        (f"cat > fix.patch <<'EOF'\n{DIFF}EOF\ngit apply fix.patch; true",
         "error: patch failed: pkg/core.py:1\nerror: pkg/core.py: patch does not apply", False),
        (f"python3 - <<'EOF'\n{INLINE}EOF\ntrue", "bash: line 1: python3: command not found", False),
        ("python3 fix.py > gone/log.txt; true", f"bash: line 1: gone/log.txt: {MISSING}", False),
        (f"python3 - <<'EOF'\n{DYING}EOF\ntrue", FRAMES.format("<stdin>", 3) + "AssertionError", False),
        (f"python3 - <<'EOF'\n{DYING_FUNCTION}EOF\ntrue",
         FRAMES.format("<stdin>", 5) + '  File "<stdin>", line 3, in patch\nValueError: substring not found', False),
        (f"cat > /tmp/fix.py <<'EOF'\n{DYING}EOF\npython3 /tmp/fix.py; true",
         FRAMES.format("/tmp/fix.py", 3) + "AssertionError", False),
        (f"cat > /tmp/fix.py <<'EOF'\n{CAUGHT}EOF\npython3 /tmp/fix.py", "no such text", False),
        (f"cat > /tmp/fix.py <<'EOF'\n{CAUGHT}EOF\npython3 /tmp/fix.py", "", True),
        (f"python3 - <<'EOF'\n{DYING}print('wrote it')\n1 / 0\nEOF\ntrue",
         "wrote it\n" + FRAMES.format("<stdin>", 6) + "ZeroDivisionError", True),
        ("cp pkg/core.py pkg/core_backup.py", "", False),
        ("cp pkg/core.py pkg/core.orig.py", "", False),
        ("cp -r pkg/sub pkg/sub_old && touch pkg/sub_old/a.py", "", False),
        ("cp pkg/core.py pkg/engine.py", "", True),
        ("cat > pkg/database_backup.py <<'EOF'\ndef dump(): pass\nEOF", "", True),
        ("touch scripts/fix.py", "", False),
        ("> pkg/fix.py", "", False),
        (f"cat > scripts/fix.py <<'EOF'\n{INLINE}EOF", "", False),
        (f"cat > scripts/fix.py <<'EOF'\n{INLINE}EOF\npython3 scripts/fix.py", "", True),
        ("cat > scripts/release.py <<'EOF'\nprint('release')\nEOF", "", True),
    ],
)  # fmt: skip
def test_what_a_recorded_command_edited(run: Run, command: str, output: str, is_edit: bool) -> None:
    """Exit code 0 says nothing about the parts before the last; the messages of shells and programs do."""
    seen = "./pkg:\ncore.py sub\nscripts:\nscripts/run.py\npkg/core.py"
    steps = run(
        ("ls -R . scripts; find pkg scripts", 0, seen), ("cat pkg/core.py", 0, CORE), (command, 0, output)
    )
    assert (edits(steps) == [2]) is is_edit


def test_a_path_that_an_error_calls_missing_does_not_exist(run: Run) -> None:
    """So a script of that name in the root is a scratch file; a search hit shows that the file exists."""
    write = ("cat > repro.py <<'EOF'\nprint(1)\nEOF", 0, "")
    missing = run(("cat repro.py; true", 0, f"cat: repro.py: {MISSING}"), write, ("python repro.py", 0, "1"))
    assert edits(missing) == []
    assert outcomes(missing)[-1] == ("reproduction", "passed")
    hit = run(("grep -n found repro.py", 0, "repro.py:3:    print('not found')"), write)
    assert edits(hit) == [1]


@pytest.mark.parametrize("place", ["/tmp/fix_response2.py", "fix.py", "scripts/fix.py"])
@pytest.mark.parametrize(
    "result", [(0, "nothing to do"), (1, "Traceback (most recent call last):\nValueError: x")]
)
def test_a_patch_script_is_never_a_reproduction(run: Run, place: str, result: tuple[int, str]) -> None:
    steps = run(EDIT, (f"cat > {place} <<'EOF'\n{INLINE}EOF", 0, ""), (f"python3 {place}", *result))
    assert outcomes(steps) == [None, None, None]


def test_a_patch_script_in_another_language_is_never_a_reproduction(run: Run) -> None:
    text = "const fs = require('fs');\nconst f = 'pkg/core.js';\nfs.writeFileSync({}, fs.readFileSync(f) + 'x');\n"
    for target, expected in (("f", None), ("'/tmp/out.js'", ("reproduction", "passed"))):
        write = f"cat > /tmp/fix.js <<'EOF'\n{text.format(target)}EOF"
        steps = run(("cat pkg/core.js", 0, "a"), EDIT, (write, 0, ""), ("node /tmp/fix.js", 0, ""))
        assert outcomes(steps)[-1] == expected


def test_a_script_that_filters_a_source_file_is_an_edit(run: Run) -> None:
    script = "import sys\nfor line in sys.stdin:\n    print(line.replace('a', 'b'), end='')\n"
    line = "python3 f.py < pkg/core.py > pkg/core.py.tmp && mv pkg/core.py.tmp pkg/core.py"
    steps = run((f"cat > f.py <<'EOF'\n{script}EOF", 0, ""), (line, 0, ""))
    assert (edits(steps), outcomes(steps)) == ([1], [None, None])


def test_files_of_a_case_that_a_script_builds_are_no_source(run: Run) -> None:
    script = (
        "import os\nos.makedirs('case', exist_ok=True)\nos.chdir('case')\n"
        "open('conf.py', 'w').write('x')\nprint(open('conf.py').read())\n"
    )
    steps = run((f"cat > make_case.py <<'EOF'\n{script}EOF\npython3 make_case.py", 0, "x"))
    assert (edits(steps), outcomes(steps)) == ([], [("reproduction", "passed")])


INPUT = ("mkdir -p repro && cat > repro/index.rst <<'EOF'\ntext\nEOF", 0, "")
CASE = ("cat > /tmp/case.py <<'EOF'\nx=1\nEOF", 0, "")


@pytest.mark.parametrize(
    ("package", "command", "kind"),
    [
        ("sphinx", "sphinx-build repro out", "reproduction"),
        ("sphinx", "cd repro && python -m sphinx -b html . _build", "reproduction"),
        ("sphinx", "python3 -m sphinx.cmd.build -b html repro out", "reproduction"),
        ("src/black", "black /tmp/case.py", "reproduction"),
        ("src/black", "echo 'x=1' | black -", "reproduction"),
        ("src/black", "black - < /tmp/case.py", "reproduction"),
        ("pylint", "python -m pylint --rcfile=x /tmp/case.py | tail -3", "reproduction"),
        ("pylint/pyreverse", "pyreverse -o dot /tmp/case.py", "reproduction"),
        ("flask", "FLASK_APP=/tmp/case.py flask routes", "reproduction"),
        ("black", "sphinx-build repro out", None),
        ("django", "black /tmp/case.py", None),
        ("django", "python -m pylint /tmp/case.py", "lint"),
        ("pylint", "python -m pylint pylint/core.py", "lint"),
        ("sphinx", "sphinx-build --version", None),
        ("sphinx", "sphinx-build manual out", None),
        ("src/black", "cat /tmp/case.py", None),
        ("docker", "docker build -f /tmp/case.py .", "build"),
    ],
)  # fmt: skip
def test_the_projects_own_program_on_the_agents_input(
    run: Run, package: str, command: str, kind: str | None
) -> None:
    steps = run((f"sed -i 's/x/y/' {package}/core.py", 0, ""), INPUT, CASE, (command, 0, ""))
    kinds = [None if step.validation is None else step.validation.kind for step in steps]
    assert kinds == [None, None, None, kind]


def test_a_shown_entry_point_is_a_program_of_the_project(run: Run) -> None:
    shown = "[options.entry_points]\nconsole_scripts =\n    tidy = pkg.cli:main\n"
    steps = run(EDIT, ("cat setup.cfg", 0, shown), CASE, ("tidy /tmp/case.py", 1, "error"))
    assert points(steps) == {"first_source_edit": 0, "first_validation": 3}
    assert outcomes(run(EDIT, CASE, ("tidy /tmp/case.py", 1, "error"))) == [None, None, None]


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ("b.is_subset(c): True", "reproduction exited 0; its output states no verdict"),
        ("Mismatch! Expected: 1, Got: 2", "reproduction failed"),
        ("Eq(b, c) failed with: 'EmptySet' object has no attribute 'equals'", "reproduction failed"),
        ("All tests passed", "reproduction passed"),
    ],
)
def test_a_result_is_described_alike_everywhere(run: Run, output: str, result: str) -> None:
    steps = run(EDIT, ("cat > repro.py <<'EOF'\nprint(1)\nEOF", 0, ""), ("python repro.py", 0, output))
    step = steps[-1]
    (point,) = step.points
    assert point.detail.startswith(f"{result}: ")
    assert explain_point(step, point, steps[:-1]).startswith(f"{result}: ")
    assert f"{step.validation.kind} {step.validation.result}" == result
