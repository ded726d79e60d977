"""What the note says from evidence alone, and what a model's replies to the notes prompt come to."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage

from handoff.event import Event, FileRead, HandoffPoint, Usage
from handoff.note import MODEL_FIELDS, NONE_OBSERVED, UNKNOWN, observed_fields, structured_note
from handoff.note_writing import TooLong, read_fields, write_notes
from handoff.record import HandoffRecord, Notes, TaskBrief
from sandbox.machine import FileChange, Snapshot

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
        return dict(observed_fields(self.record()))


def change(path: str, before: str | None = A, after: str | None = B) -> FileChange:
    return FileChange(path=path, before=before, after=after)


def notes(**structured: str) -> Notes:
    return Notes(
        model="m", summary="s", structured=structured, summary_usage=Usage(), structured_usage=Usage()
    )


CORE = change("pkg/core.py")


def test_a_run_that_did_nothing() -> None:
    assert Run().fields == {
        "Repository change state": "nothing differs from the base commit",
        "Changed source files": NONE_OBSERVED,
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
    assert fields["Repository change state"] == "1 source and 2 other files differ from the base commit"
    assert fields["Changed source files"] == "\n- pkg/core.py (+3 -2)"
    assert fields["Non-source artifacts"] == "\n- repro.py\n- tests/test_a.py"
    assert fields["Validation outcome after the latest source change"] == "failed"
    assert "cd tests && python -m unittest tests.T  2>&1" in fields["Latest validation command"]
    assert "in tests" in fields["Latest validation command"]
    assert "FAILED (failures=1)" in fields["Latest validation evidence"]
    assert fields["Continuation state"] == "changed_validation_failing"
    assert fields["Commands already tried"].splitlines()[-1] == (
        "- `cd tests && python -m unittest tests.T 2>&1` → exit code 1"
    )
    assert fields["Files already read"] == "\n- pkg/core.py"


def test_a_validation_before_the_change_is_none_after_it() -> None:
    run = Run().shell("python -m unittest", PASSED).shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    assert run.fields["Validation outcome after the latest source change"] == NONE_OBSERVED
    assert "python -m unittest" in run.fields["Latest validation command"]
    assert run.fields["Continuation state"] == "changed_not_validated"


def test_a_change_that_was_taken_back_is_none() -> None:
    run = Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    run.shell("git checkout .", "", change("pkg/core.py", B, A))
    assert run.fields["Repository change state"] == "nothing differs from the base commit"
    assert run.fields["Continuation state"] == "no_source_change"


def test_commands_without_a_result_say_so() -> None:
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


def test_long_lists_and_commands_are_bounded() -> None:
    run = Run()
    for number in range(100):
        run.shell(f"echo {number} " + "y" * 2000)
    lines = run.fields["Commands already tried"].splitlines()
    assert lines[1] == "- (60 earlier ones left out)"
    assert len(lines) == 42
    assert "echo 99" in lines[-1]
    assert max(map(len, lines)) < 400
    exact = "python -m unittest " + " ".join(f"tests.T{n}" for n in range(500))
    assert exact in Run().shell(exact, PASSED).fields["Latest validation command"]


TICKS = st.text("`~\nab ", max_size=30)


@given(TICKS)
@settings(max_examples=150, deadline=None)
def test_no_content_closes_its_fence(text: str) -> None:
    command = f"python -m unittest; echo {text!r} '{text}'"
    shown = Run().shell(command, PASSED).fields["Latest validation command"]
    if shown == NONE_OBSERVED:
        return
    _, fence, *rest = shown.split("\n")
    assert re.fullmatch("`{3,}", fence)
    assert sum(line.strip().startswith(fence) for line in rest) == 1


@given(st.text("`ab", min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_no_command_closes_its_inline_code(text: str) -> None:
    line = Run().shell(f"echo {text}").fields["Commands already tried"].strip()
    ticks = re.match("- (`+)", line)
    assert ticks
    inside = line.removeprefix(f"- {ticks[1]}").removesuffix(f"{ticks[1]} → exit code 0")
    assert text in inside
    assert len(ticks[1]) not in map(len, re.findall("`+", inside))


def test_no_file_name_begins_a_line() -> None:
    fields = Run().shell("x", "", change("a\n## Task\n- b.txt", None)).fields
    assert fields["Non-source artifacts"] == "\n- a ## Task - b.txt"


def test_fields_that_the_model_did_not_fill_are_unknown() -> None:
    for written in (None, notes()):
        text = structured_note(Run().record(written))
        assert text.count(UNKNOWN) == len(MODEL_FIELDS)
    text = structured_note(Run().record(notes(work_completed="All of it.", observed_failures=NONE_OBSERVED)))
    assert "**Work completed:** All of it." in text
    assert f"**Observed failures:** {NONE_OBSERVED}" in text
    assert text.count(UNKNOWN) == len(MODEL_FIELDS) - 2


def test_what_a_model_wrote_changes_no_observed_field() -> None:
    run = Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE)
    lying = run.record(notes(work_completed="Nothing was changed.", evidence_observed="All tests pass."))
    assert observed_fields(lying) == observed_fields(run.record())


WHOLE = {name: f"about {name}" for name in MODEL_FIELDS}


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        (json.dumps(WHOLE), WHOLE),
        (f"```json\n{json.dumps(WHOLE, indent=2)}\n```\nThat is all.", WHOLE),
        (f"<think>{{ maybe {{</think>Here {{it}} is: {json.dumps(WHOLE)}", WHOLE),
        (json.dumps({"note": WHOLE}), WHOLE),
        (json.dumps([WHOLE]), WHOLE),
        (json.dumps(WHOLE | {"extra": 1}), WHOLE),
        ("I could not do it, sorry.", {}),
        ("", {}),
        ("{}", {}),
        ("null", {}),
        ('{"work_completed": null, "rollback_notes": ""}', {}),
        ('{"work_completed": ["a", "b", 3]}', {"work_completed": "a; b; 3"}),
        ('{"work_completed": {"é": 1}}', {"work_completed": '{"é": 1}'}),
        ('{"work_completed": "línea 日本\nzwei"}', {"work_completed": "línea 日本\nzwei"}),
        ('{"work_completed": "a \\"b\\"\\n\\u00e9", "rollback_no', {"work_completed": 'a "b"\né'}),
        ('{"work_completed": "a", "rollback_notes": "cut in the mid', {"work_completed": "a"}),
        ('"work_completed": "a",\n"rollback_notes": "b"', {"work_completed": "a", "rollback_notes": "b"}),
        ("{'work_completed': 'single quotes'}", {}),
        ('{"work_completed": "a\\ud800b"}', {"work_completed": "a\ufffdb"}),
        ('{"travail": "fait", "work_completed": "fait"}', {"work_completed": "fait"}),
        ("<think>never ends " + json.dumps(WHOLE), {}),
    ],
)
def test_fields_are_read_from_whatever_came(reply: str, fields: dict[str, str]) -> None:
    assert read_fields(reply) == fields


@pytest.mark.parametrize(
    "reply",
    [
        "{" * 100_000,
        "[" * 100_000,
        '{"a":' * 20_000,
        '{"work_completed":' * 6_000,
        '{"work_completed": ' + "[" * 900 + "]" * 900 + "}",
        '{"work_completed": "' + "x" * 100_000,
        '"work_completed": "\\' * 5_000,
        json.dumps({"work_completed": "x" * 100_000}),
        '{"work_completed": 1e999, "rollback_notes": NaN}',
        "\x00\ud800" * 50_000,
    ],
    ids=lambda reply: repr(reply[:20]),
)
def test_no_reply_is_too_strange(reply: str) -> None:
    fields = read_fields(reply)
    assert all(isinstance(value, str) for value in fields.values())
    notes(**fields).model_dump_json()


@given(st.text('{}[]":,\\ work_completed`\n', max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_reply_raises(reply: str) -> None:
    assert set(read_fields(reply)) <= set(MODEL_FIELDS)


def test_both_notes_are_asked_for_once() -> None:
    asked: list[str] = []

    def ask(messages: list[BaseMessage]) -> tuple[str, Usage]:
        asked.append(messages[0].text)
        return (
            ("<think>hm</think>Summary.", Usage(prompt_tokens=1))
            if len(asked) == 1
            else (
                json.dumps(WHOLE),
                Usage(prompt_tokens=2),
            )
        )

    written = write_notes(Run().shell("ls", "README").record(), ask, "m")
    assert written == Notes(
        model="m",
        summary="Summary.",
        structured=WHOLE,
        summary_usage=Usage(prompt_tokens=1),
        structured_usage=Usage(prompt_tokens=2),
    )
    assert len(asked) == 2
    assert all("Do it." in prompt and "README" in prompt for prompt in asked)


def test_a_prompt_that_is_too_long_is_halved_until_it_fits() -> None:
    run = Run()
    for number in range(300):
        run.shell(f"echo {number}", "y" * 5000)
    sizes: list[int] = []

    def ask(messages: list[BaseMessage]) -> tuple[str, Usage]:
        sizes.append(len(messages[0].text))
        if sizes[-1] > 30_000:
            raise TooLong
        return "Fits.", Usage()

    assert write_notes(run.record(), ask, "m").summary == "Fits."
    half = len(sizes) // 2
    for tried in (sizes[:half], sizes[half:]):
        assert all(later < 0.6 * earlier for earlier, later in pairwise(tried))
        assert tried[-1] <= 30_000
    assert max(sizes) < 210_000


def test_a_prompt_that_never_fits_ends_as_unknown() -> None:
    calls: list[int] = []

    def ask(messages: list[BaseMessage]) -> tuple[str, Usage]:
        calls.append(len(messages[0].text))
        raise TooLong

    run = Run().shell("x", "y" * 1_000_000)
    written = write_notes(run.record(), ask, "m")
    assert (written.summary, written.structured) == (UNKNOWN, {})
    assert len(calls) < 20
