"""Whose code takes the time of the three slowest paths: a step, a freeze with its thaw, a run with its report.

Each runs under Python's profiler, which slows Python's own code by about half and waiting not at all: the shares show
whose code to look at, and the other benchmarks how long it takes. Waiting is for programs, disks and other threads.
"""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

# In this directory a file may have the name of a package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Figure, format_count, print_figures, print_progress, run_command
from benchmarks.runtime import time_runtime
from benchmarks.testbed import make_testbed
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import SandboxSpec

_OWN_PACKAGES = ("sandbox", "handoff", "nodes", "graph", "evals")
_LIBRARIES = {
    "LangGraph and LangChain": ("langgraph", "langchain", "langsmith"),
    "plots and intervals": ("matplotlib", "numpy", "scipy", "PIL"),
}
_WAITING_CALLS = (
    "'poll' of 'select", "select.select", "'acquire' of '_thread", "posix.read", "posix.wait", "time.sleep",
    "posix.fsync", "posix.fdatasync", "posix.fork", "fork_exec", "sqlite3", "'recv", "' of '_io.",
)  # fmt: skip
_EPILOG = """Examples:

python benchmarks/shares.py

python benchmarks/shares.py --steps 500 --json
"""


def main(
    steps: Annotated[int, typer.Option(min=10, help="Steps of the agent's run.")] = 300,
    snapshots: Annotated[int, typer.Option(min=1, help="Freezes, each with its thaw.")] = 30,
    files: Annotated[int, typer.Option(min=100, help="Files of their repository.")] = 6_200,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """Print the owners of the time of a step, of a freeze with its thaw, and of a small run with its report."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        place = Path(name)
        directory, found = make_testbed(place / "testbed", files).directory, list[Figure]()
        for what, times, path in (
            ("a step", steps, lambda: time_runtime(steps, place / "steps", "true")),
            ("a freeze and its thaw", snapshots, lambda: _snapshot_and_restore(snapshots, directory, place)),
            ("a run of one task and its report", 1, lambda: _run_one_task(place / "run")),
        ):
            print_progress(what)
            spent = _profile(path)
            whole = 1e3 * sum(spent.values()) / times
            found += [
                Figure(f"{what}: {owner}", "ms", ms, whole, "all of it")
                for owner, ms in ((owner, 1e3 * seconds / times) for owner, seconds in spent.most_common())
                if ms > whole / 100
            ]
    title = (
        f"{format_count(steps, 'step')}, {format_count(snapshots, 'freeze')}, {format_count(files, 'file')}"
    )
    print_figures(title, found, as_json=as_json)


def _snapshot_and_restore(times: int, directory: Path, place: Path) -> None:
    spec = SandboxSpec(backend=sandbox.default_backend(), directory=directory, owner="benchmark")
    with contextlib.closing(sandbox.start(spec)) as machine:
        for number in range(times):
            machine.run(f"echo {number} >> new.txt", timeout_s=60)
            snapshot = machine.snapshot(place / f"store{number}").result()
            with contextlib.closing(sandbox.restore(snapshot, place / f"store{number}", spec)) as thawed:
                thawed.run("true", timeout_s=60)
    sandbox.remove_stale_resources(spec.backend, "benchmark")


def _run_one_task(out: Path) -> None:
    from langgraph_takeover.evals.takeover import app

    words = ["--view", "structured", "--task-ids", "ledger__ledger-12", "--out", str(out)]
    with contextlib.redirect_stdout(sys.stderr):
        app(words, standalone_mode=False)


def _profile(path: Callable[[], object]) -> Counter[str]:
    """Seconds by the owner of the code; a builtin's time is its caller's."""
    profile = cProfile.Profile()
    profile.runcall(path)
    stats: Any = pstats.Stats(profile)
    spent: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if file != "~":
            spent[_find_owner(file)] += own
        elif any(wait in name for wait in _WAITING_CALLS):
            spent["SQLite" if "sqlite3" in name else "waiting"] += own
        else:
            for (caller, _, _), (_, _, seconds, _) in callers.items():
                spent[_find_owner(caller)] += seconds
    return spent


def _find_owner(file: str) -> str:
    if "importlib" in file:
        return "importing"
    if file.startswith(tuple(f"{sys.path[0]}/{name}/" for name in _OWN_PACKAGES)):
        return "ours"
    _, installed, library = file.rpartition("-packages/")
    if not installed:
        return "Python's own library"
    return next((name for name, them in _LIBRARIES.items() if library.startswith(them)), "other libraries")


if __name__ == "__main__":
    run_command(main, _EPILOG)
