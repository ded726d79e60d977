from __future__ import annotations

from collections import Counter
from typing import Any

from langgraph_takeover.evals.run.measures.rediscovery import RediscoveryKind, classify_events
from langgraph_takeover.handoff.records.record import HandoffRecord, TaskBrief
from langgraph_takeover.handoff.trace.events import Event, FileRead, HandoffPoint
from langgraph_takeover.sandbox.interface import FileChange, Snapshot

OLD, NEW = "0" * 64, "1" * 64


def steps(*taken: dict[str, Any]) -> tuple[Event, ...]:
    """Actions and observations from (command, tree, reads, changes)."""
    events: list[Event] = []
    for step in taken:
        tool = step.get("tool", "shell")
        arguments = {"command": step.get("command", "view")}
        tree = step.get("tree", "base")
        events.append(
            Event(index=len(events), kind="action", tool=tool, text="", arguments=arguments, tree=tree)
        )
        events.append(
            Event(
                index=len(events),
                kind="observation",
                tool=tool,
                text=step.get("text", ""),
                exit_code=step.get("exit_code", 0),
                tree=step.get("tree_after", tree),
                reads=tuple(step.get("reads", ())),
                changes=tuple(step.get("changes", ())),
                refused=step.get("refused", False),
            )
        )
    return tuple(events)


def record(trace: tuple[Event, ...]) -> HandoffRecord:
    return HandoffRecord(
        id="r",
        task=TaskBrief(id="t", prompt="p", base_commit="c", base_directories=("src",)),
        predecessor="m",
        point=HandoffPoint(kind="requested", event_index=len(trace) - 1, detail=""),
        patch="",
        snapshot=Snapshot(
            backend="process", base="b", location="l", digest="d", workspace="/w", shell_state=""
        ),
        thread_id="",
        checkpoint_id="",
        trace=trace,
        created_at="",
    )


def count_rediscovery(predecessor: HandoffRecord, successor: tuple[Event, ...]) -> Counter[RediscoveryKind]:
    return Counter(kind for kind in classify_events(predecessor, successor) if kind is not None)


READ = FileRead(path="src/a.py", sha256=OLD)
REREAD = FileRead(path="src/a.py", sha256=NEW)
EDIT = FileChange(path="src/a.py", before=OLD, after=NEW)
PREDECESSOR = steps(
    {"command": "cat src/a.py", "reads": [READ]},
    {"command": "grep -rn foo src"},
    {"command": "ls -l"},
    {"command": "sed -i s/a/b/ src/a.py", "changes": [EDIT], "tree_after": "edited"},
    {
        "command": "python -m pytest -q",
        "tree": "edited",
        "exit_code": 1,
        "text": "1 failed, 2 passed in 0.1s",
    },
)


def test_reading_the_same_content_is_rediscovery_and_new_content_is_not() -> None:
    same = count_rediscovery(record(PREDECESSOR), steps({"command": "head src/a.py", "reads": [READ]}))
    new = count_rediscovery(record(PREDECESSOR), steps({"command": "head src/a.py", "reads": [REREAD]}))
    both = count_rediscovery(record(PREDECESSOR), steps({"command": "cat src/*.py", "reads": [READ, REREAD]}))
    assert (same["read"], new["read"], both["read"]) == (2, 0, 0)


def test_the_same_command_counts_only_on_an_unchanged_tree() -> None:
    on_base = count_rediscovery(record(PREDECESSOR), steps({"command": "ls   -l"}))
    on_edit = count_rediscovery(record(PREDECESSOR), steps({"command": "ls -l", "tree": "edited"}))
    assert (on_base["command"], on_edit.total()) == (2, 0)


def test_the_same_search_counts_on_any_tree() -> None:
    again = {"command": "grep -rn foo src", "tree": "edited"}
    other = {"command": "grep -rn bar src", "tree": "base"}
    assert count_rediscovery(record(PREDECESSOR), steps(again, other))["search"] == 2


def test_the_first_rerun_of_the_latest_validation_is_verification_and_the_second_is_debt() -> None:
    again = {"command": "python -m pytest -q", "tree": "edited"}
    found = count_rediscovery(record(PREDECESSOR), steps(again, again))
    assert (found["verification"], found["command"]) == (2, 2)


def test_refused_actions_are_no_rediscovery() -> None:
    found = count_rediscovery(record(PREDECESSOR), steps({"command": "ls -l", "refused": True}))
    assert found.total() == 0
