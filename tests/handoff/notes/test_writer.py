"""A model's replies to the notes prompts as notes, and the follow-up questions."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.handoff import prompts
from langgraph_takeover.handoff.notes.parsing import parse_reply, remove_repeats
from langgraph_takeover.handoff.notes.writer import NOTES_SCHEMA, PromptTooLongError, write_notes
from langgraph_takeover.handoff.records.record import Claim, Notes, StatedFields
from langgraph_takeover.handoff.text.note_fields import MAX_STATED_FILES, MODEL_FIELDS, UNKNOWN
from langgraph_takeover.handoff.trace.events import Usage

from ...random_examples import examples
from .test_structured_note import CORE, FAILED, Run

Schema = dict[str, Any] | None


def parse_texts(reply: str) -> dict[str, list[str]]:
    return {name: [claim.text for claim in claims] for name, claims in parse_reply(reply).claims.items()}


WHOLE = {name: [f"about {name}"] for name in MODEL_FIELDS}
FLAT = {name: f"about {name}" for name in MODEL_FIELDS}


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        (json.dumps(WHOLE), WHOLE),
        (json.dumps(FLAT), WHOLE),
        (f"```json\n{json.dumps(WHOLE, indent=2)}\n```\nThat is all.", WHOLE),
        (f"<think>{{ maybe {{</think>Here {{it}} is: {json.dumps(WHOLE)}", WHOLE),
        (f'<thinking>{{"work_completed": "no"}}</thinking>{json.dumps(WHOLE)}', WHOLE),
        (f'{{"work_completed": "no"}}</think>{json.dumps(WHOLE)}', WHOLE),
        (json.dumps({"note": WHOLE}), WHOLE),
        (json.dumps([WHOLE]), WHOLE),
        (json.dumps(WHOLE | {"extra": 1}), WHOLE),
        ("I could not do it, sorry.", {}),
        ("", {}),
        ("{}", {}),
        ("null", {}),
        ('{"work_completed": null, "rollback_notes": ""}', {}),
        ('{"work_completed": ["a", "b", 3]}', {"work_completed": ["a", "b", "3"]}),
        ('{"work_completed": {"é": 1}}', {"work_completed": ['{"é": 1}']}),
        ('{"work_completed": "línea 日本\nzwei"}', {"work_completed": ["línea 日本\nzwei"]}),
        ('{"work_completed": "a \\"b\\"\\n\\u00e9", "rollback_no', {"work_completed": ['a "b"\né']}),
        ('{"work_completed": "a", "rollback_notes": "cut in the mid', {"work_completed": ["a"]}),
        ('{"work_completed": ["a [e1]", "cut in the mid', {"work_completed": ["a"]}),
        (
            '{"work_completed": ["a"],, "rollback_notes": ["b" "c"]}',
            {"work_completed": ["a"], "rollback_notes": ["b", "c"]},
        ),
        ('{"work_completed": ["a [e1]", "b [e2]"], "rollback_notes": ["c', {"work_completed": ["a", "b"]}),
        ('{"work_completed": [{"claim": "a", "events": [1, "e2"]}]}', {"work_completed": ["a"]}),
        ('{"work_completed": [{"claim": "a", "events": [1]}, {"claim": "b", "ev', {"work_completed": ["a"]}),
        ('{"work_completed": [{"claim": "cut off in the mi', {}),
        (
            '{"work_completed": ["a [e1]", "A [e2]", "b"], "rollback_notes": ["a"]}',
            {"work_completed": ["a", "b"], "rollback_notes": ["a"]},
        ),
        ('"work_completed": "a",\n"rollback_notes": "b"', {"work_completed": ["a"], "rollback_notes": ["b"]}),
        ("{'work_completed': 'single quotes'}", {}),
        ('{"work_completed": "a\\ud800b"}', {"work_completed": ["a\ufffdb"]}),
        ('{"travail": "fait", "work_completed": "fait"}', {"work_completed": ["fait"]}),
        ("<think>never ends " + json.dumps(WHOLE), {}),
    ],
)
def test_fields_are_parsed_from_any_format(reply: str, fields: dict[str, list[str]]) -> None:
    assert parse_texts(reply) == fields


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
def test_unusual_replies_are_parsed(reply: str) -> None:
    stated, fields = parse_reply(reply)
    assert all(isinstance(claim, Claim) for claims in fields.values() for claim in claims)
    Notes(
        model="m",
        summary="",
        structured=fields,
        stated=stated,
        summary_usage=Usage(),
        structured_usage=Usage(),
    ).model_dump_json()


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (["pkg/a.py", " tests/b.py "], ("pkg/a.py", "tests/b.py")),
        (["pkg/a.py", "pkg/a.py", "./pkg/a.py"], ("pkg/a.py", "./pkg/a.py")),
        ([], ()),
        (["NONE OBSERVED"], ()),
        ("none", ()),
        (["UNKNOWN"], None),
        ("unknown", None),
        (["pkg/a.py", "Unknown"], None),
        (None, None),
        ("", None),
        (7, None),
        ([7, None, ["pkg/a.py"], {"path": "pkg/a.py"}], None),
        (["pkg/a.py", 7], ("pkg/a.py",)),
        ({"pkg/a.py": 1}, None),
        ("pkg/a.py", ("pkg/a.py",)),
        (["x" * 1_001], None),
        (["a\ud800.py", "C:\\a.py", "../a.py", "/a.py", "é.py"], ("a\ufffd.py", "C:\\a.py", "../a.py", "/a.py", "é.py")),
        ([f"{number}.py" for number in range(100_000)], tuple(f"{number}.py" for number in range(MAX_STATED_FILES))),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_stated_files_are_parsed(value: object, paths: tuple[str, ...] | None) -> None:
    assert parse_reply(json.dumps({"changed_files": value})).stated.changed_files == paths


@pytest.mark.parametrize(
    ("value", "answer"),
    [("yes", "yes"), (" Yes ", "yes"), ("no", "no"), (True, "yes"), (False, "no"), (["no"], "no"), ("unknown", "unknown"),
     ("UNKNOWN", "unknown"), ("yes, all of them", "unknown"), (1, "unknown"), (None, "unknown"), (["yes", "no"], "unknown"),
     ({"claim": "yes"}, "unknown"), ([[["yes"]]], "unknown")],
)  # fmt: skip
def test_stated_answers_are_parsed(value: object, answer: str) -> None:
    stated = parse_reply(json.dumps({"validation_passes": value, "work_done": value})).stated
    assert (stated.validation_passes, stated.work_done) == (answer, answer)


@pytest.mark.parametrize(
    ("reply", "stated"),
    [
        (
            '{"changed_files": ["a.py"], "validation_passes": "no", "work_done": "yes", "work_completed": ["cut o',
            StatedFields(changed_files=("a.py",), validation_passes="no", work_done="yes"),
        ),
        ('{"changed_files": ["a.py", "cut o', StatedFields(changed_files=("a.py",))),
        ('{"work_done": "no", "work_done": "yes"}', StatedFields(work_done="yes")),
        ('{"note": {"work_done": "yes"}}', StatedFields(work_done="yes")),
        ('{"Work_done": "yes", "done": true}', StatedFields()),
        ("The work is done, and all tests pass.", StatedFields()),
    ],
)
def test_stated_fields_are_parsed_as_far_as_they_are_readable(reply: str, stated: StatedFields) -> None:
    assert parse_reply(reply).stated == stated


def test_a_loop_in_the_summary_is_cut_out() -> None:
    summary = "## Edits\n\nI changed a.py.\n\n- ok\n- ok\n"
    looping = summary + "I will run it again.\n\ni will run it again.\n\n" * 200 + "Cut he"
    assert remove_repeats(summary) == summary.rstrip()
    blocks = "Ran:\n```bash\npytest -q\n```\n" * 5
    assert remove_repeats(blocks) == blocks.rstrip()
    assert remove_repeats(looping) == (
        summary + "I will run it again.\n\ni will run it again.\n\nCut he\n[… 398 repetitions left out …]"
    )
    assert remove_repeats("    a.b()  # Why. What!\nSo it is.  " + "So it is. And so on? " * 50) == (
        "    a.b()  # Why. What!\nSo it is. So it is. And so on? And so on?\n[… 97 repetitions left out …]"
    )


@given(st.text('{}[]":,\\ work_completed`\n', max_size=60))
@settings(max_examples=examples(300))
def test_no_reply_raises(reply: str) -> None:
    assert set(parse_reply(reply).claims) <= set(MODEL_FIELDS)


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("Edited a.py [e4].", [("Edited a.py", (4,))]),
        ("Edited a.py [e4]. It failed [e6, e7]; why is open.", [("Edited a.py", (4,)), ("It failed", (6, 7)), ("why is open", ())]),
        ("It failed (e6-e8)", [("It failed", (6, 7, 8))]),
        ("It failed [events e6 and e9]", [("It failed", (6, 9))]),
        ("It failed [e6][e7]", [("It failed", (6, 7))]),
        ("a[e1] is no pointer but code", [("a", (1,)), ("is no pointer but code", ())]),
        ("x[0] stays", [("x[0] stays", ())]),
        ("too wide [e1-e999999999]", [("too wide", (1,))]),
    ],
)  # fmt: skip
def test_a_statement_keeps_the_events_that_it_names(
    text: str, claims: list[tuple[str, tuple[int, ...]]]
) -> None:
    found = parse_reply(json.dumps({"work_completed": text})).claims["work_completed"]
    assert [(claim.text, claim.events) for claim in found] == claims


class Replies:
    """A notes model that sends its replies in order, and records the prompts it receives."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.prompts: list[list[BaseMessage]] = []
        self.schemas: list[Schema] = []

    def __call__(self, messages: list[BaseMessage], schema: Schema) -> tuple[str, Usage]:
        self.prompts.append(messages)
        self.schemas.append(schema)
        return self.replies[len(self.prompts) - 1], Usage(prompt_tokens=len(self.prompts))


def test_both_notes_are_requested_once() -> None:
    ask = Replies("<think>hm</think>Summary.", json.dumps(WHOLE))
    written = write_notes(Run().shell("ls", "README").record(), ask, "m")
    assert written == Notes(
        model="m",
        prompts=prompts.compute_version("handoff"),
        summary="Summary.",
        structured={name: (Claim(text=texts[0]),) for name, texts in WHOLE.items()},
        summary_usage=Usage(prompt_tokens=1),
        structured_usage=Usage(prompt_tokens=2),
    )
    assert ask.schemas == [None, NOTES_SCHEMA]
    assert all("Do it." in prompt[0].text and "README" in prompt[0].text for prompt in ask.prompts)


EDITED_AND_FAILED = (
    Run().shell("sed -i s/a/b/ pkg/core.py", "", CORE).shell("python -m unittest", FAILED, exit_code=1)
)
LIE = json.dumps(WHOLE | {"changed_files": ["pkg/core.py"], "validation_passes": "yes"})
TRUTH = json.dumps(WHOLE | {"changed_files": ["pkg/core.py"], "validation_passes": "no"})
NO_PATH = json.dumps(json.loads(TRUTH) | {"observed_failures": ["It fails in pkg/other.py"]})


def test_a_contradiction_is_questioned_once_with_its_reason() -> None:
    ask = Replies("Summary.", LIE, TRUTH)
    written = write_notes(EDITED_AND_FAILED.record(), ask, "m")
    assert written.stated == StatedFields(changed_files=("pkg/core.py",), validation_passes="no")
    assert written.retried == "contradicted"
    assert not written.malformed
    assert written.structured_usage.prompt_tokens == 2 + 3
    _, reply, question = ask.prompts[2]
    assert isinstance(reply, AIMessage)
    assert reply.text == LIE
    reason = "you stated 'yes', but the latest validation of the current code failed"
    assert question.text.splitlines()[2:] == [f"- validation_passes: {reason}"]


def test_every_kind_of_contradiction_is_named_in_the_question() -> None:
    record = EDITED_AND_FAILED.record().model_copy(update={"files": ("pkg/core.py",)})
    wrong = {"changed_files": ["pkg/a.py"], "work_done": "yes"}
    ask = Replies("Summary.", json.dumps(json.loads(NO_PATH) | wrong), TRUTH)
    write_notes(record, ask, "m")
    assert ask.prompts[2][2].text.splitlines()[2:] == [
        "- changed_files: you stated 'pkg/a.py', but it does not differ from the base commit",
        "- changed_files: pkg/core.py differs from the base commit",
        "- work_done: you stated 'yes', but the latest validation of the current code failed",
        "- observed_failures: 'It fails in pkg/other.py': the snapshot has no file pkg/other.py",
    ]


@pytest.mark.parametrize(
    ("second", "sums"),
    [
        (Usage(prompt_tokens=20, completion_tokens=2, cached_tokens=5), (30, 5, 3)),
        (Usage(prompt_tokens=20, completion_tokens=2), (30, None, 3)),
        (Usage(), (None, None, None)),
    ],
)
def test_the_usage_of_both_requests_is_a_sum_or_unknown(
    second: Usage, sums: tuple[int | None, int | None, int | None]
) -> None:
    first = Usage(prompt_tokens=10, completion_tokens=1)
    replies = iter([("Summary.", first), (LIE, first), (TRUTH, second)])
    written = write_notes(EDITED_AND_FAILED.record(), lambda messages, schema: next(replies), "m")
    usage = written.structured_usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == sums


@pytest.mark.parametrize("again", [LIE, "Sorry, I cannot.", ""])
def test_a_repeated_contradiction_is_not_questioned_again(again: str) -> None:
    ask = Replies("Summary.", LIE, again)
    written = write_notes(EDITED_AND_FAILED.record(), ask, "m")
    assert len(ask.prompts) == 3
    assert written.stated.validation_passes == "yes"
    assert written.structured["evidence_observed"] == (Claim(text="about evidence_observed"),)


@pytest.mark.parametrize(
    "reply",
    [
        "It went well.",
        '{"work',
        "Je ne peux pas.",
        "x" * 100_000,
        "I can't help with that.",
        "",
        "\ud800\x00",
    ],
    ids=lambda reply: repr(reply[:20]),
)
def test_a_reply_without_fields_is_requested_again_once(reply: str) -> None:
    ask = Replies("Summary.", reply, TRUTH)
    written = write_notes(EDITED_AND_FAILED.record(), ask, "m")
    assert (written.retried, written.malformed) == ("malformed", False)
    assert written.stated.validation_passes == "no"
    assert len(ask.prompts[2][1].text) <= 20_000
    ask = Replies("Summary.", reply, reply)
    written = write_notes(EDITED_AND_FAILED.record(), ask, "m")
    assert (written.retried, written.malformed, written.structured) == ("malformed", True, {})
    assert written.stated == StatedFields()


def test_a_prompt_that_is_too_long_is_halved_until_it_fits() -> None:
    run = Run()
    for number in range(300):
        run.shell(f"echo {number}", f"{number} " + "y" * 5000)
    sizes: list[int] = []

    def ask(messages: list[BaseMessage], schema: Schema) -> tuple[str, Usage]:
        sizes.append(len(messages[0].text))
        if sizes[-1] > 30_000:
            raise PromptTooLongError
        return ("Fits." if schema is None else json.dumps(WHOLE)), Usage()

    assert write_notes(run.record(), ask, "m").summary == "Fits."
    half = len(sizes) // 2
    for tried in (sizes[:half], sizes[half:]):
        assert all(later < 0.6 * earlier for earlier, later in pairwise(tried))
        assert tried[-1] <= 30_000
    assert max(sizes) < 210_000


def test_a_prompt_that_never_fits_ends_as_unknown() -> None:
    calls: list[int] = []

    def ask(messages: list[BaseMessage], schema: Schema) -> tuple[str, Usage]:
        calls.append(len(messages[0].text))
        raise PromptTooLongError

    run = Run().shell("x", "y" * 1_000_000)
    written = write_notes(run.record(), ask, "m")
    assert (written.summary, written.structured) == (UNKNOWN, {})
    assert len(calls) < 20
