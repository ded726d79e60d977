"""Where the time of the three slowest paths goes: a step, a freeze with its thaw, a run with its report.

Each is run under Python's profiler, which slows Python's own code by about half and waiting not at all: the shares
tell whose code to look at, and the other benchmarks how long it takes. Waiting is for programs, disks and other threads.
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

import sandbox
from benchmarks.figures import Figure, counted, print_figures, print_progress
from benchmarks.runtime import ours
from benchmarks.testbed import make
from sandbox.machine import SandboxSpec

_OURS = ("sandbox", "handoff", "nodes", "graph", "evals")
_LIBRARIES = {
    "LangGraph and LangChain": ("langgraph", "langchain", "langsmith"),
    "plots and intervals": ("matplotlib", "numpy", "scipy", "PIL"),
}
_IMPORTS = ("importlib", "<frozen importlib")
_WAITS = (
    "'poll' of 'select", "select.select", "'acquire' of '_thread", "posix.read", "posix.wait", "time.sleep",
    "posix.fsync", "posix.fdatasync", "posix.fork", "fork_exec", "sqlite3", "'recv", "' of '_io.",
)  # fmt: skip
_EPILOG = """Examples:

python benchmarks/shares.py

python benchmarks/shares.py --steps 500 --json
"""


def main(
    steps: Annotated[int, typer.Option(min=10, help="Steps of the agent's run.")] = 300,
    freezes: Annotated[int, typer.Option(min=1, help="Freezes, each with its thaw.")] = 30,
    files: Annotated[int, typer.Option(min=100, help="Files of their repository.")] = 6_200,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """Tell whose code the time of a step, of a freeze with its thaw, and of a whole small run goes to."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as where:
        place = Path(where)
        told: list[Figure] = []
        freezing = _freezing(freezes, make(place / "testbed", files).directory, place)
        for what, times, path in (
            ("a step", steps, lambda: ours(steps, place / "steps", "true")),
            ("a freeze and its thaw", freezes, freezing),
            ("a run of one task and its report", 1, _of_one_task(place / "run")),
        ):
            print_progress(what)
            told += _shares(what, times, path)
    title = f"{counted(steps, 'step')}, {counted(freezes, 'freeze')}, {counted(files, 'file')}"
    print_figures(title, told, as_json=as_json)


def _freezing(times: int, directory: Path, place: Path) -> Callable[[], object]:
    spec = SandboxSpec(backend=sandbox.default_backend(), directory=directory, owner="benchmark")

    def run() -> None:
        with contextlib.closing(sandbox.start(spec)) as machine:
            for number in range(times):
                machine.run(f"echo {number} >> new.txt", timeout_s=60)
                snapshot = machine.freeze(place / f"store{number}").result()
                with contextlib.closing(sandbox.thaw(snapshot, place / f"store{number}", spec)) as thawed:
                    thawed.run("true", timeout_s=60)
        sandbox.remove_leftovers(spec.backend, "benchmark")

    return run


def _of_one_task(out: Path) -> Callable[[], object]:
    from evals.takeover import app

    words = ["--view", "structured", "--task-ids", "ledger__ledger-12", "--out", str(out)]

    def run() -> None:
        with contextlib.redirect_stdout(sys.stderr):
            app(words, standalone_mode=False)

    return run


def _shares(what: str, times: int, path: Callable[[], object]) -> list[Figure]:
    profile = cProfile.Profile()
    profile.enable()
    try:
        path()
    finally:
        profile.disable()
    spent = _by_owner(pstats.Stats(profile))
    whole = sum(spent.values())
    return [
        Figure(
            what=f"{what}: {owner}",
            unit="ms",
            ours=1e3 * seconds / times,
            beside=1e3 * whole / times,
            beside_what="all of it",
        )
        for owner, seconds in spent.most_common()
        if seconds > whole / 100
    ]


def _by_owner(stats: Any) -> Counter[str]:
    """Seconds, where a builtin's are its caller's."""
    spent: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if file != "~":
            spent[_owner(file)] += own
        elif any(wait in name for wait in _WAITS):
            spent["SQLite" if "sqlite3" in name else "waiting"] += own
        else:
            for (caller, _, _), (_, _, seconds, _) in callers.items():
                spent[_owner(caller)] += seconds
    return spent


def _owner(file: str) -> str:
    root = Path(__file__).resolve().parents[1]
    if any(file.startswith(name) or f"/{name}" in file for name in _IMPORTS):
        return "importing"
    with contextlib.suppress(ValueError):
        if Path(file).relative_to(root).parts[0] in _OURS:
            return "ours"
    _, installed, library = file.rpartition("-packages/")
    if not installed:
        return "Python's own library"
    return next((name for name, them in _LIBRARIES.items() if library.startswith(them)), "other libraries")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
