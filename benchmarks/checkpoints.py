"""Size and speed of long conversations' checkpoints: LangGraph's SQLite saver, and `IncrementalSaver` around it.

An agent of `create_agent` makes shell calls whose results have 2 KB each. It runs without our parts, with
`SandboxMiddleware`, and with both savers; a step is one reply of an instant model and one call. The time of the last steps
is compared with that of the first ones. LangGraph's own work per step grows with the conversation too: the case without a
checkpointer shows by how much.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, cast

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks.figures import Goal, format_count, print_figures, run_command
from benchmarks.models import InstantModel
from benchmarks.testbed import make_spec
from benchmarks.turns import AsJson, Comparison, Rounds, measure_in_turns, open_work_directory
from langgraph_takeover import open_home
from langgraph_takeover.integrations import IncrementalSaver, Sandboxes
from langgraph_takeover.middleware import SandboxMiddleware

_THREAD: Any = {"configurable": {"thread_id": "long"}, "recursion_limit": 100_000}
_CHARS = 2_000


class _CallingModel(InstantModel):
    """Calls the tool `shell` with another command each time."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _reply(self) -> ChatResult:
        self.call_times.append(time.perf_counter())
        number, reply = len(self.call_times), AIMessage("Done.")
        if number <= self.steps:
            arguments = {"command": f"printf '%0{_CHARS}d' {number}"}
            reply = AIMessage("", tool_calls=[{"name": "shell", "args": arguments, "id": f"call_{number}"}])
        return ChatResult(generations=[ChatGeneration(message=reply)])


@tool
def shell(command: str) -> str:
    """Run a command."""
    return command.rpartition(" ")[2].zfill(_CHARS)


def _run(steps: int, *, has_sandbox: bool, saver: str) -> Mapping[str, float]:
    with open_work_directory() as directory, ExitStack() as stack:
        path, checkpointer = directory / "chats.sqlite", cast(Any, None)
        if saver != "none":
            plain = stack.enter_context(SqliteSaver.from_conn_string(str(path)))
            checkpointer = IncrementalSaver(plain) if saver == "incremental" else plain
        parts: dict[str, Any] = {"tools": [shell]}
        if has_sandbox:
            home = stack.enter_context(open_home(directory / "home"))
            spec = make_spec(directory / "base", 1)
            parts = {"middleware": [SandboxMiddleware(stack.enter_context(Sandboxes(home, spec)))]}
        model = _CallingModel(command="", steps=steps)
        agent: Any = create_agent(model, checkpointer=checkpointer, **parts)
        agent.invoke({"messages": [("user", "Go.")]}, _THREAD)
        times, few = model.call_times, max(steps // 10, 1)
        steps_s = [after - before for before, after in itertools.pairwise(times)]
        found = {"first": statistics.median(steps_s[:few]), "last": statistics.median(steps_s[-few:])}
        if checkpointer is not None:
            started = time.perf_counter()
            agent.get_state(_THREAD)
            found |= {"size": path.stat().st_size, "read": time.perf_counter() - started}
        return found


def main(
    steps: Annotated[int, typer.Option(min=10, help="Calls of the conversation.")] = 400,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure how checkpoints grow with a conversation."""
    kinds = {
        "bare": {"has_sandbox": False, "saver": "none"},
        "plain": {"has_sandbox": False, "saver": "sqlite"},
        "incremental": {"has_sandbox": False, "saver": "incremental"},
        "sandboxed": {"has_sandbox": True, "saver": "sqlite"},
        "both": {"has_sandbox": True, "saver": "incremental"},
    }

    def measure(kind: dict[str, Any]) -> Any:
        return lambda _: _run(steps, **kind)

    samples = measure_in_turns(rounds, {name: measure(kind) for name, kind in kinds.items()})
    theirs, ours = "SqliteSaver", "IncrementalSaver"
    figures = samples.compare(
        Comparison(f"database, {ours}", "incremental_size", "plain_size", theirs, unit="MB"),
        Comparison(
            f"database, SandboxMiddleware and {ours}", "both_size", "plain_size", theirs, Goal(10), "MB"
        ),
        Comparison(
            f"database, SandboxMiddleware and {theirs}",
            "sandboxed_size",
            "plain_size",
            f"without SandboxMiddleware, {theirs}",
            Goal(1.1, "ratio"),
            "MB",
        ),
        Comparison(f"last steps, {ours}", "incremental_last", "plain_last", theirs),
        Comparison(f"load the last state, {ours}", "incremental_read", "plain_read", theirs),
        Comparison("last steps, no saver", "bare_last", "bare_first", "first steps", growth=True),
        Comparison(f"last steps, {theirs}", "plain_last", "plain_first", "first steps", growth=True),
        Comparison(
            f"last steps, {ours}", "incremental_last", "incremental_first", "first steps", growth=True
        ),
        Comparison(
            f"last steps, SandboxMiddleware and {ours}",
            "both_last",
            "both_first",
            "first steps",
            Goal(1.5, "ratio"),
            growth=True,
        ),
    )
    title = f"medians of {format_count(rounds, 'round')}; {steps} calls of {_CHARS} characters"
    print_figures(title, figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main)
