"""A session that several agents continue one after the other keeps its calls, results and exit codes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.conversation import History, list_steps
from langgraph_takeover.handoff.trace.events import Event, Trace
from langgraph_takeover.testing.agents.pure import make_launch

TEST = ("python -m pytest -q", "1 failed, 2 passed", 1)
STEPS = (("ls", "a.py", 0), TEST, ("sh check.sh", "hidden by a script", None), ("make", "", 2))


def list_commands(events: tuple[Event, ...]) -> list[tuple[str, int | None]]:
    """Command and exit code of each step."""
    return [
        (action.arguments["command"], seen.exit_code)
        for action, seen in list_steps(events)
        if seen is not None and action.tool == "shell"
    ]


@pytest.mark.parametrize(
    "agents",
    [
        ("claude-code", "codex", "claude-code"),
        ("codex", "claude-code", "codex"),
        ("codex", "qwen-code", "opencode", "claude-code", "codex"),
    ],
)
def test_calls_and_exit_codes_survive(agents: tuple[str, ...], tmp_path: Path) -> None:
    events: list[Event] = []
    for command, output, code in STEPS:
        arguments = {"command": command}
        events.append(
            Event(index=len(events), kind="action", tool="shell", text="I run it.", arguments=arguments)
        )
        events.append(Event(index=len(events), kind="observation", tool="shell", text=output, exit_code=code))
    known = tuple(events)
    expected = [(command, code) for command, _, code in STEPS]
    for number, agent in enumerate(agents):
        history = History(opening="Fix it.", steps=tuple(list_steps(known)), closing="Go on.")
        ((name, content),) = ADAPTERS[agent].write_session(history, make_launch()).files.items()
        path = tmp_path / f"{number}-{PurePosixPath(name).name}"
        path.write_text(content)
        (trace,) = read_traces(path)
        assert isinstance(trace, Trace), trace
        known = trace.events
        assert list_commands(known) == expected, agent
        shown = [seen.text for _, seen in list_steps(known) if seen is not None]
        assert all(output in text for (_, output, _), text in zip(STEPS, shown, strict=True)), agent
        assert not any(text.count("Exit code") > 1 for text in shown), agent
