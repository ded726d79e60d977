"""Handoff points and continuation states of event sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.points.detectors import (
    classify_continuation,
    compute_continuation_state,
    create_state,
    find_evidence,
    list_points,
    list_validations,
    observe,
)
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint
from langgraph_takeover.handoff.trace.file_kinds import is_source, is_test
from langgraph_takeover.sandbox.interface import FileChange

from ...random_examples import examples

BASE = ("pkg", "sympy", "tests", "bin")
PASS = "= 3 passed in 0.1s ="
FAIL = "FAILED tests/test_a.py::test_x\n= 1 failed, 2 passed in 0.1s ="
CORE = "pkg/core.py"


def digest(content: str | None) -> str | None:
    return None if content is None else hashlib.sha256(content.encode()).hexdigest()


def change(path: str, before: str | None, after: str | None) -> FileChange:
    return FileChange(path=path, before=digest(before), after=digest(after))


class Run:
    """A run under construction."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def shell(
        self,
        command: str,
        output: str = "",
        *changes: FileChange,
        exit_code: int | None = 0,
        refused: bool = False,
        timed_out: bool = False,
    ) -> int:
        index = len(self.events)
        arguments = {"command": command}
        self.events += [
            Event(index=index, kind="action", tool="shell", text=command, arguments=arguments),
            Event(
                index=index + 1,
                kind="observation",
                tool="shell",
                text=output,
                exit_code=exit_code,
                refused=refused,
                timed_out=timed_out,
                changes=changes,
            ),
        ]
        return index + 1

    def editor(self, *changes: FileChange, refused: bool = False) -> int:
        index = len(self.events)
        self.events += [
            Event(index=index, kind="action", tool="editor", text="edit"),
            Event(
                index=index + 1,
                kind="observation",
                tool="editor",
                text="done",
                changes=changes,
                refused=refused,
            ),
        ]
        return index + 1

    @property
    def points(self) -> list[tuple[str, int]]:
        return [(p.kind, p.event_index) for p in list_points(self.events, BASE)]

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return [(v.kind, v.outcome) for v in list_validations(self.events, BASE)]


@pytest.fixture
def run() -> Run:
    return Run()


def test_the_three_points_of_a_run(run: Run) -> None:
    run.shell("pytest -q", FAIL, exit_code=1)
    edit = run.editor(change(CORE, "a", "b"))
    first = run.shell("pytest -q | tail -3", FAIL)
    again = run.shell("sed -i s/b/c/ pkg/core.py", "", change(CORE, "b", "c"))
    run.shell("pytest -q", PASS)
    run.editor(change(CORE, "c", "d"))
    assert run.points == [
        ("first_source_edit", edit),
        ("first_validation", first),
        ("first_post_failure_edit", again),
    ]


def test_an_edit_and_a_test_run_in_one_line(run: Run) -> None:
    at = run.shell("sed -i s/a/b/ pkg/core.py && pytest -q", FAIL, change(CORE, "a", "b"), exit_code=1)
    assert run.points == [("first_source_edit", at), ("first_validation", at)]


def test_a_test_run_before_the_edit_in_one_line(run: Run) -> None:
    at = run.shell("pytest -q; sed -i s/a/b/ pkg/core.py", FAIL, change(CORE, "a", "b"))
    assert run.points == [("first_source_edit", at)]
    assert compute_continuation_state(run.events, BASE) == "changed_not_validated"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("tests/test_core.py", "a", "b"),
        ("pkg/tests/helper.py", "a", "b"),
        ("pkg/core.py.bak", None, "a"),
        ("pkg/core.py.orig", None, "a"),
        ("pkg/fix.patch", None, "a"),
        ("pkg/core.py~", None, "a"),
        ("repro.py", None, "a"),
        ("newdir/app.py", None, "a"),
        ("/tmp/repro.py", None, "a"),
        ("pkg/__pycache__/core.cpython-311.pyc", None, "a"),
        ("pkg/__pycache__/x.py", None, "a"),
        ("pkg.egg-info/x.py", None, "a"),
        ("build/lib/pkg/core.py", None, "a"),
        ("docs.md", "a", "b"),
        (".git/hooks/x.py", None, "a"),
        (CORE, "a", None),
        (CORE, "a", "a"),
    ],
)
def test_no_source_edit(run: Run, path: str, before: str | None, after: str | None) -> None:
    run.editor(change(path, before, after))
    assert run.points == []
    assert compute_continuation_state(run.events, BASE) == (
        "changed_not_validated" if after is None else "no_source_change"
    )


@pytest.mark.parametrize(
    ("path", "before"),
    [
        (CORE, "a"),
        ("pkg/new.py", None),
        ("sympy/testing/runtests.py", "a"),
        ("setup.py", "a"),
        ("bin/tool", "a"),
    ],
)
def test_source_edit(run: Run, path: str, before: str | None) -> None:
    at = run.editor(change(path, before, "new"))
    assert run.points == [("first_source_edit", at)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("sympy/testing/runtests.py", False),
        ("sympy/testing/tests/test_x.py", True),
        ("sympy/testing/test_x.py", True),
        ("testing/logging.py", True),
        ("pkg/conftest.py", True),
        ("pkg/a_test.go", True),
        ("spec/a.rb", True),
        ("pkg/latest.py", False),
        ("pkg/contest.py", False),
        ("pkg/testutils.py", False),
    ],
)
def test_test_paths(path: str, expected: bool) -> None:
    assert is_test(path) is expected
    assert is_source(path, True, BASE) is not expected


def test_restored_and_known_contents_are_no_edits(run: Run) -> None:
    first = run.editor(change(CORE, "a", "b"))
    run.shell("pytest", FAIL, exit_code=1)
    run.shell("git stash", "", change(CORE, "b", "a"))
    run.shell("git stash pop", "", change(CORE, "a", "b"))
    run.shell("cp pkg/core.py.bak pkg/core.py", "", change(CORE, "b", "a"))
    run.shell("git checkout v1 -- pkg", "", change("pkg/other.py", "x", "older"))
    run.shell("sed -i s/none/x/ pkg/core.py")
    assert [p for p in run.points if p[0] != "first_validation"] == [("first_source_edit", first)]
    again = run.shell("git apply x.patch", "", change(CORE, "a", "c"))
    assert run.points[-1] == ("first_post_failure_edit", again)


def test_restored_work_is_no_source_change(run: Run) -> None:
    run.editor(change(CORE, "a", "b"))
    assert compute_continuation_state(run.events, BASE) == "changed_not_validated"
    run.shell("git checkout .", "", change(CORE, "b", "a"))
    assert compute_continuation_state(run.events, BASE) == "no_source_change"


def test_a_helper_script_edits_when_it_runs(run: Run) -> None:
    run.shell("cat > fix.py <<'EOF'\nx\nEOF", "", change("fix.py", None, "x"))
    at = run.shell("python3 fix.py", "ok", change(CORE, "a", "b"))
    run.shell("python3 fix.py", "ok")
    assert run.points == [("first_source_edit", at)]
    assert run.outcomes == []


def test_a_helper_script_and_a_reproduction_in_one_line(run: Run) -> None:
    run.shell(
        "cat > repro.py < x; cat > fix.py < y", "", change("repro.py", None, "r"), change("fix.py", None, "f")
    )
    at = run.shell("python fix.py && python repro.py", "FAIL: 3", change(CORE, "a", "b"))
    assert run.points == [("first_source_edit", at), ("first_validation", at)]
    assert run.outcomes == [("reproduction", "failed")]


def test_a_reproduction_after_sed_is_still_a_reproduction(run: Run) -> None:
    at = run.shell(
        "cat > /tmp/repro.py <<'EOF'\nx\nEOF\nsed -i s/a/b/ pkg/core.py\npython /tmp/repro.py",
        "value: 3",
        change("/tmp/repro.py", None, "x"),
        change(CORE, "a", "b"),
    )
    assert run.points == [("first_source_edit", at), ("first_validation", at)]
    assert run.outcomes == [("reproduction", "passed")]


def test_a_script_of_the_base_is_no_reproduction(run: Run) -> None:
    run.editor(change(CORE, "a", "b"), change("demo.py", "a", "b"))
    run.shell("python demo.py", "FAIL")
    assert run.outcomes == []


@pytest.mark.parametrize(
    ("output", "exit_code"),
    [("bash: pytest: command not found", 127), ("/usr/bin/python: No module named pytest", 1), ("", None)],
)
def test_no_result_fires_nothing(run: Run, output: str, exit_code: int | None) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell("python -m pytest", output, exit_code=exit_code, timed_out=exit_code is None)
    again = run.editor(change(CORE, "b", "c"))
    at = run.shell("bin/test pkg", "tests finished: 2 passed, in 0.1 seconds")
    assert again not in [index for _, index in run.points]
    assert run.points[-1] == ("first_validation", at)


def test_a_result_without_a_sign_is_a_result_but_no_failure(run: Run) -> None:
    run.editor(change(CORE, "a", "b"))
    at = run.shell("pytest | tail -0", "")
    assert run.points[1:] == [("first_validation", at)]
    run.editor(change(CORE, "b", "c"))
    assert [kind for kind, _ in run.points] == ["first_source_edit", "first_validation"]
    run.shell("pytest | tail -0", "")
    assert compute_continuation_state(run.events, BASE) == "changed_validation_unknown"


def test_a_format_without_exit_codes_has_results(run: Run) -> None:
    run.shell("cat > repro.py <<'EOF'\nprint(f())\nEOF", "", change("repro.py", None, "print"))
    run.editor(change(CORE, "a", "b"))
    at = run.shell("python repro.py", "345", exit_code=None)
    assert run.points[-1] == ("first_validation", at)
    assert run.outcomes == [("reproduction", "unknown")]


@pytest.mark.parametrize(
    ("command", "output", "exit_code"),
    [
        ("pytest", "...\n[The command has no new output after 10 seconds. …]", None),
        ("pytest", "[the command ended without an exit code]\n...", None),
        ("pytest > log 2>&1; echo done", "done", 0),
        ("pytest &", "[1] 12", 0),
    ],
)
def test_a_validation_that_has_not_shown_its_end_is_no_result(
    run: Run, command: str, output: str, exit_code: int | None
) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell(command, output, exit_code=exit_code)
    assert [kind for kind, _ in run.points] == ["first_source_edit"]


@pytest.mark.parametrize(
    ("script", "output", "verdict", "state"),
    [
        ("print(f())", "345", "exit_code_only", "changed_validation_unknown"),
        ("print(f())", "PASS", "explicit", "changed_validation_passing"),
        ("print(f())", "Issue not reproduced", "explicit", "changed_validation_passing"),
        ("assert f() == 345", "", "explicit", "changed_validation_passing"),
        ("import sys\nsys.exit(f() != 345)", "", "explicit", "changed_validation_passing"),
        ("# we do not assert anything\nf()", "", "exit_code_only", "changed_validation_unknown"),
        ("print(f())", "No errors, all tests passed", "explicit", "changed_validation_passing"),
        ("print(f())", "10 tests: 0 failed, 10 passed", "explicit", "changed_validation_passing"),
        ("print(f())", "Not reproduced: output is correct", "explicit", "changed_validation_passing"),
        ("print(f())", "No tests passed", "exit_code_only", "changed_validation_unknown"),
        ("print(f())", "Argument passed: 3", "exit_code_only", "changed_validation_unknown"),
        (
            "print(f())",
            "Success! (This should not happen before fix)",
            "exit_code_only",
            "changed_validation_unknown",
        ),
    ],
)
def test_exit_code_zero_alone_is_no_passing_validation(
    run: Run, script: str, output: str, verdict: str, state: str
) -> None:
    run.shell(f"cat > repro.py <<'EOF'\n{script}\nEOF", "", change("repro.py", None, script))
    run.editor(change(CORE, "a", "b"))
    run.shell("python repro.py", output)
    assert list_validations(run.events, BASE)[-1].verdict == verdict
    assert compute_continuation_state(run.events, BASE) == state


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_replaced_script_no_longer_asserts(run: Run, *, is_removed: bool) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell("cat > repro.py <<'EOF'\nassert f()\nEOF", "", change("repro.py", None, "assert"))
    if is_removed:
        run.shell("rm repro.py", "", change("repro.py", "assert", None))
    before = None if is_removed else "assert"
    run.shell("cat > repro.py <<'EOF'\nprint(f())\nEOF", "", change("repro.py", before, "print"))
    run.shell("python repro.py", "345")
    assert list_validations(run.events, BASE)[-1].verdict == "exit_code_only"


def test_a_silent_script_does_not_weaken_a_passing_test_run(run: Run) -> None:
    run.shell("cat > repro.py <<'EOF'\nprint(f())\nEOF", "", change("repro.py", None, "print"))
    run.editor(change(CORE, "a", "b"))
    run.shell("pytest -q", PASS)
    run.shell("python repro.py", "345")
    assert compute_continuation_state(run.events, BASE) == "changed_validation_passing"
    run.editor(change(CORE, "b", "c"))
    run.shell("python repro.py", "345")
    assert compute_continuation_state(run.events, BASE) == "changed_validation_unknown"


@pytest.mark.parametrize("command", ["pytest | sed 's/a/[&]/'", "pytest -k 'a & b' | cat", "pytest |& tail"])
def test_an_ampersand_alone_starts_no_background_command(run: Run, command: str) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell(command, "")
    assert [kind for kind, _ in run.points] == ["first_source_edit", "first_validation"]


def test_a_long_output_of_blank_lines_is_judged_quickly(run: Run) -> None:
    run.shell("cat > repro.py <<'EOF'\nprint(f())\nEOF", "", change("repro.py", None, "print"))
    run.shell("python repro.py", "\n " * 100_000 + "!\n" * 50_000)
    assert list_validations(run.events, BASE)[-1].verdict == "exit_code_only"


def test_refused_calls_fire_nothing(run: Run) -> None:
    run.editor(change(CORE, "a", "b"), refused=True)
    assert run.points == []
    run.editor(change(CORE, "a", "b"))
    run.shell("pytest", PASS, refused=True)
    assert [kind for kind, _ in run.points] == ["first_source_edit"]


def test_a_late_result_belongs_to_the_event_that_shows_it(run: Run) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell("pytest", "....\n[The command has no new output after 10 seconds. …]", exit_code=None)
    at = run.shell("", FAIL, exit_code=1)
    assert run.points[-1] == ("first_validation", at)
    assert run.outcomes == [("test", "unknown"), ("test", "failed")]


def test_a_result_shown_from_a_log(run: Run) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell("pytest > /tmp/log 2>&1 &", "[1] 4")
    run.shell("ls")
    at = run.shell("tail -3 /tmp/log", PASS)
    assert run.points[-1] == ("first_validation", at)


def test_built_files_are_no_edits(run: Run) -> None:
    run.shell("python setup.py build_ext --inplace", "", change("pkg/fast.c", None, "generated"))
    assert run.points == []


def test_continuation_follows_the_latest_change(run: Run) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell("pytest", FAIL, exit_code=1)
    assert compute_continuation_state(run.events, BASE) == "changed_validation_failing"
    run.editor(change(CORE, "b", "c"))
    assert compute_continuation_state(run.events, BASE) == "changed_not_validated"
    run.shell("pytest", PASS)
    assert compute_continuation_state(run.events, BASE) == "changed_validation_passing"


def test_validation_runs_name_their_command(run: Run) -> None:
    at = run.shell("cd pkg && pytest -q", FAIL, exit_code=1)
    (validation,) = list_validations(run.events, BASE)
    assert (validation.event_index, validation.command, validation.cwd) == (at, "cd pkg && pytest -q", "pkg")
    assert find_evidence(validation, run.events) == (
        "FAILED tests/test_a.py::test_x",
        "= 1 failed, 2 passed in 0.1s =",
    )


def test_detail_is_one_line(run: Run) -> None:
    run.editor(change(CORE, "a", "b"))
    run.shell("cat <<'EOF'\n" + "x\n" * 300 + "EOF\npytest", PASS)
    details = [p.detail for p in list_points(run.events, BASE)]
    assert details[0] == "edited pkg/core.py"
    assert "\n" not in details[1]
    assert len(details[1]) <= 160


COMMANDS = st.sampled_from(
    [
        "pytest -q",
        "pytest | tail",
        "sed -i s/a/b/ pkg/core.py && pytest",
        "python repro.py",
        "git stash",
        "ls",
        "",
    ]
)
OUTPUTS = st.sampled_from([PASS, FAIL, "", "FAIL", "bash: pytest: command not found"])
CHANGES = st.builds(
    change,
    st.sampled_from([CORE, "pkg/b.py", "repro.py", "tests/test_a.py"]),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, "a", "b", "c", "d"]),
)


@st.composite
def event_rows(draw: st.DrawFn) -> list[Event]:
    """Actions and observations in any order, as in a damaged log."""
    events = []
    for index in range(draw(st.integers(0, 14))):
        tool = draw(st.sampled_from(["shell", "shell", "editor"]))
        if draw(st.booleans()):
            arguments = {"command": draw(COMMANDS)}
            events.append(Event(index=index, kind="action", tool=tool, text="", arguments=arguments))
        else:
            events.append(
                Event(
                    index=index,
                    kind="observation",
                    tool=tool,
                    text=draw(OUTPUTS),
                    exit_code=draw(st.sampled_from([None, 0, 1, 127])),
                    refused=draw(st.booleans()),
                    timed_out=draw(st.booleans()),
                    changes=tuple(draw(st.lists(CHANGES, max_size=2))),
                )
            )
    return events


def walk(events: Sequence[Event]) -> list[HandoffPoint]:
    """The points, in order."""
    state, points = create_state(BASE), []
    for event in events:
        state, fired = observe(state, event)
        assert all(p.event_index == event.index for p in fired)
        points += fired
    return points


@settings(max_examples=examples(300))
@given(event_rows(), st.integers(0, 14))
def test_points_are_single_ordered_and_stable(events: list[Event], cut: int) -> None:
    points = walk(events)
    kinds = [p.kind for p in points]
    assert len(set(kinds)) == len(kinds)
    assert [p.event_index for p in points] == sorted(p.event_index for p in points)
    if kinds:
        assert kinds[0] == "first_source_edit"
    if "first_post_failure_edit" in kinds:
        assert kinds == ["first_source_edit", "first_validation", "first_post_failure_edit"]
    assert walk(events[:cut]) == [p for p in points if p.event_index < cut]


@pytest.mark.parametrize("path", ["repro.py", "new/x.py", "/tmp/z.py"])
def test_a_scratch_file_written_twice_stays_scratch(path: str) -> None:
    state = create_state(("src",))
    for index, (before, after) in enumerate(((None, "1" * 64), ("1" * 64, "2" * 64))):
        change = FileChange(path=path, before=before, after=after)
        action = Event(
            index=2 * index, kind="action", tool="editor", text="", arguments={"command": "create"}
        )
        observation = Event(
            index=2 * index + 1, kind="observation", tool="editor", text="", changes=(change,)
        )
        for event in (action, observation):
            state, fired = observe(state, event)
            assert fired == ()
    assert classify_continuation(state) == "no_source_change"
