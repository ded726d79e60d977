"""Views of unusual records: empty, long, huge, with half characters, and inconsistent."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.notes.structured_note import BUDGET_TOKENS
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord, StatedFields
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS
from langgraph_takeover.handoff.trace.events import Event, FileRead
from langgraph_takeover.handoff.views import VIEWS, Recipient, find_view, measure_view
from langgraph_takeover.sandbox.interface import FileChange

from .test_views import FAILED, NOTES, PROMPT, record, sha256, step
from .trace.test_conversation import check_history as valid

BOUNDED = [name for name in VIEWS if name != "trace"]
PROTOCOLS: tuple[ActionProtocol, ...] = ("text", "native")
TORN = "a\ud800b\x00c\x1b[2J\u202ed\r\ne\rf"


@cache
def many(number: int) -> HandoffRecord:
    events: list[Event] = []
    for n in range(number // 2):
        command = (
            "cat pkg/read.py",
            "sed -i s/a/b/ pkg/core.py",
            "python -m unittest",
            "grep -rn mend_it .",
        )[n % 4]
        path = "pkg/core.py" if n % 4 == 1 else ""
        events += step(2 * n, command, FAILED if n % 4 == 2 else "x" * 200, path=path, code=int(n % 4 == 2))
    return record(tuple(events))


@cache
def huge() -> HandoffRecord:
    shown = ("y" * 79 + "\n") * 260_000 + FAILED
    edit = step(0, "sed -i s/a/b/ pkg/core.py", "", path="pkg/core.py")
    return record((*edit, *step(2, "python -m unittest", shown, code=1)))


def make_torn_record() -> HandoffRecord:
    change = FileChange(path=f"pkg/{TORN}.py", before=sha256("a"), after=sha256("b"))
    trace = (
        Event(index=0, kind="action", tool="shell", text=TORN, arguments={"command": TORN}),
        Event(
            index=1, kind="observation", tool="shell", text=TORN, exit_code=0, cwd=TORN, changes=(change,),
            reads=(FileRead(path=TORN, sha256=sha256("a")),),
        ),
        *step(2, f"python -m unittest {TORN}", f"{TORN}\n{FAILED}", code=1),
    )  # fmt: skip
    claims = {name: (Claim(text=TORN, events=(1, 2)),) for name in MODEL_FIELDS}
    stated = StatedFields(changed_files=(TORN, "\x00", "a" * 10_000))
    notes = NOTES.model_copy(update={"model": TORN, "summary": TORN, "structured": claims, "stated": stated})
    task = record(()).task.model_copy(update={"prompt": TORN})
    return record(trace, notes=notes, task=task, predecessor=TORN, patch=TORN)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", list(VIEWS))
@pytest.mark.parametrize(
    "parts",
    [
        lambda: record(()),
        lambda: many(2),
        pytest.param(lambda: many(5000), marks=pytest.mark.slow),
        pytest.param(huge, marks=pytest.mark.slow),
        make_torn_record,
    ],
)
def test_every_view_of_every_record(name: str, protocol: ActionProtocol, parts: Any) -> None:
    strange: HandoffRecord = parts()
    messages = find_view(name)(strange, Recipient(protocol=protocol))
    valid(messages, protocol)
    for message in messages:
        text = str([message.text, getattr(message, "tool_calls", [])])
        text.encode()  # no half characters
        assert not set(message.text) & set("\x00\x1b\u202e")
    if strange.task.prompt == PROMPT:
        assert messages[-1].text.endswith("# Task\n\n" + PROMPT)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
def test_only_the_trace_grows_without_bound(name: str) -> None:
    for strange in (many(5000), huge()):
        found = measure_view(find_view(name)(strange, Recipient(window_tokens=16_000)))
        assert found.tokens < {"transcript": 12_000, "payload": 6_000}.get(name, BUDGET_TOKENS + 1_000)
    assert measure_view(find_view("trace")(huge())).characters > 20_000_000


def test_numbers_in_the_note_of_a_long_trace_are_those_of_the_trace() -> None:
    text = find_view("cited")(many(5000))[0].text
    assert "are events of the earlier work, from e0 to e4999" in text
    assert "[e4997]" in text or "[e4999]" in text
