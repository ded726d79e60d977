"""What the state of a step holds: its own diff, and each text once."""

from __future__ import annotations

import json

import pytest

from langgraph_takeover import build_agent
from langgraph_takeover.nodes.session.file_diffs import MAX_DIFF_CHARS
from langgraph_takeover.nodes.state import AgentState, InputError
from langgraph_takeover.nodes.state_events import load_events

from .conftest import (
    BOTH_DATABASES,
    DONE,
    EDIT,
    FIX,
    POINTS,
    TEST,
    RunHarness,
    native_reply,
    parse_events,
    scripted_model,
)
from .test_growth import size

EDITOR = '<editor command="str_replace" path="pkg/core.py"><old>n * 2</old><new>2 * n</new></editor>'
UNDO = '<editor command="undo" path="pkg/core.py"></editor>'


def list_diffs(bench: RunHarness, thread: str = "thread") -> list[tuple[str, str]]:
    """The next node and the diff of each checkpoint with one, oldest first."""
    history = build_agent(bench.home.saver).get_state_history({"configurable": {"thread_id": thread}})
    found = [(state.next[0], state.values["diff"]) for state in history if "diff" in state.values]
    return found[::-1]


def change(old: str, new: str) -> str:
    return f"--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,2 +1,2 @@\n def double(n):\n-    return {old}\n+    return {new}\n"


def test_each_step_has_its_own_diff(bench: RunHarness) -> None:
    look = "```bash\ncat pkg/core.py\n```"
    bench.run(scripted_model(EDIT, look, FIX, EDITOR, UNDO, TEST, DONE), points=POINTS)
    assert list_diffs(bench) == [
        ("interruption", change("n + 1", "n * 3")),
        ("think", change("n * 3", "n * 2")),
        ("think", change("n * 2", "2 * n")),
        ("think", change("2 * n", "n * 2")),
    ]


def test_a_successor_sees_its_changes_from_its_record(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=POINTS)
    bench.take_over(scripted_model(FIX, DONE))
    assert list_diffs(bench, "taking 1") == [("think", change("n * 3", "n * 2"))]


def test_a_fork_has_the_diff_of_its_own_step(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, FIX, DONE))
    early = next(each for each in bench.home.history("thread") if each.step == 1 and each.next == ("think",))
    other = "```bash\nsed -i 's/n \\* 3/n ** 2/' pkg/core.py\n```"
    with bench.open_run(scripted_model(EDIT, other, DONE)) as run:
        run.resume(checkpoint=early.checkpoint)
    assert list_diffs(bench)[-1] == ("think", change("n * 3", "n ** 2"))


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_a_text_is_stored_once(bench: RunHarness, protocol: str) -> None:
    command = "echo WORD-of-the-result; echo unreadable >&2"
    if protocol == "native":
        replies = [
            native_reply(("shell", json.dumps({"command": command})), ids=True),
            "no call",
            native_reply(("finish", "{}")),
        ]
    else:
        replies = [f"THOUGHT-of-the-model\n```bash\n{command}\n```", "no action", DONE]
    state = bench.run(scripted_model(*replies), protocol=protocol)
    stored = json.dumps(state["events"])
    assert not any("text" in event for event in state["events"])
    assert "THOUGHT-of-the-model" not in stored
    assert stored.count("WORD-of-the-result") == 1  # as the action's argument
    texts = [event.text for event in parse_events(state)]
    assert texts[1] == "[exit code 0]\nWORD-of-the-result\nunreadable\n"
    assert texts[2] in ("no call", "no action")
    assert sum("result\nunreadable" in message.text for message in state["messages"]) == 1


def test_an_event_has_no_field_with_its_default(bench: RunHarness) -> None:
    state = bench.run(scripted_model("```bash\ntrue\n```", DONE))
    observation = state["events"][1]
    assert set(observation) == {"index", "kind", "tool", "message", "exit_code", "cwd", "tree", "seconds"}
    assert parse_events(state)[1].changes == ()


def test_a_redacted_call_keeps_its_text(bench: RunHarness) -> None:
    """The message keeps the call as the model made it, so the event's text is another one."""
    key = "sk-abcdefghijklmnop1234567890"
    call = native_reply(("shell", json.dumps({"command": f"echo {key} | wc -c"})))
    state = bench.run(scripted_model(call, native_reply(("finish", "{}"))), protocol="native")
    assert "message" not in state["events"][0]
    assert key not in parse_events(state)[0].text


@pytest.mark.parametrize("message", [99, -1, "0", None, True])
def test_an_event_without_its_message_is_refused(message: object) -> None:
    stored = {"index": 0, "kind": "action", "tool": "shell", "message": message}
    with pytest.raises(InputError, match=r"events: .*\(write the"):
        load_events(AgentState(messages=[], events=[stored]))


@pytest.mark.slow
@BOTH_DATABASES
def test_the_database_does_not_grow_with_earlier_diffs(bench: RunHarness) -> None:
    """Each step writes a new file, whose diff reaches the limit; a step costs the same early and late."""
    bench.run(scripted_model("```bash\nls\n```", DONE), thread="first")
    grown = []
    for steps in (10, 40):
        before = size(bench)
        replies = [f"```bash\nseq 1 9999 > f{number}.txt\n```" for number in range(steps)]
        bench.run(
            scripted_model(*replies, DONE),
            thread=f"{steps} steps",
            max_steps=steps + 1,
            snapshot_every="never",
        )
        grown.append((size(bench) - before) / steps)
    assert grown[1] < 1.15 * grown[0]
    assert grown[1] < 6 * MAX_DIFF_CHARS
