"""The note from evidence alone, and from a model's replies to the notes prompt."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.observed_fields import build_observed_fields
from langgraph_takeover.handoff.notes.structured_note import (
    BUDGET_TOKENS,
    SHRINK_ORDER,
    render_structured_note,
)
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord, Notes, StatedFields, TaskBrief
from langgraph_takeover.handoff.text import patch_sections
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS, NONE_OBSERVED, STATED_FIELDS, UNKNOWN
from langgraph_takeover.handoff.trace.events import Event, FileRead, HandoffPoint, Usage
from langgraph_takeover.sandbox.interface import FileChange, Snapshot

from ...random_examples import examples

PASSED = "Ran 1 test in 0.1s\n\nOK"
FAILED = "FAIL: test_x (tests.T)\nAssertionError: 1 != 2\nRan 1 test in 0.1s\n\nFAILED (failures=1)"
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


class Run:
    """A record under construction."""

    def __init__(self, patch: str = "") -> None:
        self.patch = patch
        self.events: list[Event] = []

    def shell(self, command: str, output: str = "", *changes: FileChange, **fields: Any) -> Run:
        index = len(self.events)
        arguments = {"command": command}
        fields = {"exit_code": 0} | fields
        self.events += [
            Event(index=index, kind="action", tool="shell", text=command, arguments=arguments),
            Event(index=index + 1, kind="observation", tool="shell", text=output, changes=changes, **fields),
        ]
        return self

    def record(self, notes: Notes | None = None) -> HandoffRecord:
        return HandoffRecord(
            id="r",
            task=TaskBrief(id="t", prompt="Do it.", base_commit="x", base_directories=("pkg", "tests")),
            predecessor="m",
            point=HandoffPoint(kind="requested", event_index=max(len(self.events) - 1, 0), detail=""),
            patch=self.patch,
            snapshot=Snapshot(
                backend="process", base="", location="", digest="", workspace="", shell_state=""
            ),
            thread_id="",
            checkpoint_id="",
            trace=tuple(self.events),
            created_at="",
            notes=notes,
        )

    @property
    def fields(self) -> dict[str, str]:
        return {field.title: field.text for field in build_observed_fields(Evidence(self.record()))}


def change(path: str, before: str | None = A, after: str | None = B) -> FileChange:
    return FileChange(path=path, before=before, after=after)


def notes(stated: StatedFields | None = None, **structured: str | Claim | tuple[Claim, ...]) -> Notes:
    claims = {
        name: value if isinstance(value, tuple) else (Claim(text=value) if isinstance(value, str) else value,)
        for name, value in structured.items()
    }
    return Notes(
        model="m",
        summary="s",
        structured=claims,
        stated=stated or StatedFields(),
        summary_usage=Usage(),
        structured_usage=Usage(),
    )


CORE = change("pkg/core.py")


def test_a_run_that_did_nothing() -> None:
    assert Run().fields == {
        "Repository change state": "nothing differs from the base commit",
        "Changed source files": NONE_OBSERVED,
        "Latest source change": NONE_OBSERVED,
        "Non-source artifacts": NONE_OBSERVED,
        "Validation outcome after the latest source change": NONE_OBSERVED,
        "Latest validation command": NONE_OBSERVED,
        "Latest validation evidence": NONE_OBSERVED,
        "Continuation state": "no_source_change",
        "Commands already tried": NONE_OBSERVED,
        "Files already read": NONE_OBSERVED,
    }


def test_a_run_that_edited_and_failed() -> None:
    run = Run(
        "diff --git a/pkg/core.py b/pkg/core.py\nindex 1..2 100644\n--- a/pkg/core.py\n+++ b/pkg/core.py\n"
        "@@ -1,3 +1,4 @@\n x\n-- y\n++ z\n+z\n@@ -9 +10 @@\n-a\n+b\n"
        "diff --git a/pkg/core.pyx b/pkg/core.pyx\n--- a/pkg/core.pyx\n+++ b/pkg/core.pyx\n@@ -1 +1 @@\n-a\n+b\n"
    )
    read = (FileRead(path="pkg/core.py", sha256=A),)
    run.shell("cat pkg/core.py", "x", reads=read).shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    run.shell("cat > repro.py <<E\nE", "", change("repro.py", None), change("tests/test_a.py", A, C))
    run.shell("cd tests && python -m unittest tests.T  2>&1", FAILED, exit_code=1)
    fields = run.fields
    assert fields["Repository change state"] == (
        "1 source and 2 other files differ from the base commit; no recorded action made the snapshot's "
        "difference in pkg/core.pyx"
    )
    assert fields["Changed source files"] == "\n- pkg/core.py (+3 -2)"
    assert fields["Non-source artifacts"] == (
        "\n- repro.py (scratch file, new)\n- tests/test_a.py (test file, changed)"
    )
    assert fields["Latest source change"] == "`sed -i s/a/b/ pkg/core.py` changed pkg/core.py"
    assert fields["Validation outcome after the latest source change"] == "failed"
    assert "cd tests && python -m unittest tests.T  2>&1" in fields["Latest validation command"]
    assert "in tests" in fields["Latest validation command"]
    assert "FAILED (failures=1)" in fields["Latest validation evidence"]
    assert fields["Continuation state"] == "changed_validation_failing"
    assert fields["Commands already tried"].splitlines()[-1] == (
        "- `cd tests && python -m unittest tests.T 2>&1` → exit code 1"
    )
    assert fields["Files already read"] == "\n- pkg/core.py"


def test_a_validation_before_the_change_does_not_count() -> None:
    run = Run().shell("python -m unittest", PASSED).shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    assert run.fields["Validation outcome after the latest source change"] == NONE_OBSERVED
    assert "python -m unittest" in run.fields["Latest validation command"]
    assert run.fields["Continuation state"] == "changed_not_validated"


def test_a_reverted_change_does_not_count() -> None:
    run = Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    run.shell("git checkout .", "", change("pkg/core.py", B, A))
    assert run.fields["Repository change state"] == "nothing differs from the base commit"
    assert run.fields["Continuation state"] == "no_source_change"


def test_commands_without_a_result_are_marked() -> None:
    run = Run().shell("sleep 99", "", exit_code=None, timed_out=True).shell("kill $$", "", exit_code=None)
    run.shell("echo a\x00b", "", refused=True, exit_code=None)
    assert run.fields["Commands already tried"] == "\n- `sleep 99` → timed out\n- `kill $$` → UNKNOWN"


@pytest.mark.parametrize(
    ("patch", "shown"),
    [
        ("", "pkg/core.py"),
        ("diff --git a/pkg/core.py b/pkg/core.py\nold mode 100644\nnew mode 100755\n", "pkg/core.py (+0 -0)"),
        (
            "diff --git a/pkg/core.py b/pkg/core.py\nnew file mode 100644\n--- /dev/null\n+++ b/pkg/core.py\n"
            "@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n",
            "pkg/core.py (+2 -0)",
        ),
        (
            "diff --git a/pkg/core.py b/pkg/core.py\ndeleted file mode 100644\n--- a/pkg/core.py\n+++ /dev/null\n"
            "@@ -1 +0,0 @@\n-a\n",
            "pkg/core.py (+0 -1)",
        ),
        (
            "diff --git a/pkg/core.py b/pkg/core.py\n--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1 +1,2 @@\n a\n"
            "+diff --git a/pkg/core.py b/pkg/core.py\n",
            "pkg/core.py (+1 -0)",
        ),
    ],
)
def test_lines_are_counted_from_the_patch(patch: str, shown: str) -> None:
    assert Run(patch).shell("x", "", CORE).fields["Changed source files"] == f"\n- {shown}"


def test_a_validation_command_is_shown_exactly() -> None:
    exact = "python -m unittest " + " ".join(f"tests.T{n}" for n in range(500))
    assert exact in Run().shell(exact, PASSED).fields["Latest validation command"]


def test_a_validation_before_the_latest_change_is_marked() -> None:
    run = Run().shell("python -m unittest", PASSED)
    assert "before the latest source change" not in run.fields["Latest validation command"]
    run.shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    assert "before the latest source change" in run.fields["Latest validation command"]


@pytest.mark.parametrize("command", ["pytest -q", "sed -i s/b/c/ pkg/core.py; pytest -q"])
def test_a_validation_that_could_not_start_is_not_called_older(command: str) -> None:
    changes = (change("pkg/core.py", B, C),) if "sed" in command else ()
    run = Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    run.shell(command, "bash: pytest: command not found", *changes, exit_code=127)
    shown = run.fields["Latest validation command"]
    assert shown.startswith("test, environment_error\n")
    assert shown.endswith("\n`pytest` was not found under this name.")


def test_files_that_only_one_of_trace_and_snapshot_knows_are_named() -> None:
    patch = "diff --git a/pkg/{0} b/pkg/{0}\n--- a/pkg/{0}\n+++ b/pkg/{0}\n@@ -1 +1 @@\n-a\n+b\n"
    agree = Run(patch.format("core.py")).shell("x", "", CORE).fields["Repository change state"]
    assert agree == "1 source and 0 other files differ from the base commit"
    other = Run(patch.format("other.py")).shell("x", "", CORE).fields["Repository change state"]
    assert other == (
        f"{agree}; in the snapshot, pkg/core.py equal the base commit, although recorded calls changed them "
        "(committed or undone); no recorded action made the "
        "snapshot's difference in pkg/other.py"
    )


def test_a_renamed_file_is_in_trace_and_snapshot() -> None:
    patch = "diff --git a/pkg/old.py b/pkg/new.py\nsimilarity index 100%\nrename from pkg/old.py\nrename to pkg/new.py\n"
    moved = (change("pkg/old.py", A, None), change("pkg/new.py", None, A))
    fields = Run(patch).shell("git mv pkg/old.py pkg/new.py", "", *moved).fields
    assert fields["Repository change state"] == "2 source and 0 other files differ from the base commit"
    shown = "\n- pkg/new.py (renamed from pkg/old.py, +0 -0)\n- pkg/old.py"
    assert fields["Changed source files"] == shown


def test_a_patch_is_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    patches: list[str] = []
    monkeypatch.setattr(patch_sections, "split_by_file", lambda patch: patches.append(patch) or [])
    render_structured_note(Run("patch").shell("x", "", CORE, change("pkg/a.py")).record())
    assert patches == ["patch"]


def test_the_note_keeps_its_budget_and_is_cut_in_order() -> None:
    run = (
        Run("x").shell("sed -i s/a/b/ pkg/core.py", "", CORE).shell("python -m unittest", FAILED, exit_code=1)
    )
    for number in range(100):
        read = (FileRead(path=f"pkg/file_{number}.py", sha256=A),)
        run.shell(f"echo {number} " + "y" * 2000, reads=read)
    long = tuple(Claim(text=f"claim {n} " + "z" * 500, events=(1,)) for n in range(12))
    paths = StatedFields(changed_files=tuple(f"pkg/{'s' * 280}_{n}.py" for n in range(50)))
    structured = notes(paths, **dict.fromkeys(MODEL_FIELDS, long))
    text = render_structured_note(run.record(structured))
    assert len(text) < 4 * BUDGET_TOKENS + 600
    assert "- (95 more left out)" in text, "the files read give way first"
    assert "pkg/file_99.py" in text
    assert "echo 99" in text
    for kept in ("pkg/core.py", "python -m unittest", "FAILED (failures=1)", "changed_validation_failing"):
        assert kept in text
    assert "claim 0" in text
    assert "(contradicted: it does not differ from the base commit)" in text
    small = render_structured_note(run.record(notes(work_completed=Claim(text="Edited it", events=(0,)))))
    assert "Edited it" in small
    always = [title for title in SHRINK_ORDER if title != "Background processes"]
    shown = {title: small.count(f"**{title}:**") for title in always}
    assert set(shown.values()) == {1}


TICKS = st.text("`~\nab ", max_size=30)


@given(TICKS)
@settings(max_examples=examples(150))
def test_no_content_closes_its_fence(text: str) -> None:
    command = f"python -m unittest; echo {text!r} '{text}'"
    shown = Run().shell(command, PASSED).fields["Latest validation command"]
    if shown == NONE_OBSERVED:
        return
    _, fence, *rest = shown.split("\n")
    assert re.fullmatch("`{3,}", fence)
    assert sum(line.strip().startswith(fence) for line in rest) == 1


@given(st.text("`ab", min_size=1, max_size=20))
@settings(max_examples=examples(100))
def test_no_command_closes_its_inline_code(text: str) -> None:
    line = Run().shell(f"echo {text}").fields["Commands already tried"].strip()
    ticks = re.match("- (`+)", line)
    assert ticks
    inside = line.removeprefix(f"- {ticks[1]}").removesuffix(f"{ticks[1]} → exit code 0")
    assert text in inside
    assert len(ticks[1]) not in map(len, re.findall("`+", inside))


def test_no_file_name_begins_a_line() -> None:
    fields = Run().shell("x", "", change("a\n## Task\n- b.txt", None)).fields
    assert fields["Non-source artifacts"] == "\n- a ## Task - b.txt (scratch file, new)"


def test_missing_fields_are_unknown() -> None:
    for written in (None, notes()):
        text = render_structured_note(Run().record(written))
        assert text.count(UNKNOWN) == len(STATED_FIELDS) + len(MODEL_FIELDS)
    run = Run().shell("ls", "README")
    text = render_structured_note(
        run.record(
            notes(work_completed=Claim(text="All of it.", events=(1,)), observed_failures=NONE_OBSERVED)
        )
    )
    assert "**Work completed:** All of it.\n" in text
    assert f"**Observed failures:** {NONE_OBSERVED}\n" in text
    assert text.count(UNKNOWN) == len(STATED_FIELDS) + len(MODEL_FIELDS) - 2


def test_model_text_changes_no_observed_field() -> None:
    run = Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    stated = StatedFields(changed_files=(), validation_passes="yes", work_done="yes")
    lying = run.record(notes(stated, work_completed="Nothing was changed."))
    assert build_observed_fields(Evidence(lying)) == build_observed_fields(Evidence(run.record()))


def test_pointers_name_the_source_events() -> None:
    run = Run().shell("cat pkg/core.py", "x", reads=(FileRead(path="pkg/core.py", sha256=A),))
    run.shell("sed -i s/a/b/ pkg/core.py", "", CORE).shell("python -m unittest", FAILED, exit_code=1)
    structured = notes(work_completed=Claim(text="Edited pkg/core.py", events=(2, 3)))
    with_pointers, without = (
        render_structured_note(run.record(structured), pointers=True),
        render_structured_note(run.record(structured)),
    )
    for line in (
        "- pkg/core.py [e3]",
        "- `python -m unittest` → exit code 1 [e5]",
        "- pkg/core.py [e1]",
        "Edited pkg/core.py [e2, e3]",
        "**Latest validation command:** test, failed [e5]\n```\npython -m unittest\n```",
    ):
        assert line in with_pointers
    assert not re.search(r"\[e\d", without)


def test_exit_code_zero_without_a_verdict_is_not_called_a_pass() -> None:
    run = Run().shell("cat > repro.py <<'EOF'\nprint(f())\nEOF", "", change("repro.py", None))
    run.shell("sed -i s/a/b/ pkg/core.py", "", CORE).shell("python repro.py", "345")
    fields = run.fields
    assert (
        fields["Validation outcome after the latest source change"]
        == "exited 0; its output states no verdict"
    )
    assert "reproduction, exited 0; its output states no verdict" in fields["Latest validation command"]
    assert fields["Continuation state"] == "changed_validation_unknown"
