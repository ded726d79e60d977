"""Time shares by owner of the code on three paths: a step, a snapshot with its restore, a run with its report.

Each path runs under Python's profiler, which slows Python code by about half but not waiting. The shares show which code
to examine; the other benchmarks show how long it takes. Waiting is for programs, disks and other threads.
"""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Figure, format_count, print_figures, print_progress, run_command
from benchmarks.host import ROOT
from benchmarks.models import DirectModel
from benchmarks.runtime import time_runtime
from benchmarks.testbed import FILES, make_spec
from benchmarks.turns import AsJson, Files, open_work_directory
from langgraph_takeover import SandboxSpec, sandbox

_LIBRARIES = {
    "LangGraph and LangChain": ("langgraph", "langchain", "langsmith"),
    "plots and intervals": ("matplotlib", "numpy", "scipy", "PIL"),
}
_WAITING_CALLS = (
    "'poll' of 'select", "select.select", "'acquire' of '_thread", "posix.read", "posix.wait", "time.sleep",
    "posix.fsync", "posix.fdatasync", "posix.fork", "fork_exec", "sqlite3", "'recv", "' of '_io.",
)  # fmt: skip


def main(
    steps: Annotated[int, typer.Option(min=10, help="Number of steps of the agent's run.")] = 300,
    snapshots: Annotated[int, typer.Option(min=1, help="Number of snapshots, each with a restore.")] = 30,
    files: Files = FILES,
    as_json: AsJson = False,
) -> None:
    """Measure the time shares of a step, of a snapshot with its restore, and of a small run with its report."""
    figures: list[Figure] = []
    with open_work_directory() as work:
        spec = make_spec(work / "testbed", files)
        paths: dict[str, tuple[int, Callable[[], object]]] = {
            "step": (steps, lambda: time_runtime(DirectModel(command="true", steps=steps))),
            "snapshot and restore": (snapshots, lambda: _snapshot_and_restore(snapshots, spec, work)),
            "run of one task with its report": (1, lambda: _run_one_task(work / "run")),
        }
        for name, (times, path) in paths.items():
            print_progress(name)
            ms_by_owner = {owner: 1e3 * seconds / times for owner, seconds in _profile(path).most_common()}
            total = sum(ms_by_owner.values())
            figures += [
                Figure(f"{name}: {owner}", "ms", ms, total, "total")
                for owner, ms in ms_by_owner.items()
                if ms > total / 100
            ]
    counts = (steps, "step"), (snapshots, "snapshot"), (files, "file")
    print_figures(", ".join(format_count(*each) for each in counts), figures, as_json=as_json)


def _snapshot_and_restore(times: int, spec: SandboxSpec, work: Path) -> None:
    with contextlib.closing(sandbox.start(spec)) as original:
        for number in range(times):
            original.run(f"echo {number} >> new.txt", timeout_s=60)
            snapshot = original.snapshot(work / f"store{number}").result()
            with contextlib.closing(sandbox.restore(snapshot, work / f"store{number}", spec)) as restored:
                restored.run("true", timeout_s=60)
    sandbox.remove_stale_resources(spec.backend, spec.owner)


def _run_one_task(out: Path) -> None:
    from langgraph_takeover.evals.takeover import app

    words = ["--view", "structured", "--task-ids", "ledger__ledger-12", "--out", str(out)]
    with contextlib.redirect_stdout(sys.stderr):
        app(words, standalone_mode=False)


def _profile(path: Callable[[], object]) -> Counter[str]:
    """Seconds by owner of the code; the time of a builtin belongs to its caller."""
    profile = cProfile.Profile()
    profile.runcall(path)
    stats: Any = pstats.Stats(profile)
    seconds_by_owner: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if file != "~":
            seconds_by_owner[_find_owner(file)] += own
        elif any(wait in name for wait in _WAITING_CALLS):
            seconds_by_owner["SQLite" if "sqlite3" in name else "waiting"] += own
        else:
            for (caller, _, _), (_, _, seconds, _) in callers.items():
                seconds_by_owner[_find_owner(caller)] += seconds
    return seconds_by_owner


def _find_owner(file: str) -> str:
    if "importlib" in file:
        return "importing"
    _, installed, library = file.rpartition("-packages/")
    if not installed:
        return "this project" if Path(file).is_relative_to(ROOT) else "standard library"
    return next(
        (name for name, prefixes in _LIBRARIES.items() if library.startswith(prefixes)), "other libraries"
    )


if __name__ == "__main__":
    run_command(main)
